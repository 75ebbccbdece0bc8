"""Tests of the settings that a trainer's process tells of itself."""

import sys
from types import SimpleNamespace

import pytest

from autotune.trainee.framework_settings import settings_in_force


def test_nothing_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a framework there is nothing to tell, and none is loaded."""
    for name in ("tensorflow", "keras", "torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert settings_in_force() == {}
    assert "tensorflow" not in sys.modules


def test_settings_that_a_version_lacks_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told; what raises, or is no plain value, is not."""
    for name in ("tensorflow", "keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    torch = SimpleNamespace(get_num_threads=lambda: 3, get_num_interop_threads=lambda: object())
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert settings_in_force() == {"torch.threads": 3}
