"""Metrics as a Prometheus server reads them: parsed by prometheus-client, and followed for a day."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from autotune.daemon.web.state import Metrics, Sample, TrialEndings
from tests.daemon.web.busy_daemon import GIB, HEADER, BusyDaemon, Training, quiet

NAMES = {
    "autotune_build": "info",
    "autotune_gpu_utilization_ratio": "gauge",
    "autotune_gpu_memory_used_bytes": "gauge",
    "autotune_gpu_energy_joules": "counter",
    "autotune_training_speed_ratio": "gauge",
    "autotune_training_samples": "counter",
    "autotune_trials": "counter",
}
Labels = tuple[tuple[str, str], ...]


def families(metrics: Metrics) -> dict[str, Metric]:
    """Return what a scrape gives, by name."""
    content, kind = metrics.text()
    assert kind.startswith("application/openmetrics-text")
    text = content.decode()
    assert text.endswith("# EOF\n")
    return {family.name: family for family in text_string_to_metric_families(text)}


def samples(found: dict[str, Metric]) -> Iterator[tuple[str, Labels, float]]:
    """Yield name, labels and value of each number."""
    for family in found.values():
        for sample in family.samples:
            yield sample.name, tuple(sorted(sample.labels.items())), sample.value


def test_every_metric_is_there_with_its_unit(daemon: BusyDaemon) -> None:
    """The names and types that dashboards are made with; each says what it is."""
    found = families(Metrics(daemon.view, lambda: {"stopped": 3, "killed by budget": 1}))
    assert {name: family.type for name, family in found.items()} == NAMES
    assert all(family.documentation for family in found.values())
    values = {(name, labels): value for name, labels, value in samples(found)}
    assert values["autotune_build_info", (("version", "0.1.0"),)] == 1.0
    assert values["autotune_gpu_utilization_ratio", (("gpu_uuid", "GPU-5f1c"),)] == 0.5
    assert values["autotune_gpu_memory_used_bytes", (("gpu_uuid", "GPU-5f1c"),)] == 105 * GIB
    assert values["autotune_trials_total", (("ending", "killed by budget"),)] == 1.0
    (speed,) = (value for (name, _), value in values.items() if name == "autotune_training_speed_ratio")
    assert 0.6 < speed < 0.8
    (trained,) = (value for (name, _), value in values.items() if name == "autotune_training_samples_total")
    assert 300_000 < trained < 400_000


def test_what_is_not_known_is_absent(daemon: BusyDaemon) -> None:
    """A GPU whose driver says nothing has no numbers, nor has a training without a confirmed speed a ratio."""
    found = families(Metrics(lambda: daemon.view(None), dict))
    assert [labels for _, labels, _ in samples({"u": found["autotune_gpu_utilization_ratio"]})] == []
    assert found["autotune_trials"].samples == []
    Training(daemon.home.trainings / "20300101T000000Z-2-0123abcd", daemon.clock, HEADER)
    daemon.trainings.poll(quiet)
    assert len(daemon.alive) == 2
    found = families(Metrics(daemon.view, dict))
    assert len(found["autotune_training_speed_ratio"].samples) == 1
    assert len(found["autotune_training_samples"].samples) == 1


def test_a_counter_that_begins_anew_adds_up(daemon: BusyDaemon) -> None:
    """A driver that was loaded again counts its energy from 0: what it drew before stays counted, as over a silence."""
    readings = iter((1000.0, 1500.0, None, 1600.0, 20.0, 50.0))
    metrics = Metrics(lambda: daemon.view(gpus=[gpu(energy_j=next(readings))]), dict)
    scrapes = [{name: value for name, _, value in samples(families(metrics))} for _ in range(6)]
    counted = [found.get("autotune_gpu_energy_joules_total") for found in scrapes]
    assert counted == [0.0, 500.0, None, 600.0, 620.0, 650.0]


def gpu(**readings: float | None) -> Sample:
    """Return a reading of a GPU."""
    return {"t_s": 0.0, "index": 0, "uuid": "GPU-1", **readings}


def test_trials_before_the_daemon_do_not_count(daemon: BusyDaemon) -> None:
    """A daemon that was started again while a search of an earlier one still runs counts what comes from then on."""
    endings = TrialEndings()
    endings.poll(daemon.queue.entries())
    assert endings.counts == {}
    daemon.searching.trial(90, 1.1)
    daemon.searching.trial(91, None)
    endings.poll(daemon.queue.entries())
    endings.poll(daemon.queue.entries())
    assert endings.counts == {"stopped": 1, "out of GPU memory": 1}


def test_the_board_shows_metrics_that_there_are(daemon: BusyDaemon) -> None:
    """Each panel's expression names a metric as it is served, with labels that it has; each metric has a panel."""
    found = families(Metrics(daemon.view, lambda: {"stopped": 3}))
    labels = {sample.name: {*sample.labels, "instance"} for family in found.values() for sample in family.samples}
    labels["autotune_gpu_energy_joules_total"] = {"gpu_uuid", "instance"}  # the driver of this daemon does not say
    board = json.loads((Path(__file__).parents[3] / "docs" / "grafana.json").read_text())
    shown = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            (name,) = set(re.findall(r"autotune_\w+", target["expr"]))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels[name], panel["title"]
            shown.add(name)
    assert shown == labels.keys()
