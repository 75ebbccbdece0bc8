"""Processes, signals and disks: what ends, what stays, and what the next search finds."""

import json
import signal
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Project, end
from tests.until import until


def test_trainers_that_misbehave_are_named_and_nothing_of_them_is_left(toy: Project) -> None:
    """Real, because the kernel decides what a hanging, a killed and a forking process leaves behind."""
    toy.tune("mood: ['', hangs, is killed, forks away]", "trial: {start_timeout_s: 3, min_s: 0.2, max_s: 0.5}")
    toy.run("search", "--config", "config.yaml", "--budget", "1m", "--no-apply")
    endings = {trial["values"]["mood"]: trial["ending"] for trial in toy.trials()}
    assert endings == {"": "stopped", "hangs": "hung", "is killed": "crashed", "forks away": "stopped"}
    toy.until_nothing_runs()


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGKILL, signal.SIGINT), pytest.param((signal.SIGTERM,), marks=pytest.mark.services)],
    ids=["SIGKILL, then SIGINT", "SIGTERM"],
)
def test_an_interrupted_search_loses_no_trial_and_resumes(toy: Project, signals: tuple[signal.Signals, ...]) -> None:
    """Real, because a SIGKILL runs no code of ours: the guard has to end the trainer, and the journal to hold."""
    before, kept = toy.config.read_bytes(), list[dict[str, object]]()
    for number in signals:
        said = toy.search_until("trial [0-9]+ ", number=number)
        found = toy.trials()
        assert len(found) > len(kept)
        assert found[: len(kept)] == kept
        assert number is signal.SIGKILL or "finished trials are kept" in said or "finished trial is kept" in said
        toy.until_nothing_runs()
        kept = found
    toy.search_until(r"explore .*/s")
    resumed = toy.trials()
    assert resumed[: len(kept)] == kept
    assert len({trial["number"] for trial in resumed}) == len(resumed)
    assert toy.config.read_bytes() == before
    toy.apply_and_revert()


def test_a_full_disk_ends_a_search_with_a_reason_and_the_config_as_it_was(toy: Project, small_disk: Path) -> None:
    """Real, because only a real file system fails in the middle of a line."""
    before = toy.config.read_bytes()
    toy.env["AUTOTUNE_DIR"] = str(small_disk / "state")
    with toy.start("search", "--config", "config.yaml", "--budget", "10m", "--no-apply") as process:
        _, said = process.communicate(timeout=280)
    assert process.returncode == 1, said
    assert "No space left on device" in said or "GiB" in said
    assert toy.config.read_bytes() == before
    toy.until_nothing_runs()


@pytest.mark.core
@pytest.mark.services
def test_a_worker_takes_part_in_a_search_through_postgresql(toy: Project, postgresql, tmp_path: Path) -> None:
    """Real, because two processes and a server share the study; no trial is made twice."""
    toy.env |= {"AUTOTUNE_STORAGE": postgresql.url}
    search = toy.start("search", "--config", "config.yaml", "--budget", "10m", "--no-apply")
    until(lambda: toy.trials(), "a first trial")
    toy.env |= {"SLURMD_NODENAME": "two", "AUTOTUNE_DIR": str(toy.folder / ".autotune" / "two")}
    worker = toy.start("worker", "--config", "config.yaml", "--budget", "10m")
    with search, worker:
        until(lambda: any("two" in str(file) for file in toy.result_files()), "a trial of the worker")
        assert end(search, signal.SIGINT)[0] == 130
        assert end(worker, signal.SIGTERM)[0] in (0, 143)
    numbers = [trial["number"] for trial in toy.trials()]
    assert len(set(numbers)) == len(numbers)
    toy.until_nothing_runs()


def test_a_queued_search_is_run_by_the_daemon(toy: Project, tmp_path: Path) -> None:
    """Real, because the daemon starts searches as processes of their own, and ends with them."""
    toy.env |= {"AUTOTUNE_DAEMON_DIR": str(tmp_path / "daemon"), "XDG_CONFIG_HOME": str(tmp_path / "settings")}
    with toy.start("daemon", "run") as daemon:
        until(lambda: list((tmp_path / "daemon").rglob("wake")), "the daemon answers")
        toy.run("queue", "add", "--config", "config.yaml", "--budget", "5s", "--when", "now", "--no-check")
        until(
            lambda: json.loads(toy.run("queue", "list", "--json"))["entries"][0]["state"] not in ("waiting", "running")
        )
        assert toy.trials()
        assert end(daemon, signal.SIGTERM)[0] in (0, 143)
    toy.until_nothing_runs()
