"""Final screen of a search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, repeat
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.clock import format_duration
from autotune.config.command import TypedOptions
from autotune.config.keys import counted, first_of, listed
from autotune.errors import ConfigError
from autotune.measure.ranks import straggler
from autotune.measure.score import UTILIZATION
from autotune.metrics import GPU_METRICS, METRICS, Direction, Metric
from autotune.records import (
    CODE,
    PAUSE_NOUNS,
    UNCHANGED,
    Achieved,
    Change,
    DataEffect,
    DataFinding,
    Learning,
    PooledGpu,
    Race,
    Raced,
    RankMeasurement,
    Ratio,
    SearchResult,
    Side,
    Validation,
    Values,
    Verdict,
)
from autotune.report.plain_text import EFFECT, changes_text, effect_text, plain, short_names, value_text
from autotune.study.reasons import VerdictRule
from autotune.trial.outcome import EXPLANATIONS

if TYPE_CHECKING:
    from autotune.search.trial_maker import Failed

_LONGEST = 500  # characters of text from a record


def print_answer(
    console: Console,
    result: SearchResult,
    *,
    typed: TypedOptions,
    elapsed_s: float | None,
    applied: bool = False,
    failures: Iterable[Failed] = (),
    without_next: bool = False,
    answer: str | None = None,
    details: bool = False,
) -> None:
    """Print the answer of a search.

    Args:
        elapsed_s: None for an answer from the record.
        applied: Whether the config has the best values.
        failures: One failed trial per kind of ending.
        answer: Id for ``apply --answer``; None for the study's own answer.
        details: All metrics, with notes.
    """
    shown = result.best if result.verdict not in UNCHANGED else result.candidate
    column = "best" if shown is result.best else "tried"
    parts: list[Text | Table] = [*verdict(result)]
    if result.same_training is not None and result.same_training_confirmed is not None:
        changes = changes_text(_changed(result, result.same_training[0]))
        gain = f"{ratio_text(result.same_training_confirmed)} with {changes}, confirmed in the same pairs."
        data = f" {data_text(result.same_training_data)}" if result.same_training_data else ""
        parts.append(Text.assemble(("Training unchanged: ", "bold"), gain, data))
    if shown is not None and result.changes:
        parts += [Text(), _changes_table(result, column, console)]
        if any(change.worth is not None for change in result.changes):
            parts.append(Text(LEGEND, style="dim"))
    if result.baseline is not None and (result.baseline.metrics or shown is not None):
        parts += [Text(), metrics_table(result.baseline, shown, column, details=details)]
        more = (
            _details(result, result.baseline, shown) if details else [f"More: {typed.command('status', '--details')}"]
        )
        parts += [Text(remark, style="dim") for remark in more]
    notes = [*race_notes(result), *validation_notes(result), *answer_notes(result), *_time_notes(result, elapsed_s)]
    if uncovered := uncovered_text(result):
        notes.append(Text(uncovered, style="dim"))
    for caution in result.cautions:
        notes.append(Text.assemble(("Caution: ", "bold yellow"), plain(caution, longest=_LONGEST)))
    parts += [Text(), *notes] if notes else []
    failed, half = list(failures), 0.5 * sum(result.outcomes.values())
    most = [one for one in failed if result.outcomes.get(one.record.ending.value, 0) > half]
    print_failures(console, most, result.outcomes)  # before the answer, because most trials failed this way
    console.print()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))
    print_failures(console, [one for one in failed if one not in most], result.outcomes)
    console.print()
    if not without_next:
        print_next_step(console, result, typed=typed, applied=applied, answer=answer)


def print_rules(console: Console, rules: Iterable[VerdictRule]) -> None:
    """Print the rules behind a verdict."""
    is_file = not console.is_terminal  # no wrapping in files
    for number, rule in enumerate(rules, 1):
        console.print(Text.assemble(f"{number:2}. ", (plain(rule.rule, longest=_LONGEST), "bold")), soft_wrap=is_file)
        inputs = plain(rule.inputs, longest=_LONGEST)
        console.print(f"    {inputs} -> {plain(rule.result, longest=_LONGEST)}", soft_wrap=is_file)


def _details(result: SearchResult, baseline: Side, shown: Side | None) -> Iterator[str]:
    yield from gpu_notes(baseline, result.why_no_gpu, shown)
    yield from trainings_lines(result.achieved) if result.achieved else ()
    column = "best" if shown is result.best else "tried"
    for heading, side in (("Today", baseline), (f"The {column}", shown)):
        if side is not None and side.stages:
            yield f"{heading}'s pipeline: {side.stages.verdict()}."
        if side is not None and side.ranks:
            yield f"{heading}'s {_ranks_text(side.ranks)}."


def _ranks_text(ranks: Sequence[RankMeasurement]) -> str:
    nodes = counted(len({one.node for one in ranks}), "node")
    slowest = straggler(ranks)
    does = plain(slowest.sentence, longest=_LONGEST) if slowest else "no straggler"
    return f"{len(ranks)} ranks on {nodes}: {does}"


def _changed(result: SearchResult, side: Side) -> Values:
    baseline = result.baseline.values if result.baseline else {}
    return {path: value for path, value in side.values.items() if baseline.get(path) != value}


def print_next_step(
    console: Console, result: SearchResult, *, typed: TypedOptions, applied: bool, answer: str | None = None
) -> None:
    """Print the next command, or two if there are two answers."""
    command, text = "", "Nothing to apply."
    more = f"--budget {math.ceil(result.budget_enough_s / 60.0)}m" if result.budget_enough_s else "more time"
    if applied:
        text, command = "The config has these values now. To undo:  ", typed.command("revert")
    elif commands := next_commands(result, typed, answer=answer):
        width = max(map(len, commands)) if len(commands) > 1 else 0
        for word, (one, purpose) in zip(chain(("Next:  ",), repeat("or     ")), commands.items(), strict=False):
            parts = (word, (one.ljust(width), "bold"), f"  {purpose}" if purpose else "")
            console.print(Text.assemble(*parts), soft_wrap=True)
        return
    elif result.verdict is Verdict.NOT_CONFIRMED:
        text = f"Next:  run the same command with {more}; it resumes."
    elif _is_undecided(result):
        text += f" The same command may decide it on an idle machine, or with {more}."
    elif result.budget_enough_s and not result.candidate:
        text += f" Out of time: with {more} the same command resumes."
    console.print(Text.assemble(text, (command, "bold")), soft_wrap=True)


def is_in_code(result: SearchResult) -> bool:
    """Return whether an answer changes only code."""
    return bool(result.changes) and all(change.path.startswith(CODE) for change in result.changes)


def next_commands(result: SearchResult, typed: TypedOptions, *, answer: str | None = None) -> dict[str, str]:
    """Return possible next commands with their purposes; ``answer`` as for `print_answer`."""
    if result.verdict in UNCHANGED:
        return {}
    code = ["--code"] if is_in_code(result) else []
    if not result.needs_consent:
        return {typed.command("apply", *code, *(["--answer", answer] if answer else [])): ""}
    commands = {}
    whole = typed.command("apply", *(["--answer", answer] if answer else ["--all"]), *code)
    gain = f"{result.speedup.ratio:.2f}x, " if result.speedup and result.verdict is Verdict.BETTER else ""
    if result.applies_same_training and result.same_training_confirmed and not answer:
        same = f"{result.same_training_confirmed.ratio:.2f}x, training unchanged"
        commands = {typed.command("apply", *code): same, whole: f"{gain}with all changes"}
    elif result.verdict is Verdict.NO_BASELINE:
        commands = {whole: "never compared with today's config"}
    else:
        changes = _what_changes(result)
        commands = {whole: f"{gain}changes {changes}" if changes else f"{gain}overfitted in the race"}
    if result.lacks_race and not answer:  # a new search has no limits on the changes
        commands[typed.command("search", "--race", "10m")] = "compares convergence"
    return commands


def print_failures(
    console: Console, failures: Iterable[Failed], outcomes: Mapping[str, int], *, known_remedy: str = ""
) -> None:
    """Print the output of failed trials; ``outcomes`` counts all by ending."""
    for failure in failures:
        trial, explained = failure.record, EXPLANATIONS[failure.record.ending]
        count = outcomes.get(trial.ending.value, 1)
        times = f"{count} trials" if count > 1 else "1 trial"
        console.print()
        ended = (f"{times} {trial.ending.value}", "bold yellow")
        console.print(Text.assemble(ended, f": {explained.sentence}"), soft_wrap=True)
        if trial.detail:
            console.print(Text(f"  {plain(trial.detail)}"), soft_wrap=True)
        for line in [line for line in failure.stderr_tail.splitlines() if line.strip()][-5:]:
            console.print(Text(f"  | {plain(line)}", style="dim"), soft_wrap=True)
        remedy = "" if explained.remedy == known_remedy else f"{explained.remedy} "
        console.print(Text(f"  {remedy}Logs: {failure.folder}"), soft_wrap=True)


def verdict(result: SearchResult) -> list[Text]:
    """Return headline, gain of whole training, and reason."""
    gains = [whole_text(result), achieved_text(result)]
    why = plain(result.why[:1].upper() + result.why[1:], longest=_LONGEST)
    return [headline(result), *(Text(gain) for gain in gains if gain), Text(f"{why}.", style="dim")]


def whole_text(result: SearchResult) -> str:
    """Return a sentence on the gain including the time between steps; "" if unknown."""
    whole = result.whole
    if result.verdict is not Verdict.BETTER or whole is None or whole.speedup is None:
        return ""
    kinds = listed([PAUSE_NOUNS[kind][1] for kind in whole.seen], "and")
    return f"Whole training, with {kinds}: about {ratio_text(whole.speedup)}."


def achieved_text(result: SearchResult) -> str:
    """Return a sentence on achieved and claimed speedups; "" without real trainings."""
    achieved = result.achieved
    if achieved is None:
        return ""
    gain = f"{achieved.steps:.2f}x over {format_duration(achieved.counted_s)}"
    if achieved.whole is not None:
        gain += f", {achieved.whole:.2f}x including the time between steps"
    if achieved.pause_fraction >= 0.05:
        gain += f" ({100 * achieved.pause_fraction:.0f} % of the time is between steps)"
    relation = "as" if achieved.outcome == "as" else f"{achieved.outcome} than"
    count = len(achieved.trainings)
    which = ", training unchanged" if achieved.is_same_training else ""
    return (
        f"Achieved in {count} real {'training' if count == 1 else 'trainings'}{which}: {gain}; "
        f"{relation} claimed, {ratio_text(achieved.claimed)}."
    )


def trainings_lines(achieved: Achieved) -> Iterator[str]:
    """Yield a line per real training, and one on later intervals."""
    for one in achieved.trainings:
        whole = f", {one.whole:.2f}x including the time between steps" if one.whole is not None else ""
        reference = "trainings" if one.is_against_training else "trials"
        yield (
            f"Training {plain(one.name)}, until {plain(one.ended_utc)}, {format_duration(one.counted_s)}: "
            f"{one.steps:.2f}x{whole}, relative to {reference} of today's config."
        )
    if achieved.outcome != "as" and not achieved.claims_sd:
        yield "Trials and trainings usually differ by this much: intervals of later searches stay the same."
    elif achieved.claims_sd:
        yield (
            f"Claimed and achieved speedups differ by about {100 * math.expm1(achieved.claims_sd):.0f} % beyond the "
            "claimed intervals: intervals of later searches are wider."
        )
    else:
        yield "Achieved speedups are within the claimed intervals: intervals of later searches stay the same."


def uncovered_text(result: SearchResult) -> str:
    """Return a sentence on what trials never reached; "" if none."""
    if result.speedup is None:
        return ""
    seen = result.whole.seen if result.whole else ()
    missed = [one for kind, (one, _) in PAUSE_NOUNS.items() if kind not in seen]
    if result.validation is None:
        return f"Not covered: {listed([*missed, 'memory growth'], 'or')}; `--validate 2m` covers them."
    return f"Not covered: {listed(missed, 'or')}." if missed else ""


def headline(result: SearchResult) -> Text:
    """Return the verdict in a sentence."""
    word, style, text = "No change: ", "bold", "today's values are as good as any tried."
    if result.verdict is Verdict.BETTER:
        assert result.speedup is not None
        word, style, text = "Better: ", "bold green", f"{ratio_text(result.speedup, _LEVEL)} as fast as today's config."
        if result.objective == UTILIZATION.name and result.score_ratio is not None:
            busy = f"the GPU is {ratio_text(result.score_ratio, _LEVEL)} as busy as with today's config"
            text = f"{busy}, and training {ratio_text(result.speedup)} as fast."
    elif result.verdict is Verdict.STEADIER:
        assert result.speedup is not None
        word, style = "Steadier: ", "bold green"
        text = f"as fast as today's config, {ratio_text(result.speedup, _LEVEL)}{_steadiness_text(result)}."
    elif result.verdict is Verdict.NO_BASELINE:
        word, style, text = "No baseline: ", "bold yellow", "today's config does not run; these values do."
    elif result.verdict is Verdict.NOT_CONFIRMED:
        word, style, text = "Not confirmed: ", "bold yellow", "a candidate looks better than today's values."
    elif result.candidate is None and result.smallest_gain is None:
        text = "nothing better than today's values was found."
    elif result.validation is not None and result.validation.broke:
        style, text = "bold yellow", "a candidate is faster, but broke in a longer training."
    elif _is_undecided(result):
        text = "inconclusive, because trials vary too much."
    return Text.assemble((word, style), text)


_LONG_STEPS = ("step_p95_s", "step_p99_s", "step_max_s")


def _steadiness_text(result: SearchResult) -> str:
    """Return the steadier metrics; of long steps, the one that shrank most."""
    today, best = (side.metrics if side and side.metrics else {} for side in (result.baseline, result.best))
    shrunk: dict[str, float] = {}
    for name in (*_LONG_STEPS, "stall_fraction", "gpu_utilization"):
        before, after = today.get(name), best.get(name)
        if before is not None and after is not None:
            low, high = (before, after) if METRICS[name].better is Direction.HIGHER else (after, before)
            shrunk[name] = low / high if high else 1.0
    longest = min((name for name in _LONG_STEPS if name in shrunk), key=shrunk.__getitem__, default=None)
    shown = [name for name, ratio in shrunk.items() if ratio < 0.9 and (name not in _LONG_STEPS or name == longest)]
    texts = ((METRICS[name], today[name], best[name]) for name in shown)
    return "".join(f"; {metric.label} {metric.text(old)} -> {metric.text(new)}" for metric, old, new in texts)


def _is_undecided(result: SearchResult) -> bool:
    broke = result.validation is not None and result.validation.broke
    # an interval that includes a gain this large leaves the question open
    return bool(result.candidate and result.score_ratio and result.score_ratio.high > 1.1 and not broke)


_LEVEL = "95 % interval "


def ratio_text(ratio: Ratio, level: str = "") -> str:
    """Format a ratio with its 95 % interval: ``1.13x (0.99-1.28)``."""
    return f"{ratio.ratio:.2f}x ({level}{ratio.low:.2f}-{ratio.high:.2f})"


def _changes_table(result: SearchResult, column: str, console: Console) -> Table:
    """Return the table of changes; in narrow consoles, with short keys or wrapped."""
    unbounded = console.options.update(max_width=10_000)  # `measure` clips at the console's width
    paths = [path for change in result.changes for path in (change.path, *(key.path for key in change.along))]
    table = _table_of(result, column, {path: path for path in paths}, no_wrap=True)
    if console.measure(table, options=unbounded).maximum > console.width:
        table = _table_of(result, column, short_names(paths), no_wrap=True)
        if console.measure(table, options=unbounded).minimum > console.width:
            table = _table_of(result, column, short_names(paths), no_wrap=False)
    return table


def _table_of(result: SearchResult, column: str, names: Mapping[str, str], *, no_wrap: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("change", no_wrap=no_wrap)
    table.add_column("today", justify="right", no_wrap=no_wrap)
    table.add_column(column, justify="right", style="bold", no_wrap=no_wrap)
    has_gains = any(change.worth is not None or change.needed for change in result.changes)
    if has_gains:
        table.add_column("gain", justify="right", no_wrap=no_wrap)
    table.add_column(EFFECT, style="dim")
    for previous, change in zip((None, *result.changes), result.changes, strict=False):
        is_together = previous is not None and previous.group == change.group and change.worth is not None
        gains = ["(together)" if is_together else gain_text(change)] if has_gains else []
        table.add_row(
            names[change.path],
            value_text(change.old),
            value_text(change.new),
            *gains,
            effect_text(change.label, result.data),
        )
        for key in change.along:
            table.add_row(names[key.path], value_text(key.old), value_text(key.new), *(_FOLLOWS for _ in gains))
    return table


_FOLLOWS = "(changes with it)"
_WEAK = 0.5  # standard errors above 0 in ln speed: one-sided confidence of 70 %
LEGEND = "gain: ratio of speeds with its 95 % interval; strong evidence: it excludes 1; weak: 70 % confidence"


def gain_text(change: Change) -> str:
    """Return gain and evidence: ``1.13x (0.99-1.28), weak evidence``."""
    gain = change.worth
    if change.needed:
        return "needed: fails without it"
    if gain is None:
        return "unknown"
    if gain.high < 1.0:
        return f"{ratio_text(gain)}, slower"
    evidence = "strong"
    if gain.low <= 1.0:
        errors = math.log(gain.ratio) / (math.log(gain.high / gain.low) / 4.0)
        evidence = "weak" if errors > _WEAK else "no"
    return f"{ratio_text(gain)}, {evidence} evidence"


_ON_DATA = {
    DataEffect.SAME: "It trains on the same data as today",
    DataEffect.BATCH: "It trains on other batches",
    DataEffect.DIFFERENT: "It trains on different data",
    DataEffect.UNVERIFIED: "Not verified whether it trains on the same data as today",
}


def data_text(finding: DataFinding) -> str:
    """Return a sentence on the trials' data."""
    return f"{_ON_DATA[finding.effect]}: {finding.evidence}."


