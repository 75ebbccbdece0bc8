"""The final screen: each is a file beside this module, as its reader has it."""

import os
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.config.command import TypedOptions
from autotune.records import (
    BrokenPoint,
    Change,
    Ending,
    MovedKey,
    PooledGpu,
    RankMeasurement,
    Ratio,
    SearchResult,
    Side,
    Validation,
    Validity,
    Verdict,
)
from autotune.report.answer import print_answer
from autotune.search.trial_maker import Failed
from autotune.stage_times import PipelineTimes, StageTimes
from tests.report.conftest import BASELINE, MakeEnded, MakeResult, on_gpus, pooled_gpu

SCREENS = Path(__file__).with_name("screens")
Changes = dict[str, Any]


def _screen(result: SearchResult, *, config: str = "config.yaml", width: int = 120, **options: Any) -> str:
    file, usual = StringIO(), {"typed": TypedOptions(config=Path(config)), "elapsed_s": 1800.0}
    console = Console(file=file, width=width, highlight=False, markup=False)
    print_answer(console, result, **{**usual, **options})
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _not_better(whole: SearchResult, **changes: Any) -> Changes:
    """What was tried stands beside today's config."""
    return {"verdict": Verdict.NO_CHANGE, "best": whole.baseline, "candidate": whole.best, **changes}


def _grouped(_whole: SearchResult) -> Changes:
    def change(path: str, worth: Ratio | None, group: int, *along: MovedKey) -> Change:
        return Change(path=path, old=None, new=1, worth=worth, group=group, label="batch", along=along)

    gain = Ratio(ratio=1.3, low=1.1, high=1.54)
    moved = MovedKey(path="f", old=None, new=0)
    changes = (change("a", gain, 0), change("b", gain, 0), change("c", None, 1))
    likely, loss = Ratio(ratio=1.06, low=0.99, high=1.13), Ratio(ratio=0.9, low=0.85, high=0.95)
    nothing, large = Ratio(ratio=1.0, low=0.9, high=1.1), Ratio(ratio=2.1, low=1.9, high=2.4)
    others = ((likely, "d"), (loss, "e"), (nothing, "g"), (large, "h"))
    further = [
        change(path, worth, group, *([moved] if path == "e" else [])) for group, (worth, path) in enumerate(others, 2)
    ]
    return {"changes": (*changes, *further, replace(change("i", None, 9), needed=True))}


def _long_keys(_whole: SearchResult) -> Changes:
    section, gain = "a.section.with.a.long.name.that.no.terminal.holds", Ratio(ratio=1.3, low=1.1, high=1.5)
    keys = (("mixed_precision", "float32", "mixed_float16"), ("enable_xla_compilation", False, True))
    rows = [
        Change(path=f"{section}.{key}", old=old, new=new, worth=gain, group=group, label="precision")
        for group, (key, old, new) in enumerate(keys)
    ]
    return {"changes": rows}


def _stages(whole: SearchResult) -> Changes:
    data = StageTimes(batches=100, busy_s=9.9, input_s=0.0, room_s=0.0)
    model = StageTimes(batches=100, busy_s=6.0, input_s=4.0, room_s=0.0)
    return {"best": replace(whole.best, stages=PipelineTimes(passed_s=10.0, data=data, model=model))}


def _ranks(whole: SearchResult) -> Changes:
    def with_waits(side: Side, *waits: float) -> Side:
        ranks = [
            RankMeasurement(number=number, node="gpu-7", step_s=0.1, data_wait_fraction=wait)
            for number, wait in enumerate(waits)
        ]
        return replace(side, ranks=tuple(ranks))

    return {"baseline": with_waits(whole.baseline, 0.04, 0.38), "best": with_waits(whole.best, 0.02, 0.03)}


def _slow_start(whole: SearchResult) -> Changes:
    def starting(side: Side, start_s: float) -> Side:
        return replace(side, metrics={**(side.metrics or {}), "first_step_s": start_s})

    return {"baseline": starting(whole.baseline, 3.0), "best": starting(whole.best, 28.0)}


def _one_gpu(whole: SearchResult) -> Changes:
    cyclic = pooled_gpu("2-40 % cyclic, period 2.1 s", 0.21, p10=0.02, duty_fraction=0.5, sm_activity=0.1)
    flat = pooled_gpu("91 % flat", 0.91, p10=0.9, sm_activity=0.52)
    return {
        "baseline": on_gpus(whole.baseline, cyclic, effective_utilization=0.372, energy_per_sample_j=2.0),
        "best": on_gpus(whole.best, flat, effective_utilization=0.881, energy_per_sample_j=1.1),
    }


def _stalls_faster_than_the_driver_looks(whole: SearchResult) -> Changes:
    changes = _one_gpu(whole)
    fast = {"stall_fraction": 0.4, "beat_s": 0.08, "stall_wait_fraction": 0.97, "step_p99_s": 0.06}
    return {**changes, "baseline": replace(changes["baseline"], metrics={**changes["baseline"].metrics, **fast})}


