"""Reasons for verdicts: one sentence for each kind of evidence."""

from dataclasses import replace

import pytest

from autotune.measure.score import Judgement
from autotune.records import Ratio
from autotune.study.summary import Evidence, reason

NOTHING = Evidence(judgement=None, pairs=0, has_candidate=False, explored=False, filling=False, by_utilization=False)
FOUND = replace(NOTHING, has_candidate=True, explored=True)
UNCLEAR = Judgement(
    speed=Ratio(ratio=1.02, low=0.97, high=1.08),
    score=Ratio(ratio=1.02, low=0.97, high=1.08),
    better=False,
    smallest_gain=0.07,
    pairs=5,
)
BUSIER = replace(UNCLEAR, score=Ratio(ratio=1.3, low=1.2, high=1.4))


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (NOTHING, "nothing but today's values was tried: there was no time, or nothing else promised a gain"),
        (
            replace(NOTHING, explored=True),
            "nothing that was tried is faster than today's values, beyond what trials differ by",
        ),
        (replace(NOTHING, explored=True, by_utilization=True), "nothing that was tried keeps the GPU busier"),
        (FOUND, "the best point was not confirmed against today's config"),
        (replace(FOUND, pairs=2), "only 2 of at least"),
        (replace(FOUND, judgement=replace(UNCLEAR, better=True)), "confirmed by 5 interleaved pairs"),
        (replace(FOUND, judgement=replace(UNCLEAR, left_out=2)), "(2 of 5 pairs left out: something made a trial far"),
        (replace(FOUND, judgement=replace(UNCLEAR, better=True), filling=True), "caches take longer to fill"),
        (replace(FOUND, judgement=UNCLEAR), "do not show a gain; one of 7% or more would probably have been seen"),
        (replace(FOUND, judgement=UNCLEAR, filling=True), "it may be from 0.97x to 1.08x as fast"),
        (
            replace(FOUND, judgement=BUSIER, by_utilization=True),
            "show a busier GPU, but not that training is no slower",
        ),
    ],
)
def test_each_kind_of_evidence_has_its_reason(evidence: Evidence, said: str) -> None:
    """The reader learns why, and in numbers where there are some."""
    assert said in reason(evidence)
