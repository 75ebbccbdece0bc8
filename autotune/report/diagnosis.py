"""Screens and JSON of diagnoses and profiles."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.diagnose.findings import (
    NO_LIMIT,
    CheckResult,
    Diagnosis,
    GainBasis,
    Issue,
    Recommendation,
    Severity,
    TimeShare,
    ratio_text,
)
from autotune.diagnose.profiles import Phase, PipelineProfile, StepProfile
from autotune.diagnose.tables import CHECKS, starting_batch, types_of, usual_gpus
from autotune.records import Gpu
from autotune.report.json_answer import FORMAT
from autotune.report.plain_text import EFFECT, change_text, effect_text, plain, value_text

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def print_diagnosis(console: Console, diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""

    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style))

    say(diagnosis.verdict.sentence, "bold")
    if diagnosis.issues:
        console.print()
    for issue in diagnosis.issues:
        is_in_verdict = issue.sentence in diagnosis.verdict.sentence and issue.place in diagnosis.verdict.sentence
        if not is_in_verdict:
            _print_issue(console, issue)
    if diagnosis.shares:
        console.print()
        say("Time by cause, with the best change for each", "bold")
        console.print(_shares(diagnosis.shares))
    acting = [one.change.name for one in diagnosis.shares if one.change]
    if others := [one for one in diagnosis.recommendations if one.name not in acting]:
        console.print()
        say("Other changes, by certain gain" if diagnosis.shares else "Recommendations", "bold")
        console.print(_table(others))
    if diagnosis.changes:
        console.print()
        say("Config changes that leave the training unchanged", "bold")
        for line in yaml_lines(diagnosis):
            console.print(Text(line), soft_wrap=True)
    passed = [result for result in diagnosis.results if not result.issues]
    if passed:
        console.print()
        say("Other checks", "bold")
    outcomes: dict[str, list[str]] = {}
    for result in passed:
        outcome = result.sentence or f"{_question(result)} Nothing found."
        if result.why_not:
            outcome = f"not checked: {result.why_not}"
        outcomes.setdefault(outcome, []).append(result.check)
    for outcome, checks in outcomes.items():
        say(f"  {', '.join(checks)}: {outcome}", "dim")


def _question(result: CheckResult) -> str:
    return next(check.question for check in CHECKS if check.id == result.check)


def _print_issue(console: Console, issue: Issue) -> None:
    line = Text()
    line.append(f"{issue.severity} ", style=_STYLES[issue.severity])
    line.append(f"[{issue.check}: {issue.rule}] " if issue.rule else f"[{issue.check}] ", style="dim")
    line.append(issue.sentence)
    if issue.place and issue.place not in issue.sentence:
        line.append(f" ({issue.place})", style="dim")
    console.print(line)


def _shares(shares: Sequence[TimeShare]) -> Table:
    table = _headed()
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("cause", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("change", ratio=2, overflow="fold")
    table.add_column("gain", no_wrap=True)
    table.add_column(EFFECT, no_wrap=True)
    for one, share in zip(shares, whole_percents([one.fraction for one in shares]), strict=True):
        change = one.change
        cells = (
            (change_text(change.values, change.sentence), _gain(change), effect_text(change.label, change.data))
            if change
            else ("", "", "")
        )
        table.add_row(f"{share} %", one.cause, Text(one.place), *map(Text, cells))
    return table


def whole_percents(fractions: Sequence[float]) -> list[int]:
    """Return shares as percentages with sum 100; the last is the remainder."""
    percents = [round(100.0 * fraction) for fraction in fractions[:-1]]
    remainder = 100 - sum(percents)
    if remainder < 0:
        percents[percents.index(max(percents))] += remainder
    return [*percents, max(0, remainder)]


def _headed() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=True, header_style="dim")


def _table(recommendations: Sequence[Recommendation]) -> Table:
    table = _headed()
    table.add_column("change", ratio=3, overflow="fold")
    table.add_column("gain", no_wrap=True)
    table.add_column(EFFECT, no_wrap=True)
    table.add_column("cost", overflow="fold")
    for one in recommendations:
        table.add_row(
            Text(change_text(one.values, one.sentence)),
            Text(_gain(one)),
            Text(effect_text(one.label, one.data)),
            Text(one.cost),
        )
    return table


def yaml_lines(diagnosis: Diagnosis) -> list[str]:
    """Return changes as YAML, with gains as comments."""
    lines: list[tuple[str, str]] = []
    above: list[str] = []  # sections of the previous line
    for path, one in sorted(diagnosis.changes.items()):
        *sections, name = path.split(".")
        shared = next((n for n, two in enumerate(zip_longest(above, sections)) if two[0] != two[1]), len(sections))
        lines += [(f"{'  ' * depth}{sections[depth]}:", "") for depth in range(shared, len(sections))]
        lines.append((f"{'  ' * len(sections)}{name}: {value_text(one.values[path])}", _gain(one)))
        above = sections
    width = max(len(line) for line, gain in lines if gain) + 2
    return [f"{line:{width}}# {gain}" if gain else line for line, gain in lines]


def _gain(one: Recommendation) -> str:
    if one.gain is None:
        return "not tried"
    if one.evidence is GainBasis.MEASURED:
        return ratio_text(one.gain)
    if one.gain.high > NO_LIMIT:
        return "no longer the limit"
    return f"at most {one.gain.high:.2f}x"


# Starting values for GPUs.


def print_gpus(console: Console, here: Sequence[Gpu], *, effective_batch: int, cpu_cores: int) -> None:
    """Print starting values as YAML, for this machine's and common GPUs."""
    lines = [
        "# Starting values, not measured: the memory per sample depends on the model; `autotune search` measures it.",
        "# A batch has at most 1.5 samples per GiB.",
    ]
    for is_here, gpu in [*((True, gpu) for gpu in here), *((False, gpu) for gpu in usual_gpus())]:
        workers = max(1, (cpu_cores - 1) // len(here)) if is_here else 4
        lines += _settings_of(gpu, effective_batch, min(8, workers), is_here=is_here)
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def _settings_of(gpu: Gpu, effective_batch: int, workers: int, *, is_here: bool) -> list[str]:
    batch, steps = accumulated(effective_batch, starting_batch(gpu) or 1)
    types = types_of(gpu)
    half = next((name for name in ("bfloat16", "float16") if name in (types or ())), "float32")
    memory = f"{gpu.memory_bytes / 1e9:.0f} GB" if gpu.memory_bytes else "memory unknown"
    off = batch * steps - effective_batch
    exact = "exact" if off == 0 else f"{abs(off)} {'more' if off > 0 else 'fewer'} than requested"
    return [
        f"- gpu: {value_text(plain(gpu.name))}  # {memory}{', this machine' if is_here else ''}",
        f"  batch_size: {batch}",
        f"  gradient_accumulation_steps: {steps}  # {batch} x {steps} = {batch * steps}, {exact}",
        f"  num_workers: {workers}",
        "  prefetch: 4",
        f"  precision: {half}{'' if types is not None else '  # unknown model'}",
        "  xla: true  # if all batches have one shape",
    ]


def accumulated(samples: int, most: int) -> tuple[int, int]:
    """Return a batch up to ``most``, exact if half of it suffices, and how many make an update of ``samples``."""
    most = min(most, samples)
    exact = next(batch for batch in range(most, 0, -1) if samples % batch == 0)
    batch = exact if 2 * exact >= most else most
    return batch, max(1, round(samples / batch))


# JSON.


def diagnosis_document(
    diagnosis: Diagnosis, *, elapsed_s: float | None, failed_on: str | None, paths: Mapping[str, str | None]
) -> dict[str, Any]:
    """Return the object of ``diagnose --json``."""
    return {
        "format": FORMAT,
        "verdict": asdict(diagnosis.verdict),
        "shares": [asdict(one) for one in diagnosis.shares],
        "checks": [
            {
                "id": result.check,
                "question": _question(result),
                "issues": [asdict(issue) for issue in result.issues],
                "sentence": result.sentence or None,
                "why_not": result.why_not or None,
            }
            for result in diagnosis.results
        ],
        "recommendations": [asdict(one) for one in diagnosis.recommendations],
        "failed_on": failed_on,
        "elapsed_s": elapsed_s,
        "paths": dict(paths),
    }


# Step profile.


def print_step_profile(console: Console, profile: StepProfile) -> None:
    """Print a step's phases and operations."""
    of = f" of {profile.framework}" if profile.framework else ""
    size = "" if profile.batch_size is None else f": batches of {profile.batch_size:.4g}"
    console.print(f"Step{of}{size}; {profile.steps} steps", soft_wrap=True)
    console.print(Text(profile.verdict), soft_wrap=True)
    table = Table("phase", "mean ms", "median", "middle half", "p95", "p99", "share")
    for phase in (*profile.phases, profile.step):
        table.add_row(*_cells(phase, profile.step.mean_ms or 0.0))
    console.print(table)
    if profile.gpu_utilization is not None:
        console.print(f"GPU utilization in training: {_percent(profile.gpu_utilization)}.", soft_wrap=True)
    if profile.why_not is not None:
        console.print(f"Incomplete: {plain(profile.why_not)}.", soft_wrap=True)
    if not profile.operations:
        return
    table = Table("operation", "calls per step", "ms on the host", "ms on a GPU")
    for one in profile.operations[:10]:
        table.add_row(plain(one.name), f"{one.times:.4g}", f"{one.host_ms:.3f}", f"{one.device_ms:.3f}")
    console.print(table)
    steps = f"The operations are from {profile.framework}'s profiler, over {profile.profiled_steps} steps."
    console.print(plain(steps), soft_wrap=True)


def _cells(phase: Phase, step_ms: float) -> tuple[str, ...]:
    if phase.mean_ms is None or phase.median_ms is None:
        return plain(phase.name), "not measured", "", plain(phase.why_not or "")
    middle = "{:.2f}-{:.2f}".format(*phase.quartiles_ms) if phase.quartiles_ms else ""
    tail = [f"{value:.2f}" for value in phase.tail_ms or ()] or ["", ""]
    share = _percent(phase.mean_ms / step_ms) if step_ms else ""
    return plain(phase.name), f"{phase.mean_ms:.2f}", f"{phase.median_ms:.2f}", middle, *tail, share


# Pipeline profile.


def print_pipeline_profile(console: Console, profile: PipelineProfile) -> None:
    """Print times of batches, and the conclusion."""
    if profile.batch_samples is not None:
        console.print(f"Batches of {profile.batch_samples:.4g} samples", soft_wrap=True)
    columns = ("mean", "sd", "min", "median", "p95", "p99", "max")
    table = Table("ms per batch", *columns, "variation", "batches")
    rows = {
        "loader alone": profile.loading,
        "waits in training": profile.waits,
        "training steps": profile.steps,
        "steps without loading": profile.replayed,
    }
    for name, times in rows.items():
        if times is None:
            table.add_row(name, "not measured")
            continue
        numbers = (f"{getattr(times, f'{column}_ms'):.2f}" for column in columns)
        table.add_row(name, *numbers, _percent(times.variation), str(times.batches))
    console.print(table)
    if profile.why_no_loading:
        console.print(f"The loader alone was not measured: {plain(profile.why_no_loading)}.", soft_wrap=True)
    for name, times in rows.items():
        if times and times.cycle:
            console.print(
                f"Cycle in {name}: every {times.cycle.batches:.3g} batches one takes {times.cycle.slow_ms:.3g} ms, the "
                f"others {times.cycle.others_ms:.3g} ms.",
                soft_wrap=True,
            )
    if profile.loading_stages:
        stages = Table("loading stage", "ms per example", "share", "examples")
        for stage in profile.loading_stages:
            stages.add_row(plain(stage.name), f"{stage.mean_ms:.3f}", _percent(stage.fraction), str(stage.examples))
        console.print(stages)
    if profile.stages is not None:
        console.print(f"Two devices: {plain(profile.stages.verdict(), longest=400)}.", soft_wrap=True)
    if profile.gpu_utilization is not None:
        console.print(f"GPU utilization in training: {_percent(profile.gpu_utilization)}.", soft_wrap=True)
    console.print(Text(profile.sentence), soft_wrap=True)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"
