"""Check of a record against what workers have announced: what is missing, what is there twice, what goes on."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from autotune.clock import SystemClock
from autotune.records import Purpose, TrialRecord
from autotune.search.problem import Problem
from autotune.study.claims import CLAIM, LeaseWatch
from autotune.study.optuna_trials import RECORD, OptunaTrials, record_of
from autotune.study.pending import PendingTrials
from scripts.bench.workers.worker_process import key_of


@dataclass(frozen=True, kw_only=True)
class KeptTrials:
    """What a record holds, beside what was announced.

    Attributes:
        announced: Number of trials that were announced.
        missing: Of these, those that neither the record has nor a file of trials that wait for it.
        waiting: Of these, those that wait in a file of their worker, which the next search of its machine writes.
        repeated: Of these, those that it has more than once.
        unannounced: Trials that are in it and were not announced: their worker was gone before it could.
        same_uuid: Finished trials of a UUID that another one has.
        same_point: Exploring trials of a point that another one has explored.
        interrupted: Trials that were begun and have no result.
        running: Trials that go on, as it says.
        late: Results that came after their claim had lapsed.
    """

    announced: int
    missing: int
    waiting: int
    repeated: int
    unannounced: int
    same_uuid: int
    same_point: int
    interrupted: int
    running: int
    late: int

    @property
    def is_whole(self) -> bool:
        """Whether each trial that was announced is there once, none waits, and no UUID is there twice."""
        return not (self.missing or self.waiting or self.repeated or self.same_uuid)


def kept_trials(problem: Problem, workers: Iterable[Problem], announced: Iterable[str]) -> KeptTrials:
    """Read a record as it stands in its storage, and compare.

    Args:
        problem: What was searched.
        workers: The same as each worker has opened it, with a state folder of its own.
        announced: Keys of the trials that were announced, see `key_of`.

    Raises:
        StudyError: It cannot be read.
    """
    leases = LeaseWatch(SystemClock(), lambda _claim: False)
    trials = OptunaTrials(problem.study, problem.storage, leases, reads_only=True)
    found = [trial for _, trial in trials.found()]
    trials.connection.close()
    finished = [trial for trial in found if RECORD in trial.user_attrs and trial.state.is_finished()]
    records: list[TrialRecord] = [record_of(trial.number, trial.user_attrs[RECORD]) for trial in finished]
    there, told = Counter(map(key_of, records)), set(announced)
    waiting = {
        key_of(record_of(0, one.attributes[RECORD]))
        for worker in workers
        for one in PendingTrials(worker.state.pending(worker.study), worker.storage.where(worker.study)).trials
    }
    claims = [trial.user_attrs.get(CLAIM, {}) for trial in finished]
    explored = Counter(record.point for record in records if record.purpose is Purpose.EXPLORE)
    return KeptTrials(
        announced=len(told),
        missing=sum(key not in there and key not in waiting for key in told),
        waiting=sum(key not in there and key in waiting for key in told),
        repeated=sum(there[key] > 1 for key in told),
        unannounced=sum(key not in told for key in there),
        same_uuid=_more_than_once(Counter(claim.get("uuid") for claim in claims)),
        same_point=_more_than_once(explored),
        interrupted=sum(trial.state.is_finished() and RECORD not in trial.user_attrs for trial in found),
        running=sum(not trial.state.is_finished() for trial in found),
        late=sum("late_of" in claim for claim in claims),
    )


def _more_than_once(counted: Counter[str]) -> int:
    return sum(counted.values()) - len(counted)