def answer_notes(result: SearchResult) -> list[Text]:
    """Return notes on how the changes affect training."""
    notes = []
    says_batch = any(change.effective_batch for change in result.changes)
    if result.data is not None and not (result.data.effect is DataEffect.BATCH and says_batch):
        notes.append(Text(data_text(result.data), style="yellow" if result.data.effect is DataEffect.DIFFERENT else ""))
    if result.verdict not in UNCHANGED:
        scaling = "; the learning rate may have to follow (Goyal et al. 2017)"
        for change in result.changes:
            if change.effective_batch:
                is_scaled = result.race is not None and result.race.scaled is not None
                notes.append(Text(f"{change.effective_batch}{'' if is_scaled else scaling}."))
    changes_training = any(change.label != "same training" for change in result.changes)
    is_shown = result.verdict in UNCHANGED or result.same_training_confirmed is not None
    if result.same_training is not None and changes_training and not is_shown:
        side, ratio = result.same_training
        changes = changes_text(_changed(result, side))
        notes.append(Text(f"Training unchanged: about {ratio:.2f}x with {changes}, not confirmed."))
    return notes


def _time_notes(result: SearchResult, elapsed_s: float | None) -> Iterator[Text]:
    if result.gain_of_ten_minutes is not None:
        gain = result.gain_of_ten_minutes
        more = "less than 1 %" if gain < 0.01 else f"about {100 * gain:.0f} %"
        yield Text(f"Another 10 minutes of searching would gain {more} more on average.")
    is_lost = result.race is not None and result.race.winner.learning in (Learning.SLOWER, Learning.MEMORISES)
    if result.verdict is Verdict.BETTER and result.speedup and elapsed_s and not is_lost:
        pays_s = elapsed_s / (1 - 1 / result.speedup.ratio) if result.speedup.ratio > 1 else math.inf
        if pays_s < 365 * 24 * 3600:
            took, pays = format_duration(elapsed_s), format_duration(pays_s)
            yield Text(f"The search took {took}; it pays off for trainings that take longer than {pays} today.")
    if result.verdict is Verdict.BETTER and (note := _slower_start(result)):
        yield Text(note)


