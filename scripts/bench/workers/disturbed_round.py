"""Round in which workers go: one is killed, one frozen for a while, one told to leave, the others go on."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.clock import Clock
from scripts.bench.workers.fleet import Fleet
from scripts.bench.workers.kept_trials import KeptTrials, kept_trials
from scripts.bench.workers.throughput import START_S
from scripts.bench.workers.worker_process import WorkerJob

KILLED, FROZEN, TOLD = 0, 1, 2
"""Numbers of the workers that are killed, frozen, and told to leave."""

LEAST_WORKERS = 4
"""One has to go on."""

_APART_S = (0.37, 0.59, 0.83)  # so that none of them comes always at the same moment of a trial
_THAWED_S = 60.0  # for what a worker makes of it that it was frozen
_TRIALS_THEREAFTER = 3


@dataclass(frozen=True, kw_only=True)
class DisturbedRound:
    """End of one such round.

    Attributes:
        kept: What the record holds in the end.
        remarks: Remarks of the workers, each with the number of its worker.
        went_on: Number of trials that the thawed worker has announced after that.
        codes: Exit codes of the one that was told to leave, and of those that were told so in the end.
    """

    kept: KeptTrials
    remarks: tuple[str, ...]
    went_on: int
    codes: tuple[int | None, ...]


def disturbed_round(clock: Clock, jobs: Sequence[WorkerJob], judge: WorkerJob, *, frozen_s: float) -> DisturbedRound:
    """Make one round.

    Args:
        clock: The machine's clock.
        jobs: At least `LEAST_WORKERS` workers.
        judge: Opens the study to read it.
        frozen_s: Time for which one of them is frozen.

    Raises:
        TrialError: They do not begin, or the thawed one does not go on.
        StudyError: The storage cannot be used.
    """
    with Fleet(clock, jobs) as fleet:
        fleet.wait_until(lambda announced: all(announced), START_S, "the end of the first trial of each")
        fleet.wait(_APART_S[0])
        fleet.kill(KILLED)
        fleet.wait(_APART_S[1])
        fleet.freeze(FROZEN)
        before = len(fleet.announced()[FROZEN])
        fleet.wait(_APART_S[2])
        codes = fleet.tell_to_leave([TOLD])
        fleet.wait(frozen_s)
        fleet.thaw(FROZEN)
        fleet.wait_until(
            lambda announced: len(announced[FROZEN]) >= before + _TRIALS_THEREAFTER or FROZEN not in fleet.alive(),
            _THAWED_S,
            f"{_TRIALS_THEREAFTER} trials of the one that was frozen",
        )
        codes += fleet.tell_to_leave(fleet.alive())
        announced = fleet.announced()
    return DisturbedRound(
        kept=kept_trials(
            judge.problem(), (job.problem() for job in jobs), (one.key for some in announced for one in some)
        ),
        remarks=tuple(remark for job in jobs for remark in job.remarks()),
        went_on=len(announced[FROZEN]) - before,
        codes=tuple(codes),
    )
