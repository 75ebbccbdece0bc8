"""Sections of a report that show what was measured: trials, utilization, steps, and what the numbers hold for."""

from collections.abc import Mapping, Sequence
from statistics import median

from autotune.clock import format_duration
from autotune.metrics import METRICS
from autotune.records import NOT_COMPARED, GpuMeasurement, PooledGpu, SearchResult, Side, TrialRecord
from autotune.report.html.contents import Html, Section, StudyContents, element, pictured, prose, table
from autotune.report.html.pictures import (
    TrialPoint,
    best_over_time,
    draw_step_parts,
    draw_step_times,
    draw_time_parts,
    draw_trials,
    draw_utilization,
    trial_points,
)
from autotune.report.plain_text import plain

_MOST_ROWS = 300
_MOST_FAILURES = 12
_VERBS = (
    ("search", "search on, or anew on another machine"),
    ("same training", "search for values that leave the training itself as it is"),
    ("status", "see the answer in a terminal"),
    ("diagnose", "see why it is slow"),
    ("apply", "write the values into the config"),
    ("revert", "take them back"),
    ("report", "write this report anew"),
)
_NOT_KEPT = "The times of single steps are not kept any more: the folders of the trials are gone."


def progress(contents: StudyContents) -> Section:
    """Return all trials, and the best speed so far, against time."""
    points, title = trial_points(contents.trials), "The search: all trials, and the best so far"
    if not points:
        return Section(id="trials", title=title, lead=["There is no trial of a search yet."])
    shown = [point for point in points if point.trial.purpose not in NOT_COMPARED]
    best = best_over_time(shown)
    failed = [point for point in points if point.has_failed]
    lead = [f"{len(points)} trials in {format_duration(points[-1].t_s)} of searching" + _failures_of(failed)]
    if len(contents.trials) != len(points):
        lead.append(f"{len(contents.trials) - len(points)} trials of diagnoses are left out.")
    machines = dict.fromkeys(point.trial.machine for point in points)
    names = {machine: plain(contents.machines.get(machine, machine)) for machine in machines}
    if len(names) > 1:
        lead.append(
            f"Made on {len(names)} machines: {', '.join(names.values())}. Each trial stands beside "
            "today's config on its own machine."
        )
    rows = [_row(point, names) for point in points[-_MOST_ROWS:]]
    if len(points) > len(rows):
        lead.append(f"The table holds the last {len(rows)}.")
    head = ["trial", *(["machine"] if len(names) > 1 else []), "purpose", "what it changes", "how it ended"]
    numbers = ["speed", "times today", "took"]
    return Section(
        id="trials",
        title=title,
        lead=lead,
        picture=draw_trials(shown, best) if best or any(point.has_failed for point in shown) else None,
        table=table("All trials", [*head, *numbers], rows, words=len(head)),
        more=[_failures(failed, contents.remedies)] if failed else [],
    )


def utilization(contents: StudyContents, result: SearchResult) -> Section:
    """Return the utilization of today's config and of the best, side by side."""
    title = "GPU utilization"
    sides = [("today", result.baseline), (contents.name_of_shown, contents.shown)]
    drawn = [
        (name, gpu, windows)
        for name, side in sides
        if side is not None and (found := _windows(side, contents.trials)) is not None
        for gpu, windows in [found]
    ]
    if not drawn:
        why = result.why_no_gpu or "no windows of the driver were kept"
        return Section(id="utilization", title=title, lead=[f"It was not measured: {why}."])
    rows = [
        [
            name,
            gpu.text,
            _percent(gpu.figures.utilization),
            _band(gpu),
            f"{gpu.period_s:.2g} s" if gpu.period_s else "-",
        ]
        for name, gpu, _ in drawn
    ]
    return Section(
        id="utilization",
        title=title,
        lead=["The driver's windows over one trial of each; the mean dashed, the band between its two levels shaded."],
        picture=draw_utilization(drawn),
        table=table("GPU utilization", ("config", "in words", "mean", "band", "period"), rows, words=2),
    )