_LONGER_START_S, _LONGER_START = 5.0, 1.5  # smaller differences of the start, absolute and relative, need no note


def _slower_start(result: SearchResult) -> str:
    today_s, best_s = (
        side.metrics.get("first_step_s") if side is not None and side.metrics else None
        for side in (result.baseline, result.best)
    )
    if today_s is None or best_s is None or result.speedup is None or result.speedup.ratio <= 1.0:
        return ""
    extra_s = best_s - today_s
    if extra_s < _LONGER_START_S or best_s < _LONGER_START * today_s:
        return ""
    pays_s = extra_s / (1.0 - 1.0 / result.speedup.ratio)
    extra, today, best, pays = map(format_duration, (extra_s, today_s, best_s, pays_s))
    return f"Each start takes {extra} longer ({best} instead of {today}); it pays off after {pays} of training."


# Table of metrics.


NOT_MEASURED = "not measured"


def metrics_table(baseline: Side, other: Side | None, column: str, *, details: bool) -> Table:
    """Return the table of metrics."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("measured")
    if baseline.metrics:
        table.add_column("today", justify="right")
    if other is not None and other.metrics:
        table.add_column(column, justify="right", style="bold")
    for row in metrics_rows(baseline, other, details=details):
        table.add_row(*row)
    return table


_OF_STALLS = ("stall_fraction", "beat_s", "stall_wait_fraction", "stall_epoch_fraction", "step_p99_s", "step_max_s")


def metrics_rows(baseline: Side, other: Side | None, *, details: bool = True) -> list[list[str]]:
    """Return label and texts per metric; without ``details``, of speed, utilization and steadiness."""
    sides = [side for side in (baseline, other) if side is not None and side.metrics]
    known = {name for side in sides for name, value in (side.metrics or {}).items() if value}
    of_stalls = [name for name in _OF_STALLS if name in known] if "stall_fraction" in known else []
    if not details:
        is_measured = any(side.gpus is not None for side in sides)
        busy = _utilization_rows(sides) if is_measured else [_trial_row("gpu_utilization", sides, NOT_MEASURED)]
        steady = [_trial_row(name, sides) for name in ("cv", *of_stalls[:1])]
        return [_trial_row("samples_per_s", sides), *busy, *steady]
    of_the_trial = ("cv", *of_stalls, "data_wait_fraction", "step_p95_s", "cpu_cores", "peak_memory_bytes")
    return [_trial_row("samples_per_s", sides), *_gpu_rows(sides), *(_trial_row(name, sides) for name in of_the_trial)]


def gpu_notes(baseline: Side, why_no_gpu: str | None, other: Side | None = None) -> list[str]:
    """Return notes on GPUs: names, reference values, and the baseline's pattern."""
    notes = [f"GPU utilization was not measured: {plain(why_no_gpu)}."] if why_no_gpu else []
    if baseline.gpus is None:
        return notes
    devices = baseline.gpus.devices
    if len(devices) > _MOST_GPU_ROWS:
        counted = Counter(plain(device.figures.name) for device in devices)
        notes.append(f"GPUs: {', '.join(f'{count} {name}' for name, count in counted.items())}.")
    elif len(devices) > 1:
        names = ", ".join(f"GPU {place} is {plain(device.figures.name)}" for place, device in enumerate(devices))
        scored, later = _scored(baseline), _scored(other)
        then = f", then {later}" if later not in ("", scored) else ""
        notes.append(f"{names}; the score uses {scored}{then}.")
    references = {
        device.role: device.reference
        for side in (baseline, other)
        for device in (side.gpus.devices if side and side.gpus else ())
        if device.role and device.reference
    }
    if references:
        stated = " and ".join(f"{_range(reference)} for {role}" for role, reference in sorted(references.items()))
        notes.append(f"If two GPUs share the work well, users report {stated}. The score does not use this.")
    known = [one for one in devices if one.scored and one.figures.utilization is not None and one.meaning]
    if known:
        from autotune.measure.utilization import LEAST_PERIOD_S  # here, because it imports NumPy

        idlest = min(known, key=lambda device: device.figures.utilization or 0.0)
        notes.append(f"Today's GPU utilization is {idlest.verdict}, which usually means: {idlest.meaning}.")
        beat_s = (baseline.metrics or {}).get("beat_s")
        if beat_s is not None and beat_s < LEAST_PERIOD_S:
            every = METRICS["beat_s"].text(beat_s)
            notes.append(f"It stalls every {every}: faster than the driver samples, so utilization does not show it.")
    return notes


