"""Check of a diagnosis: a question, and how it is answered."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check of a diagnosis.

    Attributes:
        id: Stable id, for scripts.
        question: What it answers.
        how: How that is measured, or read.
        threshold: From where on it is an issue, and the source of that number.
    """

    id: str
    question: str
    how: str
    threshold: str
