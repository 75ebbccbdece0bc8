"""Check of what trials train on: each is compared with those of today's config, in the same search."""

from autotune.measure.data import TrialData, compare_data
from autotune.records import NOT_COMPARED, DataFinding, Purpose, TrialRecord

_MOST = 8  # trials of today's config


class DataCheck:
    """What trials of today's config were seen to train on, and how others compare with that.

    Args:
        baseline: Name of today's point.
    """

    def __init__(self, baseline: str) -> None:
        self._baseline = baseline
        self._known: dict[str, list[TrialData]] = {}  # by point

    def learn(self, record: TrialRecord, data: TrialData) -> None:
        """Take the data of one more trial: those of today's config are what others are compared with."""
        known = self._known.setdefault(record.point, [])
        if record.comparable and len(known) < (_MOST if record.point == self._baseline else 1):
            known.append(data)

    def finding(self, point: str, purpose: Purpose, data: TrialData, *, may_freeze: bool = False) -> DataFinding | None:
        """Return how the data of a trial compare with today's; None for today's own, and where nothing can be said.

        Args:
            may_freeze: Whether samples may be kept from one pass to the next, see `compare_data`.
        """
        is_other = point != self._baseline and (purpose not in NOT_COMPARED or purpose is Purpose.VALIDATE)
        today = self._known.get(self._baseline)
        if not is_other or not today:
            return None
        return compare_data(today, data, self._known.get(point, ()), may_freeze=may_freeze)
