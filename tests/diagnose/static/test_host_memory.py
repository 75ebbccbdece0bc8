"""Check of the host's memory."""

from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.diagnose import machine_checks
from autotune.diagnose.machine_checks import check_memory
from autotune.diagnose.subject import Subject
from autotune.measure.host import MemoryState, memory_state

GIB = 1 << 30


def sentences(monkeypatch: pytest.MonkeyPatch, **state: object) -> list[str]:
    """Return what is found on a machine of 64 GiB with this state of its memory."""
    usual: dict[str, object] = {
        "total_bytes": 64 * GIB,
        "available_bytes": 60 * GIB,
        "limit_bytes": None,
        "swap_used_bytes": 0,
        "pressure": 0.0,
    }
    monkeypatch.setattr(machine_checks, "memory_state", lambda: MemoryState(**{**usual, **state}))  # type: ignore[arg-type]
    return [issue.sentence for issue in check_memory(Subject(problem=None, clock=SystemClock())).issues]


def test_memory_that_suffices_is_no_issue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages that were swapped out long ago are none either, nor is a limit."""
    assert sentences(monkeypatch) == []
    assert sentences(monkeypatch, swap_used_bytes=GIB, limit_bytes=64 * GIB, pressure=None) == []


def test_too_little_memory_and_waiting_for_it_are_issues(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their numbers, and whose limit it is."""
    (said,) = sentences(monkeypatch, available_bytes=3 * GIB)
    assert said == "3.0 GiB of 64.0 GiB (host memory) are available for training."
    (said,) = sentences(monkeypatch, total_bytes=8 * GIB, limit_bytes=8 * GIB, available_bytes=GIB)
    assert said == "1.0 GiB of 8.0 GiB (the cgroup's limit) are available for training."
    (said,) = sentences(monkeypatch, pressure=0.4, swap_used_bytes=2 * GIB)
    assert said == "Processes waited for memory 40 % of the last 10 s. 2.0 GiB are swapped out."


def test_a_cgroups_limit_counts_without_its_page_cache(tmp_path: Path) -> None:
    """What is in use of it, but for file pages that can be taken back, is not available."""
    group = tmp_path / "sys/fs/cgroup/box"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (group / "memory.max").write_text(f"{GIB // 2}\n")
    (group / "memory.current").write_text(f"{GIB // 4}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {GIB // 8}\n")
    state = memory_state(tmp_path)
    assert (state.limit_bytes, state.total_bytes) == (GIB // 2, GIB // 2)
    assert state.available_bytes <= GIB // 2 - GIB // 8
