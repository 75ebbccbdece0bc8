"""What the end of a run is called."""

import math

import pytest

from autotune.records import Ending, Stop, TraineeEvent, TrialExit
from autotune.trial.outcome import EXPLANATIONS, ending_of, last_error


def ended(
    exit_code: int | None = 0, stop: Stop | None = None, stderr: str = "", oom: bool | None = False, **more: object
) -> TrialExit:
    """An end with this evidence."""
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
        (Stop.DIVERGED, Ending.DIVERGED),
        (Stop.HUNG, Ending.HUNG),
        (Stop.NEVER_STARTED, Ending.NEVER_STARTED),
        (Stop.DEADLINE, Ending.KILLED_BY_BUDGET),
        (Stop.GUARD_LOST, Ending.INTERRUPTED),
        (Stop.ENOUGH, Ending.STOPPED),
    ],
)
def test_a_stopped_run_is_called_after_who_stopped_it(stop: Stop, ending: Ending) -> None:
    """What the dying trainer said or returned means nothing then."""
    exit_ = ended(-9, stop, raised("RuntimeError: CUDA out of memory"), oom=True)
    assert ending_of(exit_, steps(0.5))[0] is ending


def test_every_stop_and_every_ending_is_known() -> None:
    """None is missing in the tables."""
    for stop in Stop:
        ending_of(ended(None, stop), [])
    assert set(EXPLANATIONS) == set(Ending)
    assert all(about.sentence.endswith(".") and about.remedy.endswith(".") for about in EXPLANATIONS.values())


def test_a_good_end() -> None:
    """Status 0 and steps; errors on stderr prove nothing."""
    exit_ = ended(0, stderr=raised("RuntimeError: CUDA out of memory"))
    assert ending_of(exit_, steps(0.5, None)) == (Ending.COMPLETED, "")


def test_a_good_end_without_steps() -> None:
    """A header alone is no step."""
    start = TraineeEvent(kind="start", t_s=0.0, stream="1.0")
    assert ending_of(ended(0), [start])[0] is Ending.NO_STEPS


@pytest.mark.parametrize("code", [-9, 137, 1])
def test_the_kernels_counter_names_a_failure(code: int) -> None:
    """Out of host memory: the trainer itself, behind a shell, or a worker whose loss fails the loop."""
    assert ending_of(ended(code, oom=True), steps(0.5))[0] is Ending.OUT_OF_HOST_MEMORY


def test_the_kernels_counter_alone_is_no_failure() -> None:
    """Another process of the same group may have been killed."""
    assert ending_of(ended(0, oom=True), steps(0.5))[0] is Ending.COMPLETED


@pytest.mark.parametrize(("oom", "detail"), [(False, "killed by SIGKILL"), (None, "perhaps by the kernel")])
def test_a_kill_without_the_counter_is_a_crash(oom: bool | None, detail: str) -> None:
    """Where the counter is not readable, the suspicion is said."""
    ending, said = ending_of(ended(-9, oom=oom), steps(0.5))
    assert ending is Ending.CRASHED
    assert detail in said


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
        ("", Ending.CRASHED),
    ],
)
def test_a_failure_is_called_after_its_last_exception(stderr: str, ending: Ending) -> None:
    """Out of which memory, or just a crash; what was caught before does not count."""
    assert ending_of(ended(1, stderr=stderr), steps(0.5))[0] is ending


@pytest.mark.parametrize("text", ["direct cause of the following exception:", "another exception occurred:"])
def test_the_cause_of_an_exception_counts(text: str) -> None:
    """A trainer that wraps an out-of-memory error in one of its own is out of memory."""
    lead = "The above exception was the" if "direct" in text else "During handling of the above exception,"
    stderr = (
        raised("RuntimeError: CUDA out of memory.") + f"\n{lead} {text}\n\n" + raised("TrainError: step 7 failed")[8:]
    )
    ending, detail = ending_of(ended(1, stderr=stderr), steps(0.5))
    assert ending is Ending.OUT_OF_GPU_MEMORY
    assert detail == "TrainError: step 7 failed RuntimeError: CUDA out of memory."


def test_an_error_of_a_rank_is_read() -> None:
    """The rank that torchrun puts before each line does not hide it."""
    stderr = "".join(f"[rank0]: {line}\n" for line in raised("KeyError: 'x'").splitlines())
    assert last_error(stderr) == "KeyError: 'x'"


def test_a_traceback_whose_start_is_lost_is_read() -> None:
    """Of a long one only the end is kept."""
    assert last_error('  File "t.py", line 3\n    f()\nValueError: no\nbye\n') == "ValueError: no"


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ((0.5, math.nan), True),
        ((0.5, math.inf, math.inf, 0.4), False),
        ((math.inf, math.inf, 0.4), True),
        ((0.5, math.nan, 0.4), False),
        ((0.5, -math.inf, None), True),
        ((None, None), False),
    ],
)
@pytest.mark.parametrize("exit_", [ended(0), ended(-15, Stop.ENOUGH)], ids=["ended", "stopped"])
def test_losses_that_stop_being_numbers_are_a_divergence(
    losses: tuple[float | None, ...], diverged: bool, exit_: TrialExit
) -> None:
    """If the last one, or most of them, are none; a single bad batch is not."""
    assert (ending_of(exit_, steps(*losses))[0] is Ending.DIVERGED) is diverged


def test_a_trainer_that_gives_up_on_nan_has_diverged() -> None:
    """Its own exception is in the detail."""
    ending, detail = ending_of(ended(1, stderr=raised("ValueError: loss is nan")), steps(0.5, math.nan))
    assert ending is Ending.DIVERGED
    assert "ValueError: loss is nan" in detail


def test_memory_comes_before_divergence() -> None:
    """The loss became inf because memory ran out."""
    exit_ = ended(1, stderr=raised("RuntimeError: CUDA out of memory."))
    assert ending_of(exit_, steps(math.inf))[0] is Ending.OUT_OF_GPU_MEMORY


def test_a_crash_says_status_and_exception() -> None:
    """Also after many steps: whether they count is decided elsewhere."""
    exit_ = ended(1, stderr=raised("ValueError: Found array with 0 sample(s)"))
    assert ending_of(exit_, steps(*[0.5] * 50)) == (
        Ending.CRASHED,
        "exit status 1: ValueError: Found array with 0 sample(s)",
    )


@pytest.mark.parametrize(
    ("code", "said"), [(-11, "killed by SIGSEGV"), (-40, "killed by signal 40"), (7, "exit status 7")]
)
def test_a_crash_without_words_says_its_status(code: int, said: str) -> None:
    """Signals by name, where they have one."""
    assert ending_of(ended(code), []) == (Ending.CRASHED, said)


def test_a_status_that_could_not_be_learned() -> None:
    """Not a success, not a crash."""
    ending, detail = ending_of(ended(None, left_pids=(12, 13)), steps(0.5))
    assert ending is Ending.INTERRUPTED
    assert "12, 13" in detail


def test_the_detail_is_one_short_harmless_line() -> None:
    """Escape sequences of a trainer do not reach the terminal, and a long message is cut."""
    stderr = raised("ValueError: \x1b]0;owned\x07\x1b[31m" + "x" * 500, "second line")
    detail = ending_of(ended(1, stderr=stderr), [])[1]
    assert len(detail) == 200
    assert detail.isprintable()
