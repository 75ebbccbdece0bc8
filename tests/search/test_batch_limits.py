"""Limits of the batch that a search puts on a problem."""

from pathlib import Path

import pytest

from autotune.options import SearchOptions
from autotune.records import Purpose
from autotune.search.problem import Problem, growth_remark, limited, open_problem
from tests.runs import MakeTrial

FOUND = "data: {batch_size: 8, num_workers: 1}\nautotune:\n  command: python train.py {config}\n"
LISTED = f"{FOUND}  knobs:\n    data.batch_size: [8, 64]\n    data.num_workers: [1, 2]\n"
WHOLE = (4, 8, 16, 32, 64, 128)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of a config that is still to be written."""
    monkeypatch.chdir(tmp_path)
    return Path("config.yaml")


def problem_of(config: Path, text: str) -> Problem:
    """Return the whole problem of a config with that text."""
    config.write_text(text)
    return open_problem(config, command=None, state_dir=None)


@pytest.mark.parametrize(
    ("text", "batch", "choices"),
    [
        (FOUND, None, (4, 8, 16, 32)),
        (FOUND, "2x", (4, 8, 16)),
        (FOUND, "same", (8,)),
        (FOUND, "free", WHOLE),
        (f"{FOUND}  batch: 8x\n", None, (4, 8, 16, 32, 64)),
        (f"{FOUND}  batch: free\n", None, WHOLE),
        (f"{FOUND}  batch: free\n", "4x", (4, 8, 16, 32)),
        (LISTED, None, (8, 64)),
        (LISTED, "free", (8, 64)),
        (LISTED, "4x", (8,)),
        (f"{LISTED}  batch: same\n", None, (8,)),
    ],
)
def test_what_says_how_far_the_batch_is_searched(
    config: Path, text: str, batch: str | None, choices: tuple[int, ...]
) -> None:
    """The option goes first, then the section, then the user's own list, then 4x; the study is always the same."""
    whole = problem_of(config, text)
    problem = limited(whole, SearchOptions(batch=batch))
    assert problem.space.knob("data.batch_size").choices == choices
    assert problem.study == whole.study
    assert (problem.batch_remark is None) is (problem.space == whole.space)


def test_the_screen_says_what_was_left_out(config: Path) -> None:
    """One sentence: how far, why, and how to have the rest."""
    assert limited(problem_of(config, FOUND), SearchOptions()).batch_remark == (
        "data.batch_size is searched up to 32, at most 4 times today's 8: a larger batch gives more samples per "
        "second, but each teaches less. --batch free searches up to 128."
    )
    at_most_now = limited(problem_of(config, FOUND), SearchOptions(batch="1x")).batch_remark
    assert "up to 8, at most 1 times today's 8:" in str(at_most_now)
    assert limited(problem_of(config, FOUND), SearchOptions(batch="same")).batch_remark == (
        "data.batch_size stays 8, because of batch: same."
    )


def test_the_same_training_leaves_the_batch_alone(config: Path) -> None:
    """Whatever limit is said, and without a word on it."""
    problem = limited(problem_of(config, FOUND), SearchOptions(same_training=True, batch="8x"))
    assert problem.space.choices["data.batch_size"] == (8,)
    assert problem.batch_remark is None


def test_a_limit_that_apply_has_moved_is_said(config: Path, make_trial: MakeTrial) -> None:
    """The limit counts from today's batch, so that it grows with each `apply`; that shall not go unnoticed."""
    began = make_trial({"data.batch_size": 8, "data.num_workers": 1}, 100.0, purpose=Purpose.BASELINE)
    applied = FOUND.replace("batch_size: 8", "batch_size: 32")
    moved = problem_of(config, applied)
    assert growth_remark(limited(moved, SearchOptions()), [began]) == (
        "data.batch_size was 8 when this study began and is 32 now: the search goes up to 128, 16 times the first "
        "value. --batch same keeps it at 32."
    )
    assert growth_remark(limited(moved, SearchOptions(batch="1x")), [began]) is None
    assert growth_remark(limited(moved, SearchOptions(batch="same")), [began]) is None
    assert growth_remark(limited(moved, SearchOptions(batch="free")), [began]) is None
    assert growth_remark(limited(moved, SearchOptions()), []) is None
    assert growth_remark(limited(problem_of(config, FOUND), SearchOptions()), [began]) is None
