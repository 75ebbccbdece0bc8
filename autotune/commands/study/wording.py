"""Words and objects for studies that are listed or shown."""

from typing import Any

from autotune.results import SearchResult, Verdict
from autotune.study.travel.description import StudyFacts


def gain_text(result: SearchResult | None) -> str:
    """Return what an answer says, in a few words."""
    if result is None:
        return "no answer yet"
    if result.verdict is Verdict.BETTER and result.speedup is not None:
        ratio = result.speedup
        return f"better: {ratio.ratio:.2f}x (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
    return result.verdict.value.replace("_", " ")


def gain_object(result: SearchResult | None) -> dict[str, Any] | None:
    """Return an answer as scripts get it; None for none."""
    if result is None:
        return None
    ratio = result.speedup
    return {
        "verdict": result.verdict.value,
        "speedup": None if ratio is None else {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high},
    }


def facts_object(facts: StudyFacts) -> dict[str, Any]:
    """Return a study as scripts get it."""
    return {
        "study": facts.name,
        "trials": facts.trials,
        "endings": dict(facts.endings),
        "last_utc": facts.last_utc,
        "hosts": list(facts.hosts),
        "hardware": list(facts.hardware),
        "frameworks": list(facts.frameworks),
        "versions": list(facts.versions),
        "answer": gain_object(facts.answer),
        "searches": [
            {"search": one.name, "trials": one.trials, "ended_utc": one.ended_utc, "answer": gain_object(one.result)}
            for one in facts.searches
        ],
        "members": [
            {
                "host": one.host,
                "machine": one.machine,
                "role": one.role.value,
                "search": one.search,
                "phase": one.phase.value,
                "since_utc": one.since_utc.isoformat(timespec="seconds"),
                "renewed_utc": one.renewed_utc.isoformat(timespec="seconds"),
                "left_because": one.left_because,
            }
            for one in facts.members
        ],
    }
