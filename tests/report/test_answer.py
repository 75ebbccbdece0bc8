"""The final screen."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.config.typed import TypedOptions
from autotune.measure.utilization import Against
from autotune.records import (
    BrokenPoint,
    Change,
    Ending,
    MovedKey,
    Ratio,
    SearchResult,
    Side,
    Validation,
    Validity,
    Verdict,
)
from autotune.report.answer import Failure, print_answer
from autotune.stage_times import PipelineTimes, StageTimes
from tests.report.conftest import BASELINE, BEST, MakeEnded, MakeResult, on_gpus, pooled_gpu


def _screen(
    result: SearchResult,
    *,
    elapsed_s: float | None = 1800.0,
    config: str = "config.yaml",
    width: int = 120,
    **more: Any,
) -> str:
    typed = more.pop("typed", TypedOptions(config=Path(config)))
    file = StringIO()
    console = Console(file=file, width=width, highlight=False, markup=False)
    print_answer(console, result, typed=typed, elapsed_s=elapsed_s, **more)
    return file.getvalue()


def _row(screen: str, start: str) -> list[str]:
    """The cells of the row that starts so."""
    (line,) = (line for line in screen.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


ALIKE, ANYTHING = Ratio(ratio=1.0, low=0.95, high=1.05), Ratio(ratio=1.1, low=0.8, high=1.5)
NO_BASELINE = Side(point="p", values=BASELINE, metrics=None)
BROKE = Validation(trained_s=12.0, broke=("its loss went to 1.20 of where it began",))


@pytest.mark.parametrize(
    ("changes", "shown", "said", "unsaid"),
    [
        (
            {},
            {},
            (
                "Better: 2.00x (95 % interval 1.90 to 2.10) as fast as today's config.",
                "confirmed by 4 interleaved pairs",
                "effective batch changes from 8 to 32",
                "learning rate",
                "Without changing the training itself: about 1.40x with cache=memory.",
                "The search took 30m; a training that takes longer than 1h today gets that back.",
                "Next:  autotune apply --config config.yaml\n",
            ),
            ("10 minutes", "None", "Caution", "alidat"),
        ),
        ({"keeps": "training"}, {}, (), ("learning rate", "Without changing the training itself")),
        ({}, {"elapsed_s": None}, (), ("gets that back",)),
        (
            {},
            {"applied": True},
            ("The config holds these values now. To take them back:  autotune revert --config config.yaml",),
            ("autotune apply",),
        ),
        ({"gain_of_ten_minutes": 0.04}, {}, ("10 minutes of searching would on average gain about 4% more",), ()),
        ({"gain_of_ten_minutes": 0.002}, {}, ("would on average gain less than 1% more",), ()),
        (
            {"why_no_gpu": "no NVIDIA driver was found"},
            {},
            ("GPU utilization was not measured: no NVIDIA driver was found.",),
            ("GPU utilization  0 %", "effective utilization"),
        ),
        (
            {"objective": "utilization"},
            {},
            (
                "the GPU is 2.02x (95 % interval 1.91 to 2.12) as busy as with today's config",
                "and training 2.00x (95 % interval 1.90 to 2.10) as fast.",
            ),
            ("worth",),
        ),
        (
            {"verdict": Verdict.NO_CHANGE, "score_ratio": ALIKE},
            {},
            ("No change: today's values are as good as any that were tried.", "tried", "Nothing to apply.\n"),
            ("autotune apply", "learning rate"),
        ),
        (
            {"verdict": Verdict.NO_CHANGE, "score_ratio": ANYTHING},
            {},
            ("No change: trials differ too much from one another to tell.", "the same command may tell"),
            ("as good as any",),
        ),
        (
            {"verdict": Verdict.NO_CHANGE, "validation": BROKE},
            {},
            ("something is faster, but it broke in a longer training.", BROKE.broke[0], "Nothing to apply."),
            (),
        ),
        (
            {"verdict": Verdict.NO_CHANGE, "speedup": None},
            {},
            ("No change yet", "run the same command again with more time"),
            (),
        ),
        (
            {"verdict": Verdict.NO_BASELINE, "baseline": NO_BASELINE, "speedup": None, "same_training": None},
            {},
            ("No baseline", "autotune apply --config config.yaml --force\n"),
            ("2.00x",),
        ),
    ],
)
def test_each_verdict_is_said_with_what_to_do_next(
    search_result: MakeResult,
    changes: dict[str, Any],
    shown: dict[str, Any],
    said: tuple[str, ...],
    unsaid: tuple[str, ...],
) -> None:
    """The gain with its interval, what it means for the training, and the command to type; nothing that is not so."""
    whole = search_result()
    if changes.get("verdict") is Verdict.NO_CHANGE:
        changes = {"best": whole.baseline, "candidate": whole.best, **changes}
    if changes.pop("keeps", ""):
        changes = {"changes": whole.changes[1:]}
    screen = _screen(search_result(**changes), **shown)
    assert [part for part in said if part not in screen] == []
    assert [part for part in unsaid if part in screen] == []


def test_nothing_faster_shows_todays_numbers_alone(search_result: MakeResult) -> None:
    """Without a candidate there is one column."""
    screen = _screen(search_result(verdict=Verdict.NO_CHANGE, best=search_result().baseline, speedup=None, changes=()))
    assert _row(screen, "samples") == ["samples", "50.0/s"]
    assert "what changes" not in screen


def test_what_a_change_is_worth_is_as_certain_as_it_is_known(search_result: MakeResult) -> None:
    """One number for a group, none for what is not known, no number for what may be worth nothing, what moves along."""

    def change(path: str, worth: Ratio | None, group: int, *along: MovedKey) -> Change:
        return Change(path=path, old=None, new=1, worth=worth, group=group, label="batch", along=along)

    gain = Ratio(ratio=1.3, low=1.1, high=1.54)
    changes = (
        change("a", gain, 0),
        change("b", gain, 0),
        change("c", None, 1),
        change("d", Ratio(ratio=1.04, low=0.97, high=1.12), 2),
        change("e", Ratio(ratio=0.9, low=0.85, high=0.95), 3, MovedKey(path="f", old=None, new=0)),
    )
    screen = _screen(search_result(changes=changes))
    assert [_row(screen, f"{name} ")[3] for name in "abcdef"] == [
        "1.30x (1.10 to 1.54)", "(together)", "?", "unclear 0.97 to 1.12", "0.90x (0.85 to 0.95)", "(moves along)",
    ]  # fmt: skip
    assert _row(_screen(search_result(changes=changes[2:3])), "c ") == ["c", "null", "1", "batch"]


def test_the_stages_of_a_pipeline_are_told(search_result: MakeResult) -> None:
    """Of both sides, as far as they have such a pipeline."""
    data = StageTimes(batches=100, busy_s=9.9, input_s=0.0, room_s=0.0)
    times = PipelineTimes(passed_s=10.0, data=data, model=StageTimes(batches=100, busy_s=6.0, input_s=4.0, room_s=0.0))
    screen = _screen(search_result(best=replace(search_result().best, stages=times)))
    assert "The best's pipeline: features 99 ms, step 60 ms a batch: the features set the pace, 99%" in screen
    assert "Today's pipeline" not in screen


def test_each_change_is_a_row(search_result: MakeResult) -> None:
    """From what to what, what it is worth, what it means for the training."""
    screen = _screen(search_result())
    assert _row(screen, "data.batch_size") == ["data.batch_size", "8", "32", "1.43x (1.31 to 1.57)", "batch"]
    assert _row(screen, "data.cache") == ["data.cache", "none", "memory", "1.40x (1.25 to 1.57)", "same training"]


@pytest.mark.parametrize("section", ["data", "a.section.with.a.long.name.that.no.terminal.holds"])
def test_changes_fit_a_terminal_of_80_columns(search_result: MakeResult, section: str) -> None:
    """Keys without their sections, numbers and values in one piece; on a wide one the whole keys."""
    changes = [
        Change(path=f"{section}.{key}", old=old, new=new, worth=worth, group=group, label=label)
        for group, (key, old, new, worth, label) in enumerate(
            [
                ("mixed_precision", "float32", "mixed_float16", Ratio(ratio=1.3, low=1.1, high=1.5), "precision"),
                ("enable_xla_compilation", False, True, Ratio(ratio=1.1, low=0.9, high=1.3), "same training"),
            ]
        )
    ]
    narrow = _screen(search_result(changes=changes), width=80)
    assert _row(narrow, "mixed_precision") == ["mixed_precision", "float32", "mixed_float16", "1.30x (1.10 to 1.50)",
                                               "precision"]  # fmt: skip
    assert _row(narrow, "enable_xla")[:4] == ["enable_xla_compilation", "false", "true", "unclear 0.90 to 1.30"]
    assert max(len(line.rstrip()) for line in narrow.splitlines() if "0 to 1." in line) <= 80
    assert f"{section}.enable_xla_compilation" in _screen(search_result(changes=changes), width=160)


def test_metrics_stand_side_by_side_with_their_units(search_result: MakeResult) -> None:
    """Today against best; what was not measured is said to be so."""
    screen = _screen(search_result())
    assert _row(screen, "samples") == ["samples", "50.0/s", "100/s"]
    assert _row(screen, "GPU utilization") == ["GPU utilization", "not measured", "not measured"]
    assert _row(screen, "step-time variation") == ["step-time variation", "10.0 %", "10.0 %"]
    assert "None" not in screen


def _on_one_gpu(search_result: MakeResult) -> SearchResult:
    """A cyclic GPU today, a flat one with the best values."""
    whole = search_result()
    return search_result(
        baseline=on_gpus(
            whole.baseline,
            pooled_gpu("2-40 % cyclic, period 2.1 s", 0.21, p10=0.02, duty_fraction=0.5, sm_activity=0.1),
            effective_utilization=0.372,
            energy_per_sample_j=2.0,
        ),
        best=on_gpus(
            whole.best,
            pooled_gpu("91 % flat", 0.91, p10=0.9, sm_activity=0.52),
            effective_utilization=0.881,
            energy_per_sample_j=1.1,
        ),
    )


def test_utilization_is_told_in_words_from_today_to_best(search_result: MakeResult) -> None:
    """The verdict of each, what today's usually means, and the figures that the GPU knows; no row for others."""
    screen = _screen(_on_one_gpu(search_result))
    assert _row(screen, "GPU utilization  ") == ["GPU utilization", "2-40 % cyclic, period 2.1 s", "91 % flat"]
    assert _row(screen, "effective utilization") == ["effective utilization", "37 %", "88 %"]
    assert _row(screen, "GPU utilization, mean") == ["GPU utilization, mean", "21 %", "91 %"]
    assert _row(screen, "GPU duty cycle") == ["GPU duty cycle", "50 %", "-"]
    assert _row(screen, "multiprocessors at work") == ["multiprocessors at work", "10.0 %", "52.0 %"]
    assert _row(screen, "energy for a sample") == ["energy for a sample", "2.00 J", "1.10 J"]
    assert "tensor cores" not in screen
    assert "Today's GPU utilization is cyclic, which usually means: what 2-40 % cyclic, period 2.1 s means." in screen
    assert "was not measured" not in screen
    assert "H100" not in screen


