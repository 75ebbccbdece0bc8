"""Endings of trials, derived from the evidence; losses compared with the baseline's; milestones of a training."""

import math
from collections.abc import Iterable
from itertools import accumulate

import pytest

from autotune.records import Ending, Stop, TraineeEvent, TrialExit
from autotune.trial.outcome import FAR, MILESTONES, Losses, Milestones, TrialEvidence, compare_losses, ending_of


def ended(
    exit_code: int | None = 0, stop: Stop | None = None, stderr: str = "", oom: bool | None = False, **more: object
) -> TrialExit:
    """Exit of a trial with this evidence."""
    return TrialExit(
        started_s=0.0, ended_s=9.0, exit_code=exit_code, stop=stop, stderr_tail=stderr, oom_killed=oom, **more
    )


def steps(*losses: float | None) -> list[TraineeEvent]:
    """Steps with these losses."""
    return [TraineeEvent(kind="step", t_s=float(i), stream="1.0", loss=loss) for i, loss in enumerate(losses)]


def raised(*lines: str) -> str:
    """A traceback that ends with these lines."""
    return "\n".join(
        ["Epoch 1", "Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    f()", *lines, ""]
    )


TF_GPU = raised(
    "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:",
    "",
    "Detected at node Relu defined at (most recent call last):",
    *(f'  File "model.py", line {n}, in call' for n in range(40)),
    "OOM when allocating tensor with shape[64,512] on /job:localhost/device:GPU:0 by allocator GPU_0_bfc [Op:Relu]",
)


@pytest.mark.parametrize(
    ("stop", "ending"),
    [
        (Stop.GPU_LOST, Ending.GPU_LOST),
        (Stop.HUNG, Ending.HUNG),
        (Stop.NEVER_STARTED, Ending.NEVER_STARTED),
        (Stop.UNCOUNTED, Ending.UNCOUNTED),
        (Stop.DEADLINE, Ending.KILLED_BY_BUDGET),
        (Stop.GUARD_LOST, Ending.INTERRUPTED),
        (Stop.ENOUGH, Ending.STOPPED),
    ],
)
def test_a_stopped_trial_is_called_after_who_stopped_it(stop: Stop, ending: Ending) -> None:
    """Output and exit status of the dying trainer are ignored then."""
    exit_ = ended(-9, stop, raised("RuntimeError: CUDA out of memory"), oom=True)
    assert ending_of(exit_, steps(0.5))[0] is ending


def test_steps_that_cannot_be_measured_are_told_with_the_reason() -> None:
    """Their number is said, and what stood between them."""
    pauses = [TraineeEvent(kind=kind, t_s=1.0, stream="1.0") for kind in ("eval", "eval", "checkpoint")]
    assert ending_of(ended(-9, Stop.UNCOUNTED), [*steps(0.5, None, 0.4), *pauses])[1] == (
        "no steps could be counted: of 3, none is free of pauses (1 x checkpoint, 2 x eval)"
    )


def test_a_good_end_without_steps() -> None:
    """A header alone is no step; without one there was nobody who could have seen steps."""
    start = TraineeEvent(kind="start", t_s=0.0, stream="1.0")
    assert ending_of(ended(0), [start])[0] is Ending.NO_STEPS
    assert ending_of(ended(0), [])[0] is Ending.OBSERVER_MISSING
    assert ending_of(ended(-9, Stop.NEVER_STARTED), [start])[0] is Ending.NEVER_STARTED
    assert ending_of(ended(-9, Stop.NEVER_STARTED), [])[0] is Ending.OBSERVER_MISSING


@pytest.mark.parametrize("code", [-9, 137, 1])
def test_the_kernels_counter_names_a_failure(code: int) -> None:
    """Out of host memory: the trainer itself, behind a shell, or a worker whose loss fails the loop."""
    assert ending_of(ended(code, oom=True), steps(0.5))[0] is Ending.OUT_OF_HOST_MEMORY


def test_a_kill_without_the_counter_is_a_crash() -> None:
    """If the counter is not readable, the suspicion is said."""
    ending, said = ending_of(ended(-9, oom=None), steps(0.5))
    assert ending is Ending.CRASHED
    assert "the kernel may have, when memory ran out" in said
    ending, said = ending_of(ended(-9, oom=False), steps(0.5), TrialEvidence(must_last=True))
    assert ending is Ending.CRASHED
    assert "a separate memory limit, e.g. a container's, cannot be seen from here" in said


