"""Feasibility: points that are predicted to fail before they are tried."""

from dataclasses import replace
from typing import Any

from autotune.records import Ending, Gpu, Machine
from autotune.sampler.feasibility import Feasibility, MemoryHint
from autotune.sampler.observations import Observation
from autotune.space.knob import Label
from autotune.space.space import Space
from tests.runs import knob, named, observation

GIB = 2**30
BATCH = knob("batch", 8, 16, 32, 64, 128, kind="batch_size", label=Label.BATCH)
PRECISION = knob("precision", "float32", "mixed_float16", kind="precision")
SPACE = Space(knobs=(BATCH, PRECISION, knob("workers", 1, 2, kind="workers"), knob("flag", False, True)))
MACHINE = Machine(
    cpu_cores=8, cpu_model="x", memory_bytes=32 * GIB, gpus=(Gpu(name="x", uuid="GPU-1", memory_bytes=24 * GIB),)
)


def _why_not(*observations: Observation, **point: Any) -> str | None:
    feasible = Feasibility(SPACE, named(observation(SPACE, 0.0), *observations), MACHINE, memory_margin=0.08)
    return feasible.why_not({**SPACE.baseline, **point})


def _out_of_gpu_memory(**point: Any) -> Observation:
    return observation(SPACE, endings=(Ending.OUT_OF_GPU_MEMORY,), **point)


def _used(gpu_gib: float, **point: Any) -> Observation:
    return observation(SPACE, 0.1, memory={"gpu_memory_bytes": int(gpu_gib * GIB)}, **point)


def test_out_of_memory_rules_out_larger_batches_of_the_same_precision() -> None:
    """A point is ruled out if one with lower needs failed; at half the precision it needs less and may run."""
    failed = _out_of_gpu_memory(batch=32)
    assert _why_not(failed, batch=64) == "batch: 32 failed: out of GPU memory"
    assert _why_not(failed, batch=64, workers=2) is not None
    assert _why_not(failed, batch=16) is None
    assert _why_not(failed, batch=64, precision="mixed_float16") is None


def test_host_memory_grows_with_the_batch_and_with_what_is_prepared_ahead() -> None:
    """Out of host memory with two workers says nothing about one worker, nor about another flag; but about more."""
    failed = observation(SPACE, endings=(Ending.OUT_OF_HOST_MEMORY,), batch=32, workers=2)
    assert _why_not(failed, batch=64, workers=2) == "batch: 32 with workers: 2 failed: out of host memory"
    assert _why_not(failed, batch=64) is None
    assert _why_not(failed, batch=64, workers=2, flag=True) is None
    assert _why_not(observation(SPACE, endings=(Ending.OUT_OF_HOST_MEMORY,), batch=32), batch=32, workers=2) is not None


def test_one_out_of_memory_among_good_runs_rules_nothing_out() -> None:
    """A point that has worked, and failed once because someone else was on the GPU, is no proof."""
    assert _why_not(observation(SPACE, 0.2, endings=(Ending.OUT_OF_GPU_MEMORY,), batch=16), batch=32) is None


def test_out_of_memory_at_a_batch_that_works_rules_nothing_else_out() -> None:
    """Today's batch runs: it was something else of that point that took the memory."""
    assert _why_not(_out_of_gpu_memory(workers=2), batch=32) is None


def test_the_edge_is_predicted_from_smaller_batches() -> None:
    """6 GiB at 8 and 9 GiB at 16 make 15 at 32 and 27 at 64, which 24 GiB do not hold."""
    seen = _used(gpu_gib=6, batch=8), _used(gpu_gib=9, batch=16)
    assert _why_not(*seen, batch=32) is None
    assert _why_not(*seen, batch=64) == "a batch of 64 would need about 27.0 GiB of GPU memory"
    assert _why_not(*seen, batch=64, precision="mixed_float16") is None


def test_a_framework_that_takes_all_memory_at_once_tells_nothing() -> None:
    """The same full memory at every batch is no sign of an edge."""
    assert _why_not(_used(gpu_gib=23.5, batch=8), _used(gpu_gib=23.5, batch=16), batch=128) is None


def test_the_edge_is_that_of_the_card_that_runs_fill() -> None:
    """A smaller card beside it that the trainer does not use limits nothing."""
    cards = (
        Gpu(name="A10", uuid="GPU-0", memory_bytes=8 * GIB),
        Gpu(name="H200", uuid="GPU-1", memory_bytes=140 * GIB),
    )
    large = {"gpu_memory_total_bytes": 140 * GIB}
    seen = [
        observation(SPACE, 0.1, memory={"gpu_memory_bytes": gib * GIB, **large}, batch=batch)
        for batch, gib in ((8, 4), (16, 7), (32, 13))
    ]
    feasible = Feasibility(SPACE, named(*seen), replace(MACHINE, gpus=cards), memory_margin=0.08)
    assert feasible.why_not({**SPACE.baseline, "batch": 64}) is None


def test_what_ran_out_of_memory_elsewhere_is_a_doubt_and_no_verdict() -> None:
    """As large a batch may run, but is doubtful; it no longer is once one as large has run here."""
    hint = MemoryHint(values={**SPACE.baseline, "batch": 48}, ending=Ending.OUT_OF_GPU_MEMORY)

    def doubtful(*observations: Observation, **point: Any) -> bool:
        known = named(observation(SPACE, 0.0), *observations)
        feasible = Feasibility(SPACE, known, MACHINE, memory_margin=0.08, hints=[hint])
        assert feasible.why_not({**SPACE.baseline, **point}) is None
        return feasible.is_doubtful({**SPACE.baseline, **point})

    assert doubtful(batch=64)
    assert not doubtful(batch=32)
    assert not doubtful(batch=64, precision="mixed_float16")
    assert not doubtful(observation(SPACE, 0.3, batch=64), batch=128)


def test_the_margin_stays_free() -> None:
    """A point that would fit but for less than the margin is ruled out: 22.5 of 24 GiB."""
    seen = _used(gpu_gib=6, batch=8), _used(gpu_gib=11.5, batch=16)
    assert _why_not(*seen, batch=32) == "a batch of 32 would need about 22.5 GiB of GPU memory"