def _two_gpus(whole: SearchResult) -> Changes:
    data, after = (pooled_gpu(text, busy, scored=False) for text, busy in (("3 % flat", 0.03), ("9 % flat", 0.09)))
    model = pooled_gpu("2-40 % bursty", 0.2, uuid="GPU-1", name="NVIDIA T4")
    best = pooled_gpu("88 % flat", 0.88, uuid="GPU-1", name="NVIDIA T4")
    return {"baseline": on_gpus(whole.baseline, data, model), "best": on_gpus(whole.best, after, best)}


def _gpus_of_ranks(whole: SearchResult) -> Changes:
    def used(*shares: float) -> list[PooledGpu]:
        every = enumerate(shares)
        return [pooled_gpu(f"{100 * share:.0f} % flat", share, uuid=f"GPU-{number}") for number, share in every]

    best = on_gpus(whole.best, *used(0.91, 0.92, 0.9, 0.88))
    return {"baseline": on_gpus(whole.baseline, *used(0.71, 0.66, 0.7, 0.21)), "best": best}


def _gpus_by_role(whole: SearchResult) -> Changes:
    below, within = "below", "within"
    data = pooled_gpu("57 % flat", 0.57, scored=False, role="data", reference=(0.6, 0.8), against_reference=below)
    model = pooled_gpu("91 % flat", 0.91, uuid="GPU-1", role="model", reference=(0.85, 0.95), against_reference=within)
    return {
        "baseline": on_gpus(whole.baseline, pooled_gpu("50 % flat", 0.5)),
        "best": on_gpus(whole.best, data, model),
    }


def _validated(_whole: SearchResult) -> Changes:
    held = Validation(
        trained_s=65.0, epoch_ends=2, checkpoints=1, speed_ratio=1.97, loss_ratio=1.0, memory_growth_bytes_per_s=0.0
    )
    broke = Validation(trained_s=12.0, broke=("crashed after 12s of training (\x1b[31mOSError)",))
    point = BrokenPoint(changes={"data.batch_size": 64}, speedup=Ratio(ratio=2.5, low=2.4, high=2.6), validation=broke)
    return {"validation": held, "broken": (point,), "gain_of_ten_minutes": 0.04}


def _steadier(whole: SearchResult) -> Changes:
    before = {"step_p95_s": 0.41, "step_p99_s": 0.9, "stall_fraction": 0.4, "beat_s": 2.0, "gpu_utilization": 0.31}
    after = {"step_p95_s": 0.13, "step_p99_s": 0.14, "stall_fraction": 0.0, "beat_s": None, "gpu_utilization": 0.88}
    return {
        "verdict": Verdict.STEADIER,
        "why": "confirmed by 6 interleaved pairs with today's config",
        "speedup": Ratio(ratio=1.0, low=0.99, high=1.02),
        "baseline": replace(whole.baseline, metrics={**(whole.baseline.metrics or {}), **before}),
        "best": replace(whole.best, metrics={**(whole.best.metrics or {}), **after}),
    }


def _brackets(_whole: SearchResult) -> Changes:
    unclear = Ratio(ratio=1.2, low=0.9, high=1.6)
    return {"changes": (Change(path="x", old="[red]", new="[/red]", worth=unclear, group=0, label="unknown"),)}