def test_what_is_not_known_yet_is_said_to_be_so(search_result: MakeResult) -> None:
    """Too few driver samples: how many there are, no number, and nothing about what it means."""
    whole = search_result()
    few = pooled_gpu("not enough yet: 34 of 60 driver samples", None)
    screen = _screen(search_result(baseline=on_gpus(whole.baseline, few)))
    assert _row(screen, "GPU utilization") == [
        "GPU utilization", "not enough yet: 34 of 60 driver samples", "not measured",
    ]  # fmt: skip
    assert _row(screen, "effective utilization") == ["effective utilization", "not known yet", "not known yet"]
    assert "usually means" not in screen


def test_two_gpus_are_both_shown_and_the_scored_one_is_named(search_result: MakeResult) -> None:
    """Each by its number, with its name below; figures are those of the scored one."""
    whole = search_result()
    data, after = (pooled_gpu(text, busy, scored=False) for text, busy in (("3 % flat", 0.03), ("9 % flat", 0.09)))
    model = pooled_gpu("2-40 % bursty", 0.2, uuid="GPU-1", name="NVIDIA T4")
    best = pooled_gpu("88 % flat", 0.88, uuid="GPU-1", name="NVIDIA T4")
    screen = _screen(
        search_result(baseline=on_gpus(whole.baseline, data, model), best=on_gpus(whole.best, after, best))
    )
    assert _row(screen, "GPU 0 utilization") == ["GPU 0 utilization", "3 % flat", "9 % flat"]
    assert _row(screen, "GPU 1 utilization") == ["GPU 1 utilization", "2-40 % bursty (scored)", "88 % flat (scored)"]
    assert _row(screen, "GPU utilization, mean") == ["GPU utilization, mean", "20 %", "88 %"]
    assert "GPU 0 is NVIDIA H100, GPU 1 is NVIDIA T4; the score looks at GPU 1." in screen
    assert "Today's GPU utilization is bursty" in screen