@pytest.mark.parametrize("code", [-15, 143, -2, 130, -1, -9, 137])
def test_a_signal_of_somebody_else_is_an_interruption(code: int) -> None:
    """It says nothing of the values; of a kill it is said that another memory limit could have sent it."""
    ending, said = ending_of(ended(code, oom=False), steps(0.5))
    assert ending is Ending.INTERRUPTED
    assert "which autotune did not send" in said
    assert ("memory limit" in said) is (code in (-9, 137))


@pytest.mark.parametrize(
    ("stderr", "ending"),
    [
        (TF_GPU, Ending.OUT_OF_GPU_MEMORY),
        (TF_GPU.replace("GPU_0_bfc", "cpu"), Ending.OUT_OF_HOST_MEMORY),
        (TF_GPU.replace("GPU_0_bfc", "mklcpu"), Ending.OUT_OF_HOST_MEMORY),
        (raised("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"), Ending.OUT_OF_GPU_MEMORY),
        (raised("RuntimeError: CUDA out of memory."), Ending.OUT_OF_GPU_MEMORY),
        (raised("x.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"), Ending.OUT_OF_GPU_MEMORY),
        (raised("x.InternalError: CUDA_ERROR_OUT_OF_MEMORY: out of memory"), Ending.OUT_OF_GPU_MEMORY),
        (raised("MemoryError"), Ending.OUT_OF_HOST_MEMORY),
        (raised("numpy._core._exceptions._ArrayMemoryError: Unable to allocate"), Ending.OUT_OF_HOST_MEMORY),
        (raised("OSError: [Errno 12] Cannot allocate memory"), Ending.OUT_OF_HOST_MEMORY),
        ("terminate called\n  what():  std::bad_alloc\n", Ending.OUT_OF_HOST_MEMORY),
        ("F0000 gpu.cc:12] failed: CUDA_ERROR_OUT_OF_MEMORY\n", Ending.OUT_OF_GPU_MEMORY),
        (raised("ValueError: the batch was not exhausted"), Ending.CRASHED),
        (raised("MemoryError") + "recovered\n" + raised("KeyError: 'x'"), Ending.CRASHED),
        ("W gpu.cc: CUDA_ERROR_OUT_OF_MEMORY, trying less\n" + raised("KeyError: 'x'"), Ending.CRASHED),
        (
            "E RESOURCE_EXHAUSTED: OOM when allocating tensor by allocator GPU_0_bfc\nexiting\n",
            Ending.OUT_OF_GPU_MEMORY,
        ),
        (raised("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "), Ending.OUT_OF_HOST_MEMORY),
        (
            raised("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. "),
            Ending.OUT_OF_SHARED_MEMORY,
        ),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory.\n"
            + raised("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly"),
            Ending.OUT_OF_SHARED_MEMORY,
        ),
        (
            raised("RuntimeError: unable to write to file </torch_18_1>: No space left (28)"),
            Ending.OUT_OF_SHARED_MEMORY,
        ),
        ("train.py FAILED\n  exitcode  : -7 (pid: 12)\n", Ending.OUT_OF_SHARED_MEMORY),
        ("train.py FAILED\n  exitcode  : -9 (pid: 12)\n", Ending.OUT_OF_HOST_MEMORY),
        ("", Ending.CRASHED),
    ],
)
def test_a_failure_is_called_after_its_last_exception(stderr: str, ending: Ending) -> None:
    """Out of which memory, or just a crash; what was caught before does not count."""
    assert ending_of(ended(1, stderr=stderr), steps(0.5))[0] is ending


@pytest.mark.parametrize(("last", "diverged"), [(math.nan, True), (-math.inf, True), (0.4, False), (None, False)])
@pytest.mark.parametrize("exit_", [ended(0), ended(-15, Stop.ENOUGH)], ids=["ended", "stopped"])
def test_losses_that_stop_being_numbers_are_a_divergence(last: float | None, diverged: bool, exit_: TrialExit) -> None:
    """However the trial ended; which losses count as none is `Losses`' to say."""
    assert (ending_of(exit_, steps(0.5, last))[0] is Ending.DIVERGED) is diverged


@pytest.mark.parametrize(
    "error", ["tf.errors.InternalError: Failed to create cuDNN handle", "RuntimeError: CUDNN_STATUS_INTERNAL_ERROR"]
)
def test_an_error_for_want_of_a_workspace_needs_a_full_gpu(error: str) -> None:
    """Libraries that cannot allocate memory report other errors; the driver's reading decides."""
    exit_ = ended(1, stderr=raised(error))
    assert ending_of(exit_, steps(0.5))[0] is Ending.CRASHED
    assert ending_of(exit_, steps(0.5), TrialEvidence(gpu_memory_full=lambda: True))[0] is Ending.OUT_OF_GPU_MEMORY