BROKE = Validation(trained_s=12.0, broke=("its loss went to 1.20 of its initial value",))
ALIKE, ANYTHING = Ratio(ratio=1.0, low=0.95, high=1.05), Ratio(ratio=1.1, low=0.8, high=1.5)
BESIDE = Ratio(ratio=1.38, low=1.29, high=1.48)
NO_BASELINE = {"verdict": Verdict.NO_BASELINE, "speedup": None, "same_training": None}
NO_BASELINE |= {"baseline": Side(point="p", values=BASELINE, metrics=None)}
FEW = pooled_gpu("not enough yet: 34 of 60 driver samples", None)
TOLD: dict[str, tuple[Callable[[SearchResult], Changes], Changes]] = {
    "better": (lambda _: {}, {}),
    "a slow start": (_slow_start, {}),
    "better, the training stays as it is": (lambda whole: {"changes": whole.changes[1:]}, {"elapsed_s": None}),
    "better, and the same training beside it": (lambda _: {"same_training_confirmed": BESIDE}, {}),
    "applied already": (lambda _: {"why_no_gpu": "no NVIDIA driver was found"}, {"applied": True, "details": True}),
    "by utilization": (lambda _: {"objective": "utilization", "gain_of_ten_minutes": 0.002}, {}),
    "steadier": (_steadier, {}),
    "no change": (lambda whole: _not_better(whole, score_ratio=ALIKE), {}),
    "no change, undecided": (lambda whole: _not_better(whole, score_ratio=ANYTHING), {}),
    "no change, it broke": (lambda whole: _not_better(whole, validation=BROKE), {}),
    "no change yet": (lambda whole: _not_better(whole, speedup=None, verdict=Verdict.NOT_CONFIRMED), {}),
    "no change, nothing is faster": (lambda whole: _not_better(whole, candidate=None, speedup=None, changes=()), {}),
    "no baseline": (lambda _: NO_BASELINE, {}),
    "what changes are worth": (_grouped, {}),
    "nothing is known of a change": (lambda whole: {"changes": _grouped(whole)["changes"][2:3]}, {}),
    "long keys": (_long_keys, {"width": 160}),
    "long keys, 80 columns": (_long_keys, {"width": 80}),
    "stages of a pipeline": (_stages, {"details": True}),
    "ranks": (_ranks, {"details": True}),
    "one GPU": (_one_gpu, {}),
    "one GPU, fast stalls": (_stalls_faster_than_the_driver_looks, {"details": True}),
    "one GPU, not enough yet": (lambda whole: {"baseline": on_gpus(whole.baseline, FEW)}, {}),
    "two GPUs": (_two_gpus, {"details": True}),
    "GPUs of four ranks": (_gpus_of_ranks, {}),
    "GPUs of four ranks, details": (_gpus_of_ranks, {"details": True}),
    "GPUs of data and model": (_gpus_by_role, {"details": True}),
    "validated": (_validated, {}),
    "caution": (lambda _: {"cautions": ("another process used the GPU for " + "a very long time, " * 15,)}, {}),
    "brackets": (_brackets, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", TOLD)
def test_the_screen_says_what_was_found_and_what_to_do_next(search_result: MakeResult, name: str) -> None:
    """As in its file, which is written anew where WRITE_SCREENS is set: then read what changed."""
    changes, options = TOLD[name]
    screen = _screen(search_result(**changes(search_result())), **options)
    file = SCREENS / f"{name}.txt"
    if os.environ.get("WRITE_SCREENS"):
        file.write_text(screen, encoding="utf-8")
    assert screen == file.read_text(encoding="utf-8")
    assert screen.isprintable() or all(character.isprintable() or character == "\n" for character in screen)


def test_every_screen_is_one_of_an_answer() -> None:
    """No file is left of one that nobody sees any more."""
    assert {path.stem for path in SCREENS.iterdir()} == {*TOLD, "failures"}


def test_failures_are_named_counted_and_quoted(search_result: MakeResult, trial_ended: MakeEnded) -> None:
    """Each with its ending, last output, remedy, and folder of logs; brackets in them are no formatting."""

    def failure(ending: Ending, detail: str, stderr: str) -> Failed:
        fields = {"ending": ending, "validity": Validity.UNMEASURED, "measurement": None, "detail": detail}
        return Failed(record=trial_ended(**fields).trial, stderr_tail=stderr, folder=Path("/trials/7"))

    said = "\n".join(f"line {number}" for number in range(20))
    failures = [failure(Ending.CRASHED, "KeyError: '[bold]'", said), failure(Ending.DIVERGED, "", "")]
    screen = _screen(replace(search_result(), outcomes={"crashed": 3, "stopped": 9}), failures=failures)
    if os.environ.get("WRITE_SCREENS"):
        (SCREENS / "failures.txt").write_text(screen, encoding="utf-8")
    assert screen == (SCREENS / "failures.txt").read_text(encoding="utf-8")
    screen = _screen(replace(search_result(), outcomes={"crashed": 9, "stopped": 3}), failures=failures)
    assert screen.lstrip().startswith("9 trials crashed: "), "what most trials failed by comes first"
    assert screen.index("diverged: ") > screen.index("Better: ")


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ({"config": "my config.yaml"}, "autotune apply --config 'my config.yaml'"),
        ({"config": "a'b.yaml"}, "autotune apply --config 'a'\"'\"'b.yaml'"),
        ({"answer": "4f2a"}, "autotune apply --config config.yaml --answer 4f2a"),
        ({"storage": "sqlite:s.db"}, "autotune apply --config c.yaml --state-dir state --storage sqlite:s.db"),
        ({"storage": "sqlite:s.db", "applied": True}, "autotune revert --config c.yaml --state-dir state"),
    ],
)
def test_the_next_command_can_be_pasted(search_result: MakeResult, options: Changes, command: str) -> None:
    """It is quoted for a shell, and for the same study; `revert` takes no storage."""
    whole = search_result()
    if storage := options.pop("storage", None):
        options["typed"] = TypedOptions(config=Path("c.yaml"), state_dir=Path("state"), storage=storage)
    assert _screen(replace(whole, changes=whole.changes[1:]), **options).rstrip().endswith(command)
