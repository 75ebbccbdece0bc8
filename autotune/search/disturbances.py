"""Disturbed trials: how often they are made again, and what is said of it in the end."""

from collections.abc import Sequence

from autotune.records import TrialRecord, Validity

MOST_REPEATS = 2
"""Of one trial. What is still disturbed then is the best there is."""

MOST_IN_A_SEARCH = 10
"""On a machine that others share all the time, repeats help nobody."""

_WHAT = {
    Validity.CONTAMINATED: "others used the GPU",
    Validity.THROTTLED: "the GPU's clocks were held down",
}


class Disturbances:
    """Repetitions of disturbed trials in one search."""

    def __init__(self) -> None:
        self._repeats = 0
        self._accepted: list[tuple[Validity, str]] = []

    def may_repeat(self, tries: int) -> bool:
        """Return True if a trial may be made again that was made so often, this time included."""
        return tries <= MOST_REPEATS and self._repeats < MOST_IN_A_SEARCH

    def repeated(self) -> None:
        """Note that a trial is made again."""
        self._repeats += 1

    def accepted(self, how: Validity, detail: str) -> None:
        """Note that a disturbed trial counts all the same.

        Args:
            how: One of `records.DISTURBED`.
            detail: What it was, for people.
        """
        self._accepted.append((how, detail))

    def cautions(self, trials: Sequence[TrialRecord]) -> tuple[str, ...]:
        """Return what could not be excluded, a sentence for each sort of disturbance.

        Args:
            trials: All trials of the search.
        """
        counting = sum(trial.comparable is not None for trial in trials)
        sentences = []
        for how, what in _WHAT.items():
            details = [detail for kind, detail in self._accepted if kind is how]
            if details:
                sentences.append(
                    f"During {len(details)} of the {counting} trials that count {what}, however often they were made; "
                    f"what that did to their numbers is not known (the last of them: {details[-1]})."
                )
        return tuple(sentences)