def _scored(side: Side | None) -> str:
    devices = side.gpus.devices if side and side.gpus else ()
    return " and ".join(f"GPU {place}" for place, device in enumerate(devices) if device.scored)


def _trial_row(name: str, sides: Sequence[Side], unknown: str | None = None) -> list[str]:
    values = [(side.metrics or {}).get(name) for side in sides]
    return _row(METRICS[name], values, unknown)


def _row(metric: Metric, values: Sequence[float | None], unknown: str | None = None) -> list[str]:
    return [metric.label, *(unknown if value is None and unknown else metric.text(value) for value in values)]


def _gpu_rows(sides: Sequence[Side]) -> list[list[str]]:
    if all(side.gpus is None for side in sides):
        return [_trial_row("gpu_utilization", sides, NOT_MEASURED)]
    effective = [side.gpus.effective_utilization if side.gpus else None for side in sides]
    rows = [_row(GPU_METRICS["effective_utilization"], effective, "unknown yet"), *_utilization_rows(sides)]
    mean = () if len(_uuids(sides)) > _MOST_GPU_ROWS else ("utilization",)  # already there
    for name in (*mean, "idle_fraction", "duty_fraction", "sm_activity", "tensor_activity", "dram_activity"):
        values = [_over_scored(side, name) for side in sides]
        rows += [_row(GPU_METRICS[name], values)] if any(value is not None for value in values) else []
    for name in ("energy_per_sample_j", "gpu_memory_bytes"):  # metrics of the trial, not of a GPU
        if any((side.metrics or {}).get(name) is not None for side in sides):
            rows.append(_trial_row(name, sides))
    return rows


