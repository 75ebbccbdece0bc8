"""Ablation: each part can be switched off, and the report shows what that costs."""

import importlib
from pathlib import Path

import pytest

from autotune.records import Values
from autotune.sampler import gaussian_process
from autotune.space.space import Space
from scripts.bench import ablation
from scripts.bench.ablation import PARTS, WHOLE, benchmark_ablation, constants, needless_changes
from scripts.bench.grounds import Grounds
from tests.runs import knob


def test_every_part_is_switched_off_by_constants_that_exist_and_for_a_while_only() -> None:
    """A constant that was renamed is an error, not a search with all of its parts."""
    before = {key: getattr(importlib.import_module(key[0]), key[1]) for part in PARTS.values() for key in part}
    for part in PARTS.values():
        with constants(part):
            now = {key: getattr(importlib.import_module(key[0]), key[1]) for key in part}
            assert now == part
            assert all(now[key] != before[key] for key in part)
    assert before == {key: getattr(importlib.import_module(key[0]), key[1]) for key in before}
    with pytest.raises(AttributeError), constants({(gaussian_process.__name__, "_RENAMED"): 1}):
        pass


def test_a_change_is_needless_if_as_much_is_left_without_it() -> None:
    """Each by itself; one that costs two percent is needed."""

    def speed(values: Values) -> float:
        return 1.0 + (values["a"] == 2) + 0.02 * (values["b"] == 2)

    space = Space(knobs=tuple(knob(path, 1, 2) for path in "abc"))
    assert needless_changes(speed, {"a": 2, "b": 1, "c": 2}, space) == 1
    assert needless_changes(speed, {"a": 2, "b": 2, "c": 1}, space) == 1  # one percent of what there is then
    assert needless_changes(speed, {"a": 1, "b": 2, "c": 1}, space) == 0
    assert needless_changes(speed, space.baseline, space) == 0


def test_a_part_is_compared_with_the_whole_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each has a row, and a second call makes nothing again."""
    monkeypatch.setattr(ablation, "PARTS", {name: PARTS[name] for name in (WHOLE, "repeats")})
    monkeypatch.setattr(ablation, "_BUDGETS_S", (60.0,))
    grounds = Grounds(seeds=(), scenarios=(1000,), out=tmp_path)
    report = benchmark_ablation(grounds)
    assert "| nothing |" in report
    assert "| repeats |" in report
    assert "1 searches each" in report
    assert "2 of 2" in capsys.readouterr().err
    assert benchmark_ablation(grounds) == report
    assert capsys.readouterr().err == ""
