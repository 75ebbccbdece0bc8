"""Promises about a search as a child: it starts, it ends, nothing of it stays; and about its lifeline."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.errors import CommandError
from autotune.measure.host import process_stat
from autotune.trial.children import NICENESS, VARIABLE, Lifeline, SearchChild, SearchExit
from tests.until import until

STUBBORN = Path(__file__).with_name("stubborn_search.py")
SAYS = """
import os, sys
fd = int(os.environ["AUTOTUNE_LIFELINE_FD"])
print(os.getsid(0) == os.getpid(), sys.stdin.read() == "", os.getcwd(), os.environ.get("SECRET"), flush=True)
print("complaint", file=sys.stderr, flush=True)
print(len(os.listdir("/proc/self/fd")) - 1, os.read(fd, 1), os.getpriority(os.PRIO_PROCESS, 0), flush=True)
"""

Start = Callable[..., SearchChild]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start a child, which is gone at the end of the test."""
    monkeypatch.setattr("autotune.trial.children.GIVE_UP_S", 60.0)  # a machine may be slow to end what was killed
    children = []

    def start(*argv: str, **options: object) -> SearchChild:
        given = {"cwd": tmp_path, "env": dict(os.environ), "log": tmp_path / "log", "clock": SystemClock()}
        child = SearchChild.start(argv, **(given | options))
        children.append(child)
        return child

    yield start
    for child in children:
        assert child.end().left == ()


def python(code: str) -> tuple[str, ...]:
    """Return the command of some Python."""
    return (sys.executable, "-c", code)


def exit_of(child: SearchChild) -> SearchExit:
    """Wait for the end of a child."""
    return until(child.poll)


def still_running(pids: Iterable[int]) -> list[int]:
    """Return those of some processes that run."""
    return [pid for pid in pids if (stat := process_stat(pid)) is not None and not stat.is_dead]


def open_pipes() -> set[str]:
    """The pipes this process holds, each once."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return {target for target in found if target.startswith("pipe:")}


def stubborn(begin: Start, folder: Path) -> tuple[SearchChild, frozenset[int]]:
    """Start a search that does not listen; return it with all its processes."""
    child = begin(sys.executable, str(STUBBORN), str(folder))
    until(lambda: len((folder / "log").read_text().split()) == 2)
    until(lambda: len(child.pids()) == 4)
    return child, child.pids()


def test_it_stands_for_itself(begin: Start, tmp_path: Path) -> None:
    """A session of its own, no input, all output in the log, the environment it was given, and one open pipe."""
    (tmp_path / "log").write_text("earlier\n")
    child = begin(*python(SAYS), env={"PATH": os.environ["PATH"]})
    until(lambda: "complaint" in (tmp_path / "log").read_text())
    child.finish_trial()
    assert exit_of(child).code == 0
    assert (tmp_path / "log").read_text().splitlines() == [
        "earlier",
        f"True True {tmp_path} None",
        "complaint",
        f"4 b'' {NICENESS}",
    ]


def test_the_lifeline_closes_with_who_holds_it(begin: Start, tmp_path: Path) -> None:
    """Also where that is killed: the search reads the end of the pipe."""
    code = f"""
import os, signal, sys
from pathlib import Path
from autotune.clock import SystemClock
from autotune.trial.children import SearchChild
code = "import os; os.read(int(os.environ['{VARIABLE}']), 1); open('read', 'w').close()"
child = SearchChild.start([sys.executable, "-c", code], cwd=Path.cwd(), env=dict(os.environ), log=Path("other"),
                          clock=SystemClock())
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert exit_of(begin(*python(code))).code == -signal.SIGKILL
    until((tmp_path / "read").exists)


def test_one_that_does_not_listen_is_killed_and_its_guard_ends_the_rest(begin: Start, tmp_path: Path) -> None:
    """Whatever ignores SIGTERM, and in whatever session it is."""
    child, pids = stubborn(begin, tmp_path)
    child.leave()
    ended = exit_of(child)
    assert (ended.code, ended.left) == (-signal.SIGKILL, ())
    assert still_running(pids) == []


def test_a_search_that_was_killed_is_over_once_its_guard_is(begin: Start, tmp_path: Path) -> None:
    """Somebody else's SIGKILL: what its guard still has to end is waited for."""
    child, pids = stubborn(begin, tmp_path)
    os.kill(child.pid, signal.SIGKILL)
    ended = exit_of(child)
    assert (ended.code, ended.left) == (-signal.SIGKILL, ())
    assert still_running(pids) == []


def test_what_has_lost_its_guard_is_killed(begin: Start, tmp_path: Path) -> None:
    """The processes of a search are known by then."""
    child, pids = stubborn(begin, tmp_path)
    guard = int((tmp_path / "log").read_text().split()[0])
    os.kill(guard, signal.SIGSTOP)  # it does nothing any more
    ended = child.end()
    assert ended.left == ()
    until(lambda: still_running(pids) == [])


def test_what_cannot_be_started_says_why(tmp_path: Path, begin: Start) -> None:
    """No program, no folder, a link in place of the log; no pipe stays open."""
    before = open_pipes()
    with pytest.raises(CommandError, match="No such file"):
        begin(str(tmp_path / "missing"))
    with pytest.raises(CommandError, match="No such file"):
        begin(*python(""), cwd=tmp_path / "missing")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CommandError, match="cannot be started"):
        begin(*python(""), log=tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()
    assert open_pipes() <= before  # other tests' pipes may be collected meanwhile


def test_it_is_cut_when_the_daemon_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of file says so, and no child of the search sees the variable or the pipe."""
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    monkeypatch.setenv(VARIABLE, str(reader))
    lifeline = Lifeline.of_environment()
    assert VARIABLE not in os.environ
    assert not os.get_inheritable(reader)
    assert not lifeline.is_cut
    os.close(writer)
    assert lifeline.is_cut
    os.close(reader)