def step_times(contents: StudyContents) -> Section:
    """Return how long the steps of both sides took."""
    title = "Step times"
    sides = [
        (name, times)
        for name, times in zip(("today", contents.name_of_shown), contents.step_times_s, strict=True)
        if times
    ]
    if not sides:
        return Section(id="steps", title=title, lead=[_NOT_KEPT])
    rows = [
        [name, str(len(times)), *(f"{1000 * _quantile(times, share):.3g} ms" for share in (0.05, 0.5, 0.95, 0.99))]
        for name, times in sides
    ]
    head = ("config", "steps", "5 %", "median", "95 %", "99 %")
    return Section(
        id="steps",
        title=title,
        lead=["Steps of the confirming trials. A larger batch makes longer steps, and fewer of them."],
        picture=draw_step_times(sides),
        table=table("Step times", head, rows),
    )


def time_parts(contents: StudyContents, result: SearchResult) -> Section:
    """Return how much of the time is waiting for data."""
    title = "Where the time goes"
    sides = [("today", result.baseline), (contents.name_of_shown, contents.shown)]
    parts = [(name, *found) for name, side in sides if side is not None and (found := _parts(side)) is not None]
    if not parts:
        lead = ["The trainer does not tell how long it waits for data."]
        return Section(id="parts", title=title, lead=lead, more=_step_parts(contents))
    rows = [
        [name, f"{waiting_s:.3g} s", f"{rest_s:.3g} s", _percent(waiting_s / (waiting_s + rest_s))]
        for name, waiting_s, rest_s in parts
    ]
    return Section(
        id="parts",
        title=title,
        lead=["Time for 1,000 samples: waiting for data, and the rest of the steps.", *_where_parts_are(contents)],
        picture=draw_time_parts(parts),
        table=table("Time for 1,000 samples", ("config", "waiting for data", "the rest", "share that waits"), rows),
        more=_step_parts(contents),
    )


def _where_parts_are(contents: StudyContents) -> list[str]:
    if contents.step_parts:
        return []
    return [_with_a_diagnosis(contents, "tells what the rest is made of")]


def _with_a_diagnosis(contents: StudyContents, does: str) -> str:
    diagnose = contents.commands.get("diagnose", "autotune diagnose")
    report = contents.commands.get("report", "autotune report")
    return f"`{diagnose} --out FOLDER` {does}, and `{report} --diagnosis FOLDER` puts it in here."


def _step_parts(contents: StudyContents) -> list[Html]:
    known = [(part.name, part.mean_ms) for part in contents.step_parts if part.mean_ms is not None]
    if not known:
        return []
    whole_ms = sum(max(0.0, mean_ms) for _, mean_ms in known)
    rows = [
        [
            part.name,
            "not measured" if part.mean_ms is None else f"{max(0.0, part.mean_ms):.3g} ms",
            _percent(max(0.0, part.mean_ms) / whole_ms if part.mean_ms is not None and whole_ms else None),
        ]
        for part in contents.step_parts
    ]
    head = ("part", "mean", "share of the parts")
    return [
        element("h3", "What a step is made of"),
        element("p", "Parts of a step of today's config, from the profile that the diagnosis made."),
        pictured(draw_step_parts(known), table("Parts of a step", head, rows)),
    ]


def advice(contents: StudyContents) -> Section:
    """Return what a diagnosis recommends."""
    title = "Why it is slow"
    if contents.advice is None:
        lead = [f"No diagnosis is at hand: {_with_a_diagnosis(contents, 'makes one')}"]
        return Section(id="advice", title=title, lead=lead)
    rows = [[one.sentence, one.values, one.gain or "not tried"] for one in contents.advice]
    return Section(
        id="advice",
        title=title,
        lead=[contents.verdict_of_diagnosis] if contents.verdict_of_diagnosis else [],
        table=table("Recommendations", ("recommendation", "values", "gain"), rows, words=2) if rows else None,
    )


