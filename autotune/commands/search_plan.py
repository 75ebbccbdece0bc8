"""Plan of a search as text."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.clock import Clock, format_duration
from autotune.config.command import resolve_executable
from autotune.config.keys import counted, first_of
from autotune.config.outputs import non_empty_outputs
from autotune.config.secrets import masked, masked_text
from autotune.config.sources import Script, trainer_files
from autotune.frameworks import FRAMEWORKS
from autotune.options import SearchRequest
from autotune.records import Scalar
from autotune.report.plain_text import EFFECT, plain, value_text
from autotune.search.gpus import busy_remarks, remarks_on_gpus
from autotune.search.init_plan import keys_beaten, not_taken
from autotune.search.problem import Problem
from autotune.search.schedule import race_s
from autotune.search.warm_start import warm_start
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, Label, key_name, same_scalar
from autotune.study.identity import framework_versions
from autotune.trial.python_command import python_command


def show_plan(console: Console, problem: Problem, request: SearchRequest) -> None:
    """Print the plan in at most five lines, and the notes."""
    lines = list(_knob_lines(problem))
    if left_out := len(problem.skipped) + len(not_taken(problem)) + len(problem.settings.outputs.left):
        lines.append(f"not tuned: {counted(left_out, 'key')}; --dry-run lists the reasons")
    redirected = [plain(key) for key in problem.settings.redirected(problem.command)]
    outputs = f"; redirected: {first_of(redirected, 3)}" if redirected else ""
    lines += [f"command: {' '.join(masked(problem.command))}{outputs}", _size_line(problem, request)]
    print_dim(console, [*lines, *_notes(problem)])


def _knob_lines(problem: Problem) -> Iterator[str]:
    """Yield a line of the knobs that leave the training unchanged, and one of the others."""
    knobs = [knob for knob in problem.space.within_reach({}).knobs if len(knob.choices) > 1]
    for is_same, heading in ((True, "same training"), (False, "changes the training")):
        listed = [
            f"{knob.path} {value_text(knob.baseline)} ({_choices_text(knob)})"
            for knob in knobs
            if (knob.label is Label.SAME_TRAINING) == is_same
        ]
        if listed:
            yield f"{heading}: {first_of(listed, 3)}"


def _size_line(problem: Problem, request: SearchRequest) -> str:
    validate_s, for_race_s = request.validate_s, race_s(request.race_s, request.budget_s)
    validation = f", and to train both for up to {format_duration(validate_s)}" if validate_s else ""
    race = ""
    if for_race_s:
        condition = "" if request.race_s else ", if the batch or the precision changes"
        race = f"; {format_duration(for_race_s)} to race both on the loss{condition}"
    return (
        f"{problem.space.within_reach({}).size:,} combinations; budget {format_duration(request.budget_s)}, "
        f"part of it reserved to confirm the best against today's values{validation}{race}"
    )


def _notes(problem: Problem) -> list[str]:
    return [plain(note, 1000) for note in (*output_notes(problem), *command_notes(problem))]


def left_out_lines(problem: Problem, further: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines on skipped keys: knobs by reason, and outputs.

    Args:
        further: Other names with their reasons.
    """
    left = {one.path: one.why for one in (*problem.skipped, *not_taken(problem))}
    by_reason: dict[str, list[str]] = {}
    for key, why in {**left, **(further or {})}.items():
        by_reason.setdefault(why, []).append(plain(key))
    outputs = problem.settings.outputs.left.items()
    return [
        *(f"not tuned: {first_of(keys, 3)}: {plain(why)}" for why, keys in by_reason.items()),
        *(f"looks like an output, not redirected: {plain(key)}: {plain(why)}" for key, why in outputs),
    ]


def redirected_line(problem: Problem) -> list[str]:
    """Return the line on redirected outputs, if any."""
    outputs = ", ".join(map(plain, problem.settings.redirected(problem.command)))
    return [f"redirected into each trial's folder, initially empty: {outputs}"] if outputs else []


def print_dim(console: Console, lines: Iterable[str]) -> None:
    """Print dim lines."""
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)


_LONGEST_NAME = 50  # shown whole at 80 columns


def knob_table(problem: Problem) -> Table:
    """Return the table of knobs."""
    knobs = problem.space.within_reach({}).knobs
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), expand=True)
    names = max((len(path) for knob in knobs for path in knob.paths), default=0)
    table.add_column("knob", no_wrap=True, min_width=min(names, _LONGEST_NAME))  # long values give way to names
    for column in ("today", "candidates", EFFECT):
        table.add_column(column, style="dim" if column == EFFECT else None, no_wrap=True)
    table.add_column("", style="dim", no_wrap=True, ratio=1)  # the sentence gets the remaining width
    for knob in knobs:
        cells = value_text(knob.baseline), _choices_text(knob), knob.effect, traits_of(knob).meaning
        table.add_row("\n".join(knob.paths), *cells)
    return table