def test_the_gpus_of_data_and_model_stand_beside_what_users_state_of_such_pairs(search_result: MakeResult) -> None:
    """Below, within or above in words; today's config has one GPU for both, and nothing is compared there."""
    whole = search_result()
    today = pooled_gpu("50 % flat", 0.5)
    data = pooled_gpu(
        "57 % flat", 0.57, scored=False, role="data", reference=(0.6, 0.8), against_reference=Against.BELOW.value
    )
    model = pooled_gpu(
        "91 % flat", 0.91, uuid="GPU-1", role="model", reference=(0.85, 0.95), against_reference=Against.WITHIN.value
    )
    screen = _screen(search_result(baseline=on_gpus(whole.baseline, today), best=on_gpus(whole.best, data, model)))
    assert _row(screen, "GPU 0 utilization") == [
        "GPU 0 utilization", "50 % flat (scored)", "data: 57 % flat, below 60-80 %",
    ]  # fmt: skip
    assert _row(screen, "GPU 1 utilization") == [
        "GPU 1 utilization", "not measured", "model: 91 % flat, within 85-95 % (scored)",
    ]  # fmt: skip
    assert "users state 60-80 % for data and 85-95 % for model" in screen


def test_cautions_are_printed_whole(search_result: MakeResult) -> None:
    """They are sentences of their own, however long."""
    long = "another process used the GPU for " + "a very long time, " * 15 + "that is all"
    assert f"Caution: {long}" in _screen(search_result(cautions=(long,)))
    assert "Caution" not in _screen(search_result())


