"""Headline of the page: one sentence on what goes on, the most important thing first."""

from enum import StrEnum
from pathlib import PurePath
from typing import TypedDict

from autotune.daemon.web.sections.advice_section import AdvicesPart
from autotune.daemon.web.sections.queue_section import QueuePart
from autotune.daemon.web.sections.search_section import SearchPart
from autotune.daemon.web.sections.trainings_section import TrainingsPart
from autotune.durations import format_duration


class Tone(StrEnum):
    """Importance of a headline."""

    ALARM = "alarm"
    TROUBLE = "trouble"
    WORK = "work"
    NEWS = "news"
    QUIET = "quiet"


class Headline(TypedDict):
    """Sentence on what goes on."""

    tone: str
    text: str


def headline(
    *, search: SearchPart | None, queue: QueuePart, trainings: TrainingsPart, advices: AdvicesPart, trouble: str | None
) -> Headline:
    """Return the headline: an alarm before the search that runs, that before what waits, that before what is done."""
    opened = [alarm for alarm in trainings["alarms"] if alarm["is_open"]]
    if opened:
        more = f" (and {len(opened) - 1} more)" if opened[1:] else ""
        return _say(Tone.ALARM, f"{opened[0]['message']}{more}")
    if trouble:
        return _say(Tone.TROUBLE, f"Trouble: {trouble}")
    if search is not None and search["is_running"]:
        return _say(Tone.WORK, _of_search(search))
    waiting = [entry for entry in queue["entries"] if entry["state"] in ("waiting", "held", "paused")]
    going_on = trainings["trainings"]
    if waiting:
        first = waiting[0]
        why = f": entry {first['number']} {first['reason']}" if first["reason"] else ""
        count = "One search stands" if len(waiting) == 1 else f"{len(waiting)} searches stand"
        return _say(Tone.WORK, f"{count} in the queue{why}.")
    if going_on:
        count = "One training goes on" if len(going_on) == 1 else f"{len(going_on)} trainings go on"
        return _say(Tone.QUIET, f"{count}; no alarm. The queue is empty.")
    fresh = [one for one in advices["advice"] if one["state"] == "given"]
    if fresh:
        ratio, low, high = fresh[0]["ratio"]
        name = short_path(fresh[0]["config"])
        return _say(Tone.NEWS, f"Advice for {name}: {ratio:.2f}x as fast ({low:.2f} to {high:.2f}), not applied yet.")
    return _say(Tone.QUIET, "Nothing runs, and nothing waits.")


def short_path(path: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(PurePath(path).parts[-2:])


def _of_search(search: SearchPart) -> str:
    name, budget = short_path(search["config"]), format_duration(search["budget_s"])
    phase = {"exploring": "Searching", "confirming": "Confirming"}.get(search["phase"] or "", "Searching")
    trials = "1 trial" if search["trials"] == 1 else f"{search['trials']:,} trials"
    begun = f"{phase} {name}, budget {budget}: "
    if search["best_changes"] is None or not search["best"]:
        return f"{begun}{trials} made, nothing better than today's config yet."
    return f"{begun}{search['best'][-1][1]:.2f}x today's speed after {trials}, with {search['best_changes']}."


def _say(tone: Tone, text: str) -> Headline:
    return Headline(tone=tone.value, text=text)