SWALLOWED = "epoch 1\n| WARNING: ran out of memory with exception: CUDA out of memory. Tried to allocate 2 GiB\n"


def at(*lengths_s: float) -> list[TraineeEvent]:
    """Steps of these lengths."""
    ends_s = accumulate(lengths_s, initial=1.0)
    return [TraineeEvent(kind="step", t_s=end_s, stream="1.0") for end_s in ends_s]


@pytest.mark.parametrize("stop", [None, Stop.ENOUGH, Stop.HOPELESS, Stop.DIVERGED])
@pytest.mark.parametrize("where", ["stderr", "stdout"])
def test_memory_that_ran_out_and_was_caught_is_found_by_the_loss(stop: Stop | None, where: str) -> None:
    """The loss is infinite and the trainer said why, on either stream: it did not diverge."""
    exit_ = ended(-15 if stop else 0, stop, SWALLOWED if where == "stderr" else "")
    evidence = TrialEvidence(stdout_tail=SWALLOWED if where == "stdout" else "")
    ending, detail = ending_of(exit_, steps(0.5, math.inf, math.inf, math.inf), evidence)
    assert ending is Ending.OUT_OF_GPU_MEMORY
    assert detail.startswith("caught, and 3 of 4 reported losses were NaN or infinite: | WARNING: ran out of memory")


def test_memory_that_ran_out_and_was_caught_is_found_by_the_speed() -> None:
    """Without a known loss: steps that are left out cost nothing, in the middle of the trial or in all of it."""
    exit_, slow, fast = ended(-15, Stop.ENOUGH, SWALLOWED), [0.1] * 20, [0.02] * 20
    ending, detail = ending_of(exit_, at(*slow, *fast))
    assert ending is Ending.OUT_OF_GPU_MEMORY
    assert "its steps became 5.0x as fast" in detail
    assert ending_of(exit_, at(*fast, *fast))[0] is Ending.STOPPED
    assert ending_of(exit_, at(*fast, *fast), TrialEvidence(outruns=True))[0] is Ending.OUT_OF_GPU_MEMORY


def test_neither_the_words_nor_the_jump_alone_is_out_of_memory() -> None:
    """An allocator that manages with less prints the words; caches and good points make steps faster."""
    words, jump = ended(-15, Stop.ENOUGH, SWALLOWED), at(*[0.1] * 20, *[0.02] * 20)
    assert ending_of(words, at(*[0.1] * 40))[0] is Ending.STOPPED
    assert ending_of(ended(-15, Stop.ENOUGH), jump, TrialEvidence(outruns=True))[0] is Ending.STOPPED
    harmless = "Allocator (GPU_0_bfc) ran out of memory trying to get 2 GiB. This is not a failure\n"
    assert ending_of(ended(-15, Stop.ENOUGH, harmless), jump)[0] is Ending.STOPPED


def test_the_detail_is_one_short_harmless_line() -> None:
    """Escape sequences of a trainer do not reach the terminal, and a long message is shortened."""
    stderr = raised("ValueError: \x1b]0;owned\x07\x1b[31m" + "x" * 500, "second line")
    detail = ending_of(ended(1, stderr=stderr), [])[1]
    assert len(detail) == 200
    assert detail.isprintable()


@pytest.mark.parametrize("stop", [None, Stop.NEVER_STARTED])
def test_why_no_step_was_seen_is_said(stop: Stop | None) -> None:
    """The observer knows which loops it cannot see: its note, with the remedy, is the detail of the ending."""
    note = TraineeEvent(kind="note", t_s=1.0, stream="1.0", text="a loop inside one tf.function cannot be seen")
    trial_exit = TrialExit(started_s=0.0, ended_s=2.0, exit_code=0 if stop is None else -15, stop=stop)
    ending, detail = ending_of(trial_exit, [note])
    assert ending is (Ending.NO_STEPS if stop is None else Ending.NEVER_STARTED)
    assert detail == note.text


def losses_of(losses: Iterable[float], every: int = 1) -> Losses:
    """Losses of a trial, reported every so many steps."""
    seen = Losses()
    for number, loss in enumerate(losses):
        seen.add((number + 1) * every, loss)
    return seen


BASELINE = losses_of(2.0 * 0.99**n for n in range(100))