def test_a_validated_answer_says_what_it_came_through(search_result: MakeResult) -> None:
    """And what it did not; a point that broke before it is named with its reason."""
    held = Validation(
        trained_s=65.0, epoch_ends=2, checkpoints=1, speed_ratio=1.97, loss_ratio=1.0, memory_growth_bytes_per_s=0.0
    )
    broke = Validation(trained_s=12.0, broke=("crashed after 12s of training (\x1b[31mOSError)",))
    speedup = Ratio(ratio=2.5, low=2.4, high=2.6)
    broken = BrokenPoint(changes={"data.batch_size": 64}, speedup=speedup, validation=broke)
    screen = _screen(search_result(validation=held, broken=(broken,)))
    assert (
        "Validated: trained for 1m05s, through 2 ends of epochs, 1 checkpoint, no evaluation came; its loss goes "
        "the way of today's; 1.97x as fast as today's config; memory does not grow.\n" in screen
    )
    assert "Not chosen: batch_size=64: 2.50x as fast, but it broke in a longer training: crashed after 12s" in screen
    assert "\x1b" not in screen
    assert "alidat" not in _screen(search_result())


@pytest.mark.parametrize(("path", "typed"), [("my config.yaml", "'my config.yaml'"), ("a'b.yaml", "'a'\"'\"'b.yaml'")])
def test_the_next_command_can_be_pasted(search_result: MakeResult, path: str, typed: str) -> None:
    """The next command is quoted for a shell, for every config name."""
    assert f"--config {typed}" in _screen(search_result(), config=path)


def test_what_looks_like_markup_is_shown_as_it_is(search_result: MakeResult, trial_ended: MakeEnded) -> None:
    """A value or a message in brackets is text of the user's, no formatting."""
    change = Change(
        path="x", old="[red]", new="[/red]", worth=Ratio(ratio=1.2, low=0.9, high=1.6), group=0, label="unknown"
    )
    failure = _failure(trial_ended, detail="KeyError: '[bold]'")
    screen = _screen(search_result(changes=(change,)), failures=[failure])
    assert _row(screen, "x ")[1:3] == ["[red]", "[/red]"]
    assert "KeyError: '[bold]'" in screen


def _failure(trial_ended: MakeEnded, *, count: int = 1, detail: str = "", stderr: str = "") -> Failure:
    trial = trial_ended(
        ending=Ending.CRASHED, validity=Validity.UNMEASURED, measurement=None, values=BEST, detail=detail
    ).trial
    return Failure(
        trial=trial,
        count=count,
        sentence="The trainer failed, or was killed.",
        remedy="Read stderr.log.",
        stderr_tail=stderr,
        folder="/trials/7",
    )


def test_failures_are_named_counted_and_quoted(search_result: MakeResult, trial_ended: MakeEnded) -> None:
    """A failure shows its ending, last output, remedy, and folder of logs."""
    said = "\n".join(f"line {number}" for number in range(20))
    failures = [_failure(trial_ended, count=3, detail="ValueError: no", stderr=said), _failure(trial_ended)]
    screen = _screen(search_result(), failures=failures)
    assert "3 trials crashed: The trainer failed, or was killed." in screen
    assert "1 trial crashed" in screen
    assert "ValueError: no" in screen
    assert "| line 19" in screen
    assert "| line 14" not in screen
    assert "Read stderr.log. Logs: /trials/7" in screen


def test_the_next_command_is_for_the_same_study(search_result: MakeResult) -> None:
    """It has the storage and the state folder that were typed; `revert` takes no storage."""
    typed = TypedOptions(config=Path("c.yaml"), state_dir=Path("state"), storage="sqlite:s.db")
    for applied, command in (
        (False, "autotune apply --config c.yaml --state-dir state --storage sqlite:s.db"),
        (True, "autotune revert --config c.yaml --state-dir state"),
    ):
        assert _screen(search_result(), typed=typed, applied=applied).rstrip().endswith(command)
