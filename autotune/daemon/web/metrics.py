"""Metrics for Prometheus, in OpenMetrics: base units, absent where nothing is known, and counters that never fall.

A counter counts from the start of this process on, as counters do in OpenMetrics (1.0, "Counter"): what a training or a
GPU had before does not count, and one that begins anew adds to what was there.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from autotune.daemon.queue import Entry
from autotune.daemon.web.search_section import EventFile, event_file_of
from autotune.daemon.web.view import DaemonView
from autotune.records import Ending

View = Callable[[], DaemonView | None]


class Metrics(Collector):
    """Metrics of what the daemon knows.

    Args:
        view: Returns what it knows now; None as long as that is nothing.
        trials: Returns the number of trials of its searches by their ending, since it was started.
    """

    def __init__(self, view: View, trials: Callable[[], Mapping[str, int]]) -> None:
        self._view = view
        self._trials = trials
        self._energy = _Counts()

    def text(self) -> tuple[bytes, str]:
        """Return the metrics, and their content type."""
        return generate_latest(_One(self)), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]  # it has none

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        if view is None:
            return
        yield InfoMetricFamily("autotune_build", "Version of autotune.", value={"version": view.autotune})
        yield from self._of_gpus(view)
        yield from self._of_trainings(view)
        trials = CounterMetricFamily("autotune_trials", "Trials of this daemon's searches.", labels=["ending"])
        for ending, count in sorted(self._trials().items()):
            trials.add_metric([ending], count)
        yield trials

    def _of_gpus(self, view: DaemonView) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "autotune_gpu_utilization_ratio", "Share of time in which kernels ran.", labels=["gpu_uuid"]
        )
        memory = GaugeMetricFamily(
            "autotune_gpu_memory_used_bytes", "Memory in use by all processes.", labels=["gpu_uuid"], unit="bytes"
        )
        energy = CounterMetricFamily(
            "autotune_gpu_energy_joules", "Energy drawn since the daemon began.", labels=["gpu_uuid"], unit="joules"
        )
        for gpu in view.gpus:
            if gpu.utilization is not None:
                used.add_metric([gpu.uuid], gpu.utilization)
            if gpu.memory_used_bytes is not None:
                memory.add_metric([gpu.uuid], gpu.memory_used_bytes)
            if gpu.energy_j is not None:
                energy.add_metric([gpu.uuid], self._energy.count(gpu.uuid, gpu.energy_j))
        yield from (used, memory, energy)

    def _of_trainings(self, view: DaemonView) -> Iterator[Metric]:
        speed = GaugeMetricFamily(
            "autotune_training_speed_ratio", "Speed over the one that was confirmed.", labels=["training"]
        )
        samples = CounterMetricFamily(
            "autotune_training_samples", "Samples that watched trainings have trained on.", labels=["training"]
        )
        for training in view.trainings:
            if training.samples_per_s is not None and training.confirmed_samples_per_s:
                speed.add_metric([training.id], training.samples_per_s / training.confirmed_samples_per_s)
            if training.samples is not None:
                samples.add_metric([training.id], training.samples)
        yield from (speed, samples)


class _Counts:
    """Counts of readings that may begin anew, such as a driver's energy after it was loaded again."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._counted: dict[str, float] = {}

    def count(self, name: str, reading: float) -> float:
        last = self._last.get(name, reading)
        grown = reading - last if reading >= last else reading
        self._last[name] = reading
        self._counted[name] = self._counted.get(name, 0.0) + grown
        return self._counted[name]


class _One:
    """Registry of one collector: no metrics of the process, and none that others have registered."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterator[Metric]:
        yield from self._collector.collect()


class TrialEndings:
    """Counter of endings, since it began to look.

    What a search had written before the first look does not count: a daemon that was started again counts anew.
    """

    def __init__(self) -> None:
        self._files: dict[Path, EventFile] = {}
        self._counted: Counter[str] = Counter()
        self._is_first = True

    @property
    def counts(self) -> Counter[str]:
        """Number of trials by their ending, as of the last look; never changed afterwards."""
        return self._counted

    def look(self, entries: Sequence[Entry]) -> None:
        """Count what was written since the last look.

        Args:
            entries: The queue. A search is followed while its entry says that it runs, and once more after its end.
        """
        running = {path for entry in entries if (path := event_file_of(entry)) is not None}
        for path in running - self._files.keys():
            self._files[path] = EventFile(path)
        news = Counter(
            ending
            for file in self._files.values()
            for event in file.news(8 << 20)
            if (ending := _ending(event)) is not None
        )
        if not self._is_first:
            self._counted = self._counted + news
        self._is_first = False
        self._files = {path: file for path, file in self._files.items() if path in running}


def _ending(event: Any) -> str | None:
    """Return how the trial of an event ended; None if it is none of a trial's end, or names an ending of no version."""
    try:
        return Ending(event["trial"]["ending"]).value if event["event"] == "TrialEnded" else None
    except (LookupError, TypeError, ValueError):
        return None