def _utilization_rows(sides: Sequence[Side]) -> list[list[str]]:
    devices = [{device.figures.uuid: device for device in side.gpus.devices} if side.gpus else {} for side in sides]
    uuids = _uuids(sides)
    if len(uuids) > _MOST_GPU_ROWS:
        return _rows_over_gpus(sides)
    some_are_not_scored = any(not device.scored for side in devices for device in side.values())
    return [
        [
            METRICS["gpu_utilization"].label if len(uuids) == 1 else f"GPU {place} utilization",
            *(_verdict(side.get(uuid), mark=some_are_not_scored) for side in devices),
        ]
        for place, uuid in enumerate(uuids)
    ]


def _uuids(sides: Sequence[Side]) -> list[str]:
    return list(dict.fromkeys(one.figures.uuid for side in sides if side.gpus for one in side.gpus.devices))


_MOST_GPU_ROWS = 2  # more GPUs, those of all ranks, are summarized


def _rows_over_gpus(sides: Sequence[Side]) -> list[list[str]]:
    """Return the mean and the lowest utilization of the scored GPUs, and the imbalance between them."""
    busy = [[one.figures.utilization for one in side.gpus.devices if one.scored] if side.gpus else [] for side in sides]
    known = [[share for share in side if share is not None] for side in busy]
    whole = [side if side and len(side) == len(every) else None for side, every in zip(known, busy, strict=True)]
    metric, most = METRICS["gpu_utilization"], max(map(len, busy))
    return [
        _row(replace(metric, label=label), [of(side) if side else None for side in whole], NOT_MEASURED)
        for label, of in (
            (f"utilization, mean of {most} GPUs", fmean),
            ("utilization, lowest GPU", min),
            ("utilization, highest - lowest", lambda side: max(side) - min(side)),
        )
    ]