def _choices_text(knob: Knob) -> str:
    texts = [_choice_text(knob, choice) for choice in knob.choices]
    return ", ".join([*texts[:6], "…", texts[-1]] if len(texts) > 8 else texts)


def _choice_text(knob: Knob, choice: Scalar) -> str:
    """Return a choice, with the keys whose value differs from it."""
    if knob.batch is not None:
        return value_text(choice)  # the other keys of the batch follow from it
    others = {path: value for path, value in knob.keys(choice).items() if not same_scalar(value, choice)}
    also = ", ".join(f"{key_name(path)} {value_text(value)}" for path, value in others.items())
    return f"{value_text(choice)} ({also})" if also else value_text(choice)


def output_notes(problem: Problem) -> list[str]:
    """Return notes on the user's outputs."""
    settings = problem.settings
    beside = (problem.settings.folder, problem.config_path.absolute().parent)
    notes = [
        f"{key} is not empty: trials start with an empty one, and do not resume from it"
        for key in non_empty_outputs(settings.trial_document, settings.outputs.redirected, *beside)
    ]
    return notes + [
        f"{key}: {masked_text(value_text(settings.value(key)))} may upload something in each trial; "
        "set: can change it for trials"
        for key in settings.outputs.uploads
        if key not in settings.section.fixed
    ]


def command_notes(problem: Problem) -> list[str]:
    """Return notes on the trainer's command."""
    argv = [token.replace("{python}", sys.executable) for token in problem.command]
    folder = problem.settings.folder
    command = python_command(argv, cwd=folder, search_path=os.environ.get("PATH"))
    if command is None:
        return []
    notes = [*_other_framework(argv, folder), *keys_beaten(problem)]
    if command.isolating_options:
        switches = " and ".join(command.isolating_options)
        notes.append(
            f"steps cannot be observed: {switches} in the command keeps the observer out. Start Python without it, or "
            "report steps in the training loop (from autotune.trainee import step)"
        )
    return notes


def _other_framework(argv: Sequence[str], folder: Path) -> list[str]:
    """Return a note if the trainer's interpreter lacks a framework, or has another version than autotune's.

    Reads metadata and code; starts nothing.
    """
    python = resolve_executable(argv[0], folder)
    prefix = python.parent.parent
    if os.path.realpath(prefix) == os.path.realpath(sys.prefix) or not any(prefix.glob("lib/python3*")):
        return []  # autotune's environment, or a wrapper of another interpreter
    further = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    try:
        if "include-system-site-packages = true" in (prefix / "pyvenv.cfg").read_text(errors="replace"):
            return []
    except OSError:  # no virtual environment: the interpreter also searches these
        further += prefix.glob("lib/python3/dist-packages")
        further += Path("/usr/local/lib").glob("python3*/dist-packages")
        further += Path.home().glob(".local/lib/python3*/site-packages")
    theirs, ours = framework_versions(python, further), framework_versions(Path(sys.executable))
    scripts = [Script(path=path, text=path.read_text(errors="replace")) for path in trainer_files(argv, folder)]
    for framework in sorted(FRAMEWORKS, key=lambda row: row.library is None):  # those with a compute library first
        package, names = framework.module, framework.distributions
        here, there = (next((all_[name] for name in names if name in all_), None) for all_ in (ours, theirs))
        importing = next((script.path for script in scripts if script.imports(package)), None)
        if here is None or here == there or importing is None:
            continue
        if there is None:
            modules = [one.module for one in FRAMEWORKS if one.module in theirs]
            if any(script.imports(one) for script in scripts for one in modules):
                continue  # it trains with another framework, and other code imports this one
            return [
                f"{importing.name} imports {package}, which is not installed for the command's {python}, but for "
                f"autotune: activate the environment that trains, or start the trainer with {sys.executable}"
            ]
        return [
            f"trials use {package} {there} of the command's {python}, not autotune's {here}; to measure "
            f"that one, start the trainer with {sys.executable}"
        ]
    return []


# Dry run.


def show_dry_run(console: Console, problem: Problem, request: SearchRequest, clock: Clock) -> None:
    """Print the plan and possible obstacles.

    Raises:
        GpuError: The trials' GPU is missing.
    """
    on_batch = [*([problem.batch_remark] if problem.batch_remark else []), *problem.trap_remarks]
    begins = [warm_start(problem).sentence] if request.warm_start and not request.fresh else []
    remarks = (*problem.state.remarks, *problem.settings.remarks, *remarks_on_gpus(problem), *on_batch)
    console.print(knob_table(problem))
    command = f"command: {' '.join(masked(problem.command))}"
    lines = [*left_out_lines(problem), *redirected_line(problem), *_notes(problem), command]
    print_dim(console, [*lines, _size_line(problem, request)])
    for sentence in (f"score: {problem.measures}", *remarks, *busy_remarks(problem, clock)):
        console.print(sentence, soft_wrap=True)
    for sentence in filter(None, begins):  # hardware names in it may come from another user's file
        console.print(plain(sentence, longest=1000), soft_wrap=True)
