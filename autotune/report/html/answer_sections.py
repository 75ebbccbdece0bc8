"""Sections of a report that say what a search has found: the verdict, its certainty, and what it changes."""

from collections.abc import Iterator

from autotune.clock import format_duration
from autotune.metrics import METRICS
from autotune.records import Learning, Purpose, Ratio, SearchResult, Verdict
from autotune.report.answer import (
    answer_notes,
    gpu_notes,
    headline,
    metrics_rows,
    ratio_text,
    validation_notes,
    worth_text,
)
from autotune.report.html.contents import Html, Section, StudyContents, element, table
from autotune.report.html.pictures import draw_pairs, draw_race, draw_ratios
from autotune.report.plain_text import value_text
from autotune.report.race_notes import race_notes, why_it_may_learn_more_slowly

_PAYS_WITHIN_S = 365 * 24 * 3600.0


def verdict_sentence(contents: StudyContents) -> str:
    """Return the verdict in a sentence, whatever came of the search."""
    if contents.result is None:
        return f"No answer: {contents.why_no_result}."
    return headline(contents.result).plain


def comparison(contents: StudyContents, result: SearchResult) -> Section:
    """Return today's config against the best, with intervals."""
    title = f"Today's config against the {contents.name_of_shown}"
    if result.baseline is None or result.baseline.metrics is None:
        return Section(id="comparison", title=title, lead=["There is no answer yet: today's config gave no numbers."])
    shown = contents.shown
    other = shown if shown is not None and shown.metrics and shown is not result.baseline else None
    head = ["measured", "today", *([contents.name_of_shown] if other else [])]
    score = f"score ({contents.measures})" if contents.measures else "score"
    rows = [("speed", result.speedup), (score, result.score_ratio)]
    known = [(name, ratio) for name, ratio in rows if ratio is not None]
    notes = [f"{note}" for note in gpu_notes(result.baseline, result.why_no_gpu, other)]
    intervals = [[name, f"{ratio.ratio:.2f}x", f"{ratio.low:.2f} to {ratio.high:.2f}x"] for name, ratio in known]
    interval = [f"{name.capitalize()}: {ratio_text(ratio)} that of today's config." for name, ratio in known]
    drawn = [(name.partition(" (")[0], ratio) for name, ratio in known]
    return Section(
        id="comparison",
        title=title,
        lead=interval or ["Nothing was compared in pairs with today's config; these are the medians of its trials."],
        picture=draw_ratios("comparison", title, drawn, "times today's config (dashed)") if known else None,
        table=table("Times today's config", ("of", "ratio", "95 % interval"), intervals) if known else None,
        more=[
            table("Medians over the trials of each side", head, metrics_rows(result.baseline, other)),
            *(element("p", note, class_="note") for note in notes),
        ],
    )


def knobs(contents: StudyContents, result: SearchResult) -> Section:
    """Return what each change is worth, and which changes were only made together."""
    title = "What each change is worth"
    if not result.changes:
        return Section(id="knobs", title=title, lead=["Nothing is changed, so nothing is worth anything."])
    rows = []
    for place, change in enumerate(result.changes):
        is_together = place > 0 and result.changes[place - 1].group == change.group and change.worth is not None
        worth = "together with the one above" if is_together else worth_text(change.worth).replace("?", "not known")
        rows.append([change.path, value_text(change.old), value_text(change.new), worth, change.label])
        rows += [[key.path, value_text(key.old), value_text(key.new), "moves along", ""] for key in change.along]
    groups: dict[int, list[str]] = {}
    worths: dict[int, Ratio] = {}
    for change in result.changes:
        groups.setdefault(change.group, []).append(f"{change.path.rpartition('.')[2]}: {value_text(change.new)}")
        if change.worth is not None:
            worths[change.group] = change.worth
    drawn = [(", ".join(groups[group]), ratio) for group, ratio in worths.items()]
    lead = ["The speed with all changes over that with this one taken back, with its 95 % interval."]
    together = [names for names in groups.values() if len(names) > 1]
    lead += [
        f"Only ever made together, so that the trials cannot tell them apart: {', '.join(some)}." for some in together
    ]
    if any(ratio.low <= 1.0 <= ratio.high for ratio in worths.values()):
        together_is = "; that of all together is" if result.verdict is Verdict.BETTER else ""
        lead.append(f"Where an interval holds 1, a gain of that one change alone is not shown{together_is}.")
    head = ("key", "today", contents.name_of_shown, "worth", "for the training")
    return Section(
        id="knobs",
        title=title,
        lead=lead,
        picture=draw_ratios("worth", title, drawn, "speed with it over that without it") if drawn else None,
        table=table("Changes", head, rows),
    )


def confirmation(contents: StudyContents, result: SearchResult) -> Section:
    """Return the pairs by which the answer was confirmed."""
    title = "How it was confirmed"
    if not contents.pairs:
        return Section(id="confirmation", title=title, lead=[f"No complete pair: {result.why}."])
    name, speed = contents.name_of_shown, METRICS["samples_per_s"].text
    rows = [
        [
            f"{place}, left out" if pair.is_left_out else str(place),
            *(speed(pair.today), speed(pair.other), f"{pair.other / pair.today:.2f}x"),
        ]
        for place, pair in enumerate(contents.pairs, 1)
    ]
    on = f" On: {', '.join(result.confirmed_on)}." if len(result.confirmed_on) > 1 else ""
    return Section(
        id="confirmation",
        title=title,
        lead=[
            f"{result.why[:1].upper()}{result.why[1:]}.{on}",
            "Both halves of a pair run one after the other, in an order that changes, so that what disturbs a machine "
            "for minutes disturbs both.",
        ],
        picture=draw_pairs(contents.pairs, name),
        table=table("Confirming pairs", ("pair", "today", name, "ratio"), rows),
    )


