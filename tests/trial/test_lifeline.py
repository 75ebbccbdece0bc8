"""Lifeline of a search."""

import os

import pytest

from autotune.trial.search_child import VARIABLE, Lifeline


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
    assert lifeline.why == ""
    os.close(reader)


def test_it_carries_who_came() -> None:
    """What the daemon writes is the reason, also after the pipe was closed."""
    reader, writer = os.pipe()
    lifeline = Lifeline(reader)
    os.write(writer, b"GPU 0 is in use")
    assert lifeline.is_cut
    os.close(writer)
    assert lifeline.why == "GPU 0 is in use"
    os.close(reader)
