"""Metrics for Prometheus, in OpenMetrics: base units, absent where nothing is known, and counters that never fall.

A counter counts from the start of this process on, as counters do in OpenMetrics (1.0, "Counter"): what a training or a
GPU had before does not count, and one that begins anew adds to what was there.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from autotune.daemon.queue import Entry
from autotune.daemon.web.search_section import Event, event_file_of, events_of
from autotune.daemon.web.state import View
from autotune.records import Ending
from autotune.trial.step_files import LineTail


class Metrics(Collector):
    """Metrics of what the daemon knows.

    Args:
        view: Returns what it knows now; None as long as that is nothing.
        trials: Returns the number of trials of its searches by their ending, since it was started.
    """

    def __init__(self, view: Callable[[], View | None], trials: Callable[[], Mapping[str, int]]) -> None:
        self._view = view
        self._trials = trials
        self._energy_j: dict[str, tuple[float, float]] = {}  # by GPU: the last reading, and what was counted
        self._registry = CollectorRegistry()  # of one: no metrics of the process, none that others have registered
        self._registry.register(self)

    def text(self) -> tuple[bytes, str]:
        """Return the metrics, and their content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]  # it has none

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        if view is None:
            return
        yield InfoMetricFamily("autotune_build", "Version of autotune.", value={"version": view.status["autotune"]})
        gpus = {gpu["uuid"]: gpu for gpu in view.gpus}
        trainings = {training["id"]: training for training in view.status["trainings"]}
        used = {uuid: gpu.get("utilization") for uuid, gpu in gpus.items()}
        memory = {uuid: gpu.get("memory_used_bytes") for uuid, gpu in gpus.items()}
        energy = {uuid: self._drawn_j(uuid, gpu.get("energy_j")) for uuid, gpu in gpus.items()}
        speed = {
            id: one["samples_per_s"] / one["confirmed_samples_per_s"]
            for id, one in trainings.items()
            if one["samples_per_s"] is not None and one["confirmed_samples_per_s"]
        }
        samples = {id: one["samples"] for id, one in trainings.items()}
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        for make, name, words, label, values in (
            (gauge, "gpu_utilization_ratio", "Share of time in which kernels ran.", "gpu_uuid", used),
            (gauge, "gpu_memory_used_bytes", "Memory in use by all processes.", "gpu_uuid", memory),
            (counter, "gpu_energy_joules", "Energy drawn since the daemon began.", "gpu_uuid", energy),
            (gauge, "training_speed_ratio", "Speed over the one that was confirmed.", "training", speed),
            (counter, "training_samples", "Samples that watched trainings have trained on.", "training", samples),
            (counter, "trials", "Trials of this daemon's searches.", "ending", dict(sorted(self._trials().items()))),
        ):
            family = make(f"autotune_{name}", words, labels=[label])
            for key, value in values.items():
                if value is not None:
                    family.add_metric([key], value)
            yield family

    def _drawn_j(self, uuid: str, reading_j: float | None) -> float | None:
        """Return the energy since the first reading; a driver that is loaded again begins anew."""
        if reading_j is None:
            return None
        last_j, counted_j = self._energy_j.get(uuid, (reading_j, 0.0))
        counted_j += reading_j - last_j if reading_j >= last_j else reading_j
        self._energy_j[uuid] = reading_j, counted_j
        return counted_j


class TrialEndings:
    """Counter of endings, since it began to look.

    What a search had written before the first look does not count: a daemon that was started again counts anew.

    Attributes:
        counts: Number of trials by their ending, as of the last look; never changed afterwards.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._files: dict[Path, LineTail] | None = None

    def look(self, entries: Sequence[Entry]) -> None:
        """Count what was written since the last look.

        Args:
            entries: The queue. A search is followed while its entry says that it runs, and once more after its end.
        """
        running = {path for entry in entries if (path := event_file_of(entry)) is not None}
        before = self._files or {}
        files = before | {path: LineTail(path, longest_bytes=8 << 20) for path in running - before.keys()}
        endings = (_ending(event) for tail in files.values() for event in events_of(tail))
        news = Counter(ending for ending in endings if ending is not None)
        if self._files is not None:
            self.counts = self.counts + news
        self._files = {path: tail for path, tail in files.items() if path in running}


def _ending(event: Event) -> str | None:
    """Return how the trial of an event ended; None if it is none of a trial's end, or names an ending of no version."""
    try:
        return Ending(event["trial"]["ending"]).value if event["event"] == "TrialEnded" else None
    except (LookupError, TypeError, ValueError):
        return None