def learning(contents: StudyContents, result: SearchResult) -> Section | None:
    """Return how the answer learns beside today's config; None where that is no question."""
    if result.race is None and not result.why_not_raced:
        return None
    search = next((trial.search for trial in reversed(contents.trials) if trial.race is not None), None)
    legs = [trial.race for trial in contents.trials if trial.race is not None and trial.search == search]
    drawn = [leg for leg in legs if leg.curve is not None]
    rows = [
        [
            leg.arm.value,
            str(leg.pair + 1),
            f"{leg.trained_s:.0f} s",
            f"{leg.curve.losses[-1]:.4g}" if leg.curve else "-",
            "-" if leg.evaluation_loss is None else f"{leg.evaluation_loss:.4g}",
        ]
        for leg in legs
    ]
    heads = ("config", "round", "trained for", "last loss", "last held-out loss")
    return Section(
        id="learning",
        title="Does it also learn faster?",
        lead=[note.plain for note in race_notes(result)],
        picture=draw_race(drawn) if drawn and result.race is not None else None,
        table=table("Trainings of the race", heads, rows) if rows else None,
    )


def what_else(contents: StudyContents, result: SearchResult) -> Section | None:
    """Return the remarks and cautions of the answer; None where there are none."""
    notes = [*validation_notes(result), *answer_notes(result, contents.shown, None)]
    cautions = [element("p", element("strong", "Caution: "), caution) for caution in result.cautions]
    if not notes and not cautions:
        return None
    return Section(id="remarks", title="To know besides", lead=[note.plain for note in notes], more=cautions)


def break_even(contents: StudyContents, result: SearchResult) -> Section:
    """Return when the search has paid for itself."""
    title = "When the search has paid for itself"
    if result.verdict is not Verdict.BETTER or result.speedup is None:
        return Section(id="break-even", title=title, lead=["Nothing was found that would save time."])
    spent_s = contents.elapsed_s
    if spent_s is None:
        spent_s = sum(trial.duration_s for trial in contents.trials if trial.purpose is not Purpose.DIAGNOSE)
    return Section(id="break-even", title=title, lead=list(_break_even(result, result.speedup, spent_s)))


def _break_even(result: SearchResult, speedup: Ratio, spent_s: float) -> Iterator[str]:
    if result.may_learn_more_slowly:
        race = result.race
        if race is not None and race.winner.learning is Learning.SLOWER:
            slower = f", {race.winner.learning_speed:.2f}x as fast" if race.winner.learning_speed else ""
            yield (
                f"The search took {format_duration(spent_s)}. These values as they are do not win that back: "
                f"a training that takes them learns more slowly than today's{slower}."
            )
            return
        if race is not None and race.winner.learning is Learning.MEMORISES:
            yield f"The search took {format_duration(spent_s)}. No time is won: in the race, these values memorised."
            return
        yield "What follows counts samples; that a sample teaches as much as today is not shown."
    pays_s = spent_s / (1 - 1 / speedup.ratio) if speedup.ratio > 1 else _PAYS_WITHIN_S
    if pays_s >= _PAYS_WITHIN_S:
        yield "The gain is too small to say when it does."
        return
    yield (
        f"The search took {format_duration(spent_s)}. A training that takes {format_duration(pays_s)} today gets that "
        "back; with each longer one time is won."
    )
    if speedup.low > 1:
        latest_s = spent_s / (1 - 1 / speedup.low)
        yield f"With the lower end of the interval, {speedup.low:.2f}x, it is {format_duration(latest_s)}."
    day_s = 24 * 3600.0
    yield f"What takes a day today takes {format_duration(day_s / speedup.ratio)}."


def change_to_config(contents: StudyContents) -> Section:
    """Return the diff, and the command that makes it."""
    title = "The change to the config"
    if contents.diff is None:
        return Section(id="diff", title=title, lead=["The config stays as it is, or holds these values already."])
    lines = [
        element("span", f"{line}\n", class_={"+": "plus", "-": "minus"}.get(line[:1], "same"))
        for line in contents.diff.splitlines()
    ]
    return Section(
        id="diff",
        title=title,
        lead=list(_how_to_apply(contents)),
        more=[element("pre", lines, class_="diff", tabindex="0")],
    )


def _how_to_apply(contents: StudyContents) -> Iterator[str]:
    asks = " asks first," if contents.result is not None and contents.result.may_learn_more_slowly else ""
    yield f"`{contents.commands['apply']}`{asks} writes it, and keeps a copy of the file as it is now."
    if asks and "same training" in contents.commands:
        yield f"`{contents.commands['same training']}` looks for values that leave the training itself as it is."


def warning(contents: StudyContents) -> str:
    """Return what belongs beside the verdict, so that nobody takes its number alone; empty for nothing."""
    result = contents.result
    if result is None or result.verdict is not Verdict.BETTER or not result.may_learn_more_slowly:
        return ""
    return f"Mind: {why_it_may_learn_more_slowly(result)}"


def figures_of(result: SearchResult | None, contents: StudyContents) -> Html:
    """Return the few numbers on top of the report."""
    shown = contents.shown
    figures = [("trials", str(result.trials if result else len(contents.trials)))]
    if result is not None and result.speedup is not None:
        figures.insert(0, ("95 % interval", f"{result.speedup.low:.2f} to {result.speedup.high:.2f}x"))
        figures.insert(0, ("samples a second, over today's", f"{result.speedup.ratio:.2f}x"))
    if result is not None and shown is not None and result.changes:
        figures.append(("keys changed", str(len(result.changes))))
    return element(
        "dl", [element("div", element("dt", name), element("dd", value)) for name, value in figures], class_="figures"
    )
