"""Counter of the kernel's out-of-memory killer, wherever a machine keeps it."""

from pathlib import Path

import pytest

from autotune.trial.launch import oom_kills

V2 = "low 0\nhigh 0\nmax 12\noom 4\noom_kill 3\noom_group_kill 0\n"
V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        ("0::/user.slice/session\n", {"cg/user.slice/session/memory.events": V2}, 3),
        ("0::/host/path\n", {"cg/memory.events": V2}, 3),
        ("4:cpu,memory:/a\n0::/\n", {"cg/memory/a/memory.oom_control": V1}, 5),
        ("4:memory:/host/path\n", {"cg/memory/memory.oom_control": V1}, 5),
        ("0::/\n", {"proc/vmstat": "pgfault 9\noom_kill 7\n"}, 7),
        ("0::/\n", {"proc/vmstat": "pgfault 9\n"}, None),
        ("1:cpu:/a\n", {}, None),
    ],
    ids=["v2", "v2 in a container", "v1", "v1 in a container", "whole machine", "old kernel", "nothing"],
)
def test_the_closest_counter_is_read(groups: str, files: dict[str, str], count: int | None, tmp_path: Path) -> None:
    """The own group's before the machine's, and None where there is none."""
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(proc=tmp_path / "proc", cgroups=tmp_path / "cg") == count
