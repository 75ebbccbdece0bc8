"""Nothing of ours breaks what it is put around; and modules are seen as they are loaded."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.trainee.observe import MOST_FAILURES, Hook, Instrumentation


class Owner:
    """Somebody else's class."""

    def method(self, a: int, *, b: int = 2) -> int:
        """Adds, or raises."""
        if a < 0:
            raise KeyError(a)
        return a + b


@pytest.fixture
def owner() -> type[Owner]:
    """A class of its own for each test."""
    return type("Owner", (Owner,), {})


def around(owner: type[Owner], begin: Any, end: Any) -> tuple[Instrumentation, list[str]]:
    """A instrumentation whose notes are kept."""
    notes: list[str] = []
    instrumentation = Instrumentation(notes.append)
    instrumentation.around(owner, "method", begin, end)
    return instrumentation, notes


def test_what_goes_in_and_comes_out_is_seen_and_unchanged(owner: type[Owner]) -> None:
    """Arguments, result and exceptions pass; so do name, text and signature."""
    seen: list[Any] = []
    around(
        owner, lambda args, kwargs: (args[1:], kwargs), lambda token, result, error: seen.append((token, result, error))
    )
    assert owner().method(1, b=3) == 4
    with pytest.raises(KeyError):
        owner().method(-1)
    assert seen[0] == (((1,), {"b": 3}), 4, None)
    assert isinstance(seen[1][2], KeyError)
    assert (owner.method.__name__, owner.method.__doc__) == ("method", Owner.method.__doc__)
    assert inspect.signature(owner.method) == inspect.signature(Owner.method)


def test_errors_of_ours_go_no_further(owner: type[Owner]) -> None:
    """Before, after, or after an error of theirs: the caller gets what it would have got. Then we stop trying."""
    calls: list[str] = []

    def begin(args: Any, kwargs: Any) -> Any:
        calls.append("begin")
        if args[1] == 0:
            raise RuntimeError("ours")
        return True

    def end(token: Any, result: Any, error: Any) -> None:
        raise RuntimeError("ours")

    instrumentation, notes = around(owner, begin, end)
    assert owner().method(0) == 2
    assert owner().method(1) == 3
    with pytest.raises(KeyError):
        owner().method(-1)
    assert not instrumentation.on
    assert notes == [
        "the observer may have missed steps: RuntimeError: ours",
        "the observer may have missed steps: RuntimeError: ours",
        "the observer has switched itself off: RuntimeError: ours",
    ]
    assert owner().method(1) == 3
    assert len(calls) == MOST_FAILURES


def test_a_note_that_fails_is_no_error_either(owner: type[Owner]) -> None:
    """Not even telling of an error can raise one."""

    def note(text: str) -> None:
        raise OSError(text)

    instrumentation = Instrumentation(note)
    for _ in range(MOST_FAILURES):
        instrumentation.failed(RuntimeError("ours"))
    instrumentation.attempt("something", lambda: instrumentation.around(owner, "no_such_method", note, note))  # type: ignore[arg-type]
    assert not instrumentation.on


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path; whatever is imported from it is forgotten."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before, finders = set(sys.modules), list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_is_seen_once_it_is_loaded(modules: Path) -> None:
    """Right after it was executed, whole; to itself it was loaded as ever."""
    (modules / "framework.py").write_text("LOADER = __loader__, __spec__.loader\nready = True\n")
    seen: list[bool] = []
    Hook({"framework": lambda _name: seen.append(sys.modules["framework"].ready)}).install()
    assert seen == []
    import framework  # type: ignore[import-not-found]

    assert seen == [True]
    assert [type(loader).__name__ for loader in framework.LOADER] == ["SourceFileLoader"] * 2
    assert type(framework.__spec__.loader).__name__ == "SourceFileLoader"


def test_two_hooks_see_the_same_module(modules: Path) -> None:
    """The observer and the profiler of steps wait for the same framework, which is executed once."""
    (modules / "framework.py").write_text("import builtins\nbuiltins.runs = getattr(builtins, 'runs', 0) + 1\n")
    seen: list[str] = []
    for _ in range(2):
        Hook({"framework": seen.append}).install()
    import builtins

    import framework

    assert (seen, vars(builtins).pop("runs")) == (["framework"] * 2, 1)
    assert "exec_module" not in vars(framework.__loader__)


def test_a_module_that_cannot_be_imported_fails_as_ever(modules: Path) -> None:
    """Its own error is what the trainer sees; one that is not there is not there."""
    (modules / "framework.py").write_text("raise ValueError('theirs')\n")
    seen: list[str] = []
    Hook(dict.fromkeys(("framework", "missing_framework"), seen.append)).install()
    with pytest.raises(ValueError, match="theirs"):
        import framework  # noqa: F401
    with pytest.raises(ModuleNotFoundError):
        import missing_framework  # type: ignore[import-not-found]  # noqa: F401
    assert seen == []