@pytest.mark.parametrize(
    ("losses", "far"),
    [
        ([2.0] * 3 + [2.0 * 1.1 * FAR] * 5, True),
        ([2.0] * 3 + [2.0 * 0.9 * FAR] * 5, False),
        ([256.0] * 3 + [2000.0] * 5, False),
        ([2.0] * 10 + [1e9] + [2.0] * 5, False),
        ([2.0] * 3 + [1e9] * 4, False),
        ([-2.0] * 3 + [1e9] * 5, False),
        ([], False),
    ],
    ids=["far", "not far", "a sum over a larger batch", "one bad batch", "too few", "no zero", "none"],
)
def test_far_above(losses: list[float], far: bool) -> None:
    """Many times as high as where it began, while the baseline's never was; less than that is allowed."""
    assert losses_of(losses).are_far_above(BASELINE) is far


def test_a_hill_that_the_baseline_has_too_is_forgiven() -> None:
    """A learning rate that warms up, or a loss whose parts are switched on later."""
    hill = [1.0] * 5 + [50.0] * 20
    assert not losses_of(hill).are_far_above(losses_of(hill))
    assert losses_of(hill).are_far_above(losses_of([1.0] * 40))


@pytest.mark.parametrize(
    ("losses", "none"),
    [
        ((), False),
        ((0.5, math.nan), True),
        ((0.5, math.inf, math.inf, 0.4), False),
        ((math.inf, math.inf, 0.4), True),
        ((0.5, math.nan, 0.4), False),
    ],
)
def test_losses_are_no_numbers_if_the_last_or_most_are_none(losses: tuple[float, ...], none: bool) -> None:
    """A single bad batch is no divergence."""
    seen = Losses()
    for step, loss in enumerate(losses):
        seen.add(step, loss)
    assert seen.are_no_numbers is none


@pytest.mark.parametrize(
    ("before", "own", "far"),
    [
        ((2.3, 0.1), (2.3, 2.2), True),  # it learns nothing
        ((0.0003, 0.00006), (0.002, 0.00086), False),  # both had learnt almost all before the first loss was seen
    ],
)
def test_a_loss_is_far_above_by_what_training_gains(
    before: tuple[float, float], own: tuple[float, float], far: bool
) -> None:
    """Relative to the highest loss that was seen at the beginning, the trial's own included."""
    baseline, trial = (losses_of([first] * 5 + [last] * 60) for first, last in (before, own))
    compared = compare_losses([baseline], trial)
    assert compared is not None
    assert compared.is_far_above is far


def test_the_level_is_that_before_a_step_relative_to_the_beginning() -> None:
    """A loss that halves every 50 steps, at its end and halfway."""
    falling = losses_of(4.0 * 0.5 ** (n / 50) for n in range(200))
    end, half = falling.relative_level(200), falling.relative_level(100)
    assert end.ratio == pytest.approx(0.5 ** (175 / 50), rel=0.05)
    assert half.ratio == pytest.approx(0.5 ** (87 / 50), rel=0.05)
    assert end.error < 0.01


def event(kind: str, t_s: float, *, update: bool = True) -> TraineeEvent:
    """Return an event of the one process."""
    return TraineeEvent(kind=kind, t_s=t_s, stream="1.0", update=update)


def test_a_milestone_is_passed_once_steps_follow_it() -> None:
    """A trainer that dies in its checkpoint has reached it, and has not passed it."""
    passed = Milestones()
    passed.update([event("step", 1.0), *(event(kind, 2.0) for kind in MILESTONES)], 2.5)
    assert not passed.are_passed
    passed.update([event("step", 3.0), event("step", 4.0)], 4.0)
    assert not passed.are_passed
    passed.update([event("step", 5.0)], 5.0)
    assert passed.are_passed
    assert passed.reached == dict.fromkeys(MILESTONES, 1)


def test_times_count_from_the_first_step_to_the_last_look() -> None:
    """Time before the first step is no training; the longest silence is between steps, the last one after."""
    passed = Milestones()
    passed.update([], 50.0)
    assert passed.trained_s == passed.silent_s == 0.0
    passed.update(
        [event("step", 60.0), event("step", 61.0), event("step", 66.0, update=False), event("step", 67.0)], 68.0
    )
    passed.update([], 80.0)
    assert (passed.trained_s, passed.silent_s, passed.longest_silence_s) == (20.0, 13.0, 5.0)
    assert (passed.steps, passed.updates) == (4, 3)