def _verdict(device: PooledGpu | None, *, mark: bool) -> str:
    if device is None:
        return NOT_MEASURED
    text = f"{device.role}: {device.text}" if device.role else device.text
    if device.reference and device.against_reference:
        text += f", {device.against_reference} {_range(device.reference)}"
    return f"{text} (scored)" if mark and device.scored else text


def _range(reference: tuple[float, float]) -> str:
    return "-".join(f"{100 * end:.0f}" for end in reference) + " %"


def _over_scored(side: Side, name: str) -> float | None:
    devices = side.gpus.devices if side.gpus else ()
    values: list[float | None] = [device.value(name) for device in devices if device.scored]
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


# Validation.


def validation_notes(result: SearchResult) -> Iterator[Text]:
    """Yield notes on the validation."""
    for point in result.broken:
        faster = f"{point.speedup.ratio:.2f}x as fast, but " if point.speedup else ""
        broke = plain("; ".join(point.validation.broke), longest=_LONGEST)
        yield Text(f"Not chosen: {changes_text(point.changes)}: {faster}it broke in a longer training: {broke}.")
    if result.validation is not None:
        word, style = ("Broke: ", "bold red") if result.validation.broke else ("Validated: ", "bold green")
        yield Text.assemble((word, style), f"{_sentence(result.validation)}.")
        for remark in result.validation.remarks:
            yield Text(f"{plain(remark[:1].upper() + remark[1:], longest=_LONGEST)}.", style="dim")


