"""Notes on the race of a search: whether what is faster also learns faster, and the learning rate it proposes."""

from collections.abc import Iterator

from rich.text import Text

from autotune.clock import format_duration
from autotune.records import Learning, Race, Raced, SearchResult
from autotune.report.plain_text import plain, value_text

_LONGEST = 500
_STYLES = {
    Learning.FASTER: ("Learns faster: ", "bold green"),
    Learning.ALIKE: ("Learns alike: ", "bold green"),
    Learning.SLOWER: ("Learns slower: ", "bold red"),
    Learning.UNKNOWN: ("Learning: ", "bold yellow"),
    Learning.MEMORISES: ("Memorises: ", "bold red"),
}


def race_notes(result: SearchResult) -> Iterator[Text]:
    """Yield what the answer's reader should know of how it learns; nothing where there was no race to make."""
    race = result.race
    if race is None:
        if result.why_not_raced:
            why = plain(result.why_not_raced, longest=_LONGEST)
            yield Text.assemble(("Learning: ", "bold yellow"), f"whether it also learns faster is not known: {why}.")
        return
    yield Text.assemble(_STYLES[race.winner.learning], f"{outcome(race, race.winner)}.")
    if race.scaled is not None and race.learning_rate is not None:
        setting = f"{plain(race.learning_rate_key)}: {value_text(race.learning_rate)}"
        yield Text(f"With {setting} as well, {outcome(race, race.scaled)}.{_proposal(race)}")
    if race.winner.evaluation_losses is not None and race.winner.held_out is None:
        today, other = race.winner.evaluation_losses
        yield Text(f"The loss of its latest evaluations was {other:.4g}, and {today:.4g} today.", style="dim")
    start = f"a copy of the newest checkpoint, {plain(race.checkpoint)}" if race.checkpoint else "scratch"
    yield Text(f"Raced from {start}, {race.pairs} {'round' if race.pairs == 1 else 'rounds'} in turn.", style="dim")


def outcome(race: Race, raced: Raced) -> str:
    """Return how a config learns beside today's, as a clause."""
    if raced.diverged:
        return "its loss became no number"
    losses = raced.deciding
    if losses is None:
        return f"it cannot be told: {plain(race.why_unknown, longest=_LONGEST) or 'the race was cut short'}"
    after_s = race.trained_s if raced.after_s is None else raced.after_s
    loss = "loss" if raced.held_out is None else "held-out loss"
    told = (
        f"after the same {format_duration(after_s)} of training the {loss} "
        f"is {losses.other:.4g}, and {losses.today:.4g} today (97.5 % interval of the difference {losses.low:+.2g} to "
        f"{losses.high:+.2g})"
    )
    if raced.learning is Learning.MEMORISES:
        return f"{told}: that is not comparable, for {raced.why}"
    if raced.why:
        return f"{told}: that does not tell which learns faster, for {raced.why}"
    if raced.learning is Learning.UNKNOWN:
        longer = f"; a race of {format_duration(raced.needed_s)} would probably tell" if raced.needed_s else ""
        return f"{told}: that does not tell which learns faster{longer}"
    if raced.learning is Learning.ALIKE:
        return f"{told}: they learn alike"
    speed = f", {raced.learning_speed:.2f}x as fast" if raced.learning_speed else ""
    return f"{told}: it learns {raced.learning.value}{speed}"


def why_it_may_learn_more_slowly(result: SearchResult) -> str:
    """Return why an answer is not to be applied without a yes, as a sentence; see `may_learn_more_slowly`."""
    labels = " and the ".join(dict.fromkeys(change.label for change in result.changes if change.label != "unknown"))
    what = f"It changes the {labels}".replace("the same training and ", "").replace(" and the same training", "")
    race = result.race
    if race is not None and race.winner.learning is Learning.MEMORISES:
        return f"In the race it memorised: {outcome(race, race.winner)}."
    if race is None:
        return f"{what}, and whether it also learns faster is not known: {result.why_not_raced}."
    if race.winner.learning is Learning.SLOWER:
        return f"{what}, and in the race it learned more slowly: {outcome(race, race.winner)}."
    return f"{what}, and the race did not show that it learns as fast: {outcome(race, race.winner)}."


def _proposal(race: Race) -> str:
    if race.proposed_rate is not None:
        return " That is a proposal: it is written only with `apply --learning-rate`."
    if race.scaled is not None and race.scaled.learning.is_safe:
        return " That is not proposed: the loss is not lower than with the learning rate as it is."
    return ""