def conditions(contents: StudyContents) -> Section:
    """Return what the numbers hold for."""
    return Section(
        id="conditions",
        title="What this holds for",
        lead=["On another machine, with other versions or other data the numbers are others."],
        table=table("Conditions", ("what", "as it was"), contents.conditions, words=2),
    )


def repeat(contents: StudyContents) -> Section:
    """Return the commands that go on from here."""
    rows = [[words, element("code", contents.commands[verb])] for verb, words in _VERBS if verb in contents.commands]
    return Section(
        id="repeat",
        title="How to repeat it, and what next",
        table=table("Commands", ("to", "type"), rows, words=2),
    )


def _row(point: TrialPoint, machines: Mapping[str, str]) -> list[str]:
    trial = point.trial
    purpose = trial.purpose.value if trial.pair is None else f"pair {trial.pair + 1}"
    host = [machines[trial.machine]] if len(machines) > 1 else []
    ending = (
        trial.ending.value if trial.validity.value in ("good", "unmeasured") else f"{trial.ending}, {trial.validity}"
    )
    speed = METRICS["samples_per_s"].text(trial.measurement.speed if trial.measurement is not None else None)
    ratio = f"{point.ratio:.2f}x" if point.ratio is not None else "-"
    took = format_duration(trial.duration_s)
    return [str(trial.number), *host, purpose, point.changes, ending, speed, ratio, took]


def _failures_of(failed: Sequence[TrialPoint]) -> str:
    if not failed:
        return "; none failed."
    endings: dict[str, int] = {}
    for point in failed:
        endings[point.trial.ending.value] = endings.get(point.trial.ending.value, 0) + 1
    return f"; {len(failed)} failed: {', '.join(f'{count} {ending}' for ending, count in endings.items())}."


def _failures(failed: Sequence[TrialPoint], remedies: Mapping[str, str]) -> Html:
    rows = [
        [str(point.trial.number), point.trial.ending.value, point.changes, point.trial.detail or "-"]
        for point in failed[-_MOST_FAILURES:]
    ]
    endings = dict.fromkeys(point.trial.ending.value for point in failed)
    return element(
        "div",
        element("h3", "Trials that failed" + (f", the last {len(rows)}" if len(rows) < len(failed) else "")),
        table("Failures", ("trial", "how it ended", "what it changed", "what it said"), rows, words=4),
        [
            element("p", element("strong", f"{ending}: "), prose(remedies[ending]))
            for ending in endings
            if ending in remedies
        ],
    )


def _windows(
    side: Side, trials: Sequence[TrialRecord]
) -> tuple[PooledGpu, Sequence[tuple[float, float, float]]] | None:
    """Return the scored GPU of a side, and its driver windows in the trial that has the most of them."""
    if side.gpus is None:
        return None
    gpu = next((one for one in side.gpus.devices if one.scored), None)
    if gpu is None:
        return None
    found: list[GpuMeasurement] = [
        one
        for trial in trials
        if trial.point == side.point and trial.comparable is not None
        for one in trial.comparable.gpus
        if one.figures.uuid == gpu.figures.uuid and one.busy_windows
    ]
    return (gpu, max(found, key=lambda one: len(one.busy_windows)).busy_windows) if found else None


def _parts(side: Side) -> tuple[float, float] | None:
    metrics = side.metrics or {}
    waiting, speed = metrics.get("data_wait_fraction"), metrics.get("samples_per_s")
    if waiting is None or not speed:
        return None
    return 1000.0 / speed * waiting, 1000.0 / speed * (1.0 - waiting)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _band(gpu: PooledGpu) -> str:
    return "-" if gpu.low is None or gpu.high is None else f"{100 * gpu.low:.0f} to {100 * gpu.high:.0f} %"


def _quantile(times: Sequence[float], share: float) -> float:
    if share == 0.5:
        return median(times)
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