def _sentence(validation: Validation) -> str:
    trained = f"trained for {format_duration(validation.trained_s)}, {_passed(validation)}"
    if validation.broke:
        return f"{trained}; {plain('; '.join(validation.broke), longest=_LONGEST)}"
    results = []
    if validation.losses is not None:
        results.append(f"loss {validation.losses[0]:.3g}, {validation.losses[1]:.3g} today")
    elif validation.loss_ratio is not None:
        results.append("loss develops as today")
    if validation.speed_ratio is not None:
        overall = validation.overall_ratio
        between = f", {overall:.2f}x including the time between steps" if overall is not None else ""
        results.append(f"{validation.speed_ratio:.2f}x as fast as today's config{between}")
    if validation.memory_growth_bytes_per_s == 0:
        results.append("memory does not grow")
    return "; ".join((trained, *results))


def _passed(validation: Validation) -> str:
    counts = {nouns: getattr(validation, kind) for kind, nouns in PAUSE_NOUNS.items()}
    passed = [f"{count} {one if count == 1 else several}" for (one, several), count in counts.items() if count]
    missed = [one for (one, _), count in counts.items() if not count]
    reached = f"with {', '.join(passed)}" if passed else ""
    without = f"no {' or '.join(missed)}" if missed else ""
    return ", ".join(filter(None, (reached, without)))


# Race.


_CONVERGENCE = {
    Learning.FASTER: ("Converges faster: ", "bold green"),
    Learning.ALIKE: ("Converges equally fast: ", "bold green"),
    Learning.SLOWER: ("Converges more slowly: ", "bold red"),
    Learning.UNKNOWN: ("Convergence: ", "bold yellow"),
    Learning.MEMORISES: ("Overfits: ", "bold red"),
}


