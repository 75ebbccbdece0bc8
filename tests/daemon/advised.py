"""Advice and answers for tests."""

from typing import Any

from autotune.daemon.advice import Advice
from tests.daemon.queue.entries import entry

ANSWER: dict[str, Any] = {
    "verdict": "better",
    "why": "confirmed by 4 interleaved pairs",
    "speedup": {"ratio": 1.5, "low": 1.2, "high": 1.8},
    "study": "config-1",
    "best": {"values": {"data.num_workers": 4, "data.batch_size": 32}},
    "changes": [
        {
            "path": "data.num_workers", "old": 1, "new": 4, "label": "same training",
            "worth": 1.4, "worth_low": 1.1, "worth_high": 1.7,
        },
        {
            "path": "data.batch_size", "old": 16, "new": 32, "label": "batch",
            "worth": None, "worth_low": None, "worth_high": None,
        },
    ],
    "answer": {
        "id": "0123456789abcdef",
        "keys": [
            {"path": "data.num_workers", "old": 1, "new": 4, "label": "same training"},
            {"path": "data.batch_size", "old": 16, "new": 32, "label": "batch"},
            {"path": "data.prefetch", "old": 2, "new": 2, "label": "same training"},
        ],
    },
    "diff": "-num_workers: 1\n+num_workers: 4\n",
    "cautions": ["mind the batch"],
    "interrupted": None,
    "may_learn_more_slowly": False,
}  # fmt: skip
"""Answer of a search that changes workers and batch."""


def advice(**changes: Any) -> Advice:
    """Return the advice of `ANSWER` with other entries in the answer; other changes are what is judged, too."""
    answer = {**ANSWER, **changes}
    if "changes" in changes:
        keys = [{name: one[name] for name in ("path", "old", "new", "label")} for one in changes["changes"]]
        answer["answer"] = {**ANSWER["answer"], "keys": keys}
    return Advice.of_answer(answer, entry(), "2030-01-01T00:00:00+00:00")
