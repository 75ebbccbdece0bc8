"""Likely causes of slowdowns."""

from dataclasses import replace

import pytest

from autotune.daemon.drift import CauseKind, MachineHistory, MachineState, likely_cause
from scripts.bench.drift import found_cause, staged_case

_ITSELF = {"cores": 8, "gpu_memory_fraction": 0.6, "data_wait_fraction": 0.1, "disk_pressure": 0.02}
_USUAL = MachineState(foreign_cores=0.1, gpu_neighbour=0.0, throttled=0.0, **_ITSELF)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"throttled": 0.9}, CauseKind.CLOCKS_HELD_DOWN),
        ({"gpu_neighbour": 0.8}, CauseKind.GPU_NEIGHBOUR),
        ({"foreign_cores": 2.0}, CauseKind.CPU_NEIGHBOUR),
        ({"foreign_cores": 2.0, "data_wait_fraction": 0.4}, CauseKind.CPU_NEIGHBOUR),
        ({"data_wait_fraction": 0.3}, CauseKind.DATA_WAIT),
        ({"data_wait_fraction": 0.3, "disk_pressure": 0.3}, CauseKind.DISK_SLOWER),
        ({"gpu_memory_fraction": 0.98}, CauseKind.GPU_MEMORY_FULL),
        ({"config_changed": True}, CauseKind.CONFIG_EDITED),
        ({"code_changed": True}, CauseKind.CODE_EDITED),
    ],
)
def test_what_changed_is_the_cause(change: dict[str, float], kind: CauseKind) -> None:
    """One reading moves, and it is named with its evidence."""
    cause = likely_cause(_USUAL, replace(_USUAL, **change))  # type: ignore[arg-type]
    assert cause.kind is kind
    assert cause.text


@pytest.mark.parametrize("change", [{}, {"foreign_cores": 0.4}, {"disk_pressure": 0.5}, {"throttled": 0.1}])
def test_what_did_not_change_much_is_none(change: dict[str, float]) -> None:
    """Unknown is an answer; a busy disk that the training does not feel is no cause."""
    assert likely_cause(_USUAL, replace(_USUAL, **change)) is None  # type: ignore[arg-type]


def test_what_was_always_so_is_no_cause() -> None:
    """A neighbour, heat and a full memory that were there before explain nothing."""
    always = MachineState(foreign_cores=4.0, cores=8, throttled=0.9, gpu_memory_fraction=0.98, config_changed=True)
    assert likely_cause(always, always) is None


def test_a_history_tells_before_from_after() -> None:
    """Medians of amounts, shares of time, and the data wait of the training's own windows."""
    history = MachineHistory()
    for number in range(60):
        slow = number >= 40
        history.add(10.0 * number, MachineState(foreign_cores=2.0 if slow else 0.1, throttled=float(number % 4 == 0)))
        history.add_wait(10.0 * number, 0.5 if slow else 0.1)
    before, after = history.before(395.0), history.after(395.0)
    assert (before.foreign_cores, after.foreign_cores) == (0.1, 2.0)
    assert (before.throttled, after.throttled) == (0.25, 0.25)
    assert (before.data_wait_fraction, after.data_wait_fraction) == (0.1, 0.5)
    assert MachineHistory().before(0.0) == MachineState()


def test_staged_slowdowns_are_explained() -> None:
    """Most causes are named rightly among readings that also hold blips, heat and neighbours that are none."""
    results = [(case.cause, *found_cause(case)) for case in map(staged_case, range(6))]
    right = [cause is (named.kind if named else None) for cause, is_found, named in results if is_found]
    assert sum(right) >= 5