def race_notes(result: SearchResult) -> Iterator[Text]:
    """Yield notes on convergence."""
    race = result.race
    if race is None:
        if result.why_not_raced:
            why = plain(result.why_not_raced, longest=_LONGEST)
            yield Text.assemble(("Convergence: ", "bold yellow"), f"unknown if it also converges faster: {why}.")
        return
    yield Text.assemble(_CONVERGENCE[race.winner.learning], f"{outcome(race, race.winner)}.")
    if race.scaled is not None and race.learning_rate is not None:
        setting = f"{plain(race.learning_rate_key)}: {value_text(race.learning_rate)}"
        yield Text(f"With {setting} as well, {outcome(race, race.scaled)}.{_proposal(race)}")
    if race.winner.evaluation_losses is not None and race.winner.held_out is None:
        today, other = race.winner.evaluation_losses
        yield Text(f"The loss of its latest evaluations was {other:.4g}, and {today:.4g} today.", style="dim")
    start = f"a copy of the newest checkpoint, {plain(race.checkpoint)}" if race.checkpoint else "scratch"
    rounds = f"{race.pairs} interleaved {'round' if race.pairs == 1 else 'rounds'}"
    yield Text(f"Raced from {start}, {rounds}.", style="dim")


def outcome(race: Race, raced: Raced) -> str:
    """Return a clause on the convergence relative to today's config."""
    if raced.diverged:
        return "its loss became NaN or infinite"
    losses = raced.deciding
    if losses is None:
        return f"inconclusive: {plain(race.why_unknown, longest=_LONGEST) or 'the race was cut short'}"
    after_s = race.trained_s if raced.after_s is None else raced.after_s
    loss = "loss" if raced.held_out is None else "held-out loss"
    comparison = (
        f"after {format_duration(after_s)} of training each, the {loss} "
        f"is {losses.other:.4g}, and {losses.today:.4g} today (97.5 % interval of the difference {losses.low:+.2g} to "
        f"{losses.high:+.2g})"
    )
    if raced.learning is Learning.MEMORISES:
        return f"{comparison}; not comparable: {raced.why}"
    if raced.why:
        return f"{comparison}; inconclusive: {raced.why}"
    if raced.learning is Learning.UNKNOWN:
        longer = f"; a race of {format_duration(raced.needed_s)} would probably decide" if raced.needed_s else ""
        return f"{comparison}; inconclusive{longer}"
    if raced.learning is Learning.ALIKE:
        return f"{comparison}; both converge equally fast"
    speed = f", {raced.learning_speed:.2f}x as fast" if raced.learning_speed else ""
    return f"{comparison}; it converges {'faster' if raced.learning is Learning.FASTER else 'more slowly'}{speed}"


def why_it_needs_consent(result: SearchResult) -> str:
    """Return a sentence on changes to the training, and their evidence."""
    what, race = f"It changes {_what_changes(result)}", result.race
    if result.verdict is Verdict.NO_BASELINE:
        known = "it was never compared with today's config, which has no measurement"
        return f"{what}, and {known}." if result.changes_training else f"{known[0].upper()}{known[1:]}."
    if race is None:
        return f"{what}; unknown if it also converges faster: {result.why_not_raced}."
    raced = outcome(race, race.winner)
    if race.winner.learning is Learning.MEMORISES:
        return f"It overfitted in the race: {raced}."
    if race.winner.learning is Learning.SLOWER:
        return f"{what}, and it converged more slowly in the race: {raced}."
    if race.winner.learning.is_safe:
        return f"{what}, and it converged at least equally fast in the race: {raced}."
    return f"{what}, and the race did not show that it converges equally fast: {raced}."


_CHANGED = {"batch": "the batch", "precision": "the precision", "different data": "the training data"}


def _what_changes(result: SearchResult) -> str:
    known = dict.fromkeys(_CHANGED[change.label] for change in result.changes if change.label in _CHANGED)
    unknown = [plain(change.path) for change in result.changes if change.label == "unknown"]
    effect = [f"{first_of(unknown, 3)} (effect on the training unknown)"] if unknown else []
    return listed([*known, *effect])


def refusal(result: SearchResult, typed: TypedOptions) -> ConfigError:
    """Return the error for writing an answer without consent."""
    why = why_it_needs_consent(result)
    commands = ", or ".join(f"`{command}` ({purpose})" for command, purpose in next_commands(result, typed).items())
    return ConfigError(
        f"no change that leaves the training unchanged was confirmed: {why[0].lower()}{why[1:-1]}",
        where=str(typed.config),
        remedy=f"Run {commands}.",
    )


def _proposal(race: Race) -> str:
    if race.proposed_rate is not None:
        return " This is a proposal; only `apply --learning-rate` writes it."
    if race.scaled is not None and race.scaled.learning.is_safe:
        return " Not proposed: the loss is not lower than with the current learning rate."
    return ""
