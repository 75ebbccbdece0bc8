"""Notes and lines that several commands show of a search."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.clock import Clock, format_duration
from autotune.config.command import resolve_executable
from autotune.config.keys import first_of
from autotune.config.outputs import non_empty_outputs
from autotune.config.secrets import masked, masked_text
from autotune.config.sources import Script, trainer_files
from autotune.frameworks import FRAMEWORKS
from autotune.options import SearchRequest
from autotune.records import Scalar
from autotune.report.plain_text import plain, value_text
from autotune.search.gpus import busy_remarks, remarks_on_gpus
from autotune.search.init_plan import keys_beaten, not_taken
from autotune.search.problem import Problem
from autotune.search.schedule import race_s
from autotune.search.warm_start import warm_start
from autotune.space.catalog import traits_of
from autotune.space.knob import Knob, key_name, same_scalar
from autotune.study.identity import framework_versions
from autotune.trial.python_command import python_command


def show_plan(console: Console, problem: Problem, request: SearchRequest) -> None:
    """Show what a search is about to do: knobs, skipped keys with reasons, outputs, the command, and the time."""
    console.print(knob_table(problem))
    lines = [*left_out_lines(problem), *redirected_line(problem)]
    lines += [plain(note, 1000) for note in (*output_notes(problem), *command_notes(problem))]
    lines.append(f"command: {' '.join(masked(problem.command))}")
    validate_s, for_race_s = request.validate_s, race_s(request.race_s, request.budget_s)
    validation = f", and to train both for up to {format_duration(validate_s)}" if validate_s else ""
    race = ""
    if for_race_s:
        calls = "" if request.race_s else ", if the batch or the precision changes"
        race = f"; {format_duration(for_race_s)} to race both on the loss{calls}"
    lines.append(
        f"{problem.space.within_reach({}).size:,} combinations; {format_duration(request.budget_s)} for everything, "
        f"part of it kept back to confirm the best against today's values{validation}{race}"
    )
    print_dim(console, lines)


def left_out_lines(problem: Problem, further: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines on what looks like a knob or an output and is left as it is, one for each reason.

    Args:
        further: Other names that are left alone, with the reason; None for none.
    """
    left = {one.path: one.why for one in (*problem.skipped, *not_taken(problem))}
    alike: dict[str, list[str]] = {}
    for key, why in {**left, **(further or {})}.items():
        alike.setdefault(why, []).append(plain(key))
    stays = problem.settings.outputs.left.items()
    return [
        *(f"not tuned: {first_of(keys, 3)}: {plain(why)}" for why, keys in alike.items()),
        *(f"looks like an output and stays: {plain(key)}: {plain(why)}" for key, why in stays),
    ]


def redirected_line(problem: Problem) -> list[str]:
    """Return the line on the outputs that go into each trial's folder; none without any."""
    outputs = ", ".join(map(plain, problem.redirected))
    return [f"into each trial's own folder, starting empty: {outputs}"] if outputs else []


def print_dim(console: Console, lines: Iterable[str]) -> None:
    """Print lines below a table."""
    for line in lines:
        console.print(Text(line, style="dim"), soft_wrap=True)


_LONGEST_NAME = 50  # that is shown whole at 80 columns


def knob_table(problem: Problem) -> Table:
    """Return the table of the knobs, with a row for each."""
    knobs = problem.space.within_reach({}).knobs
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), expand=True)
    names = max((len(path) for knob in knobs for path in knob.paths), default=0)
    table.add_column("knob", no_wrap=True, min_width=min(names, _LONGEST_NAME))  # long values give way to names
    for column in ("today", "tried", "for the training"):
        table.add_column(column, style="dim" if column == "for the training" else None, no_wrap=True)
    table.add_column("", style="dim", no_wrap=True, ratio=1)  # the sentence gets what is left of the width
    for knob in knobs:
        tried = [_choice_text(knob, choice) for choice in knob.choices]
        if len(tried) > 8:
            tried = [*tried[:6], "…", tried[-1]]
        cells = value_text(knob.baseline), ", ".join(tried), knob.effect, traits_of(knob).meaning
        table.add_row("\n".join(knob.paths), *cells)
    return table


def _choice_text(knob: Knob, choice: Scalar) -> str:
    """Return a choice, with the keys that hold something else than the first then."""
    if knob.batch is not None:
        return value_text(choice)  # the keys that make up the batch with it follow
    others = {path: value for path, value in knob.keys(choice).items() if not same_scalar(value, choice)}
    along = ", ".join(f"{key_name(path)} {value_text(value)}" for path, value in others.items())
    return f"{value_text(choice)} ({along})" if along else value_text(choice)


def output_notes(problem: Problem) -> list[str]:
    """Return what the user should know of their outputs before the first trial."""
    settings = problem.settings
    beside = (problem.settings.folder, problem.config_path.absolute().parent)
    notes = [
        f"{key} holds something already: trials start from empty, and do not resume from it"
        for key in non_empty_outputs(settings.trial_document, settings.outputs.redirected, *beside)
    ]
    return notes + [
        f"{key}: {masked_text(value_text(settings.value(key)))} may send something away from each trial; "
        "set: can change it for them"
        for key in settings.outputs.uploads
        if key not in settings.section.fixed
    ]


def command_notes(problem: Problem) -> list[str]:
    """Return what the user should know of the trainer's command before the first trial."""
    argv = [token.replace("{python}", sys.executable) for token in problem.command]
    folder = problem.settings.folder
    command = python_command(argv, cwd=folder, search_path=os.environ.get("PATH"))
    if command is None:
        return []
    notes = [*_other_framework(argv, folder), *keys_beaten(problem)]
    if command.isolating_options:
        switches = " and ".join(command.isolating_options)
        notes.append(
            f"what would see the trainer's steps is kept out by {switches} in the command: start Python without, or "
            "report the steps in the training loop (from autotune.trainee import step)"
        )
    return notes


def _other_framework(argv: Sequence[str], folder: Path) -> list[str]:
    """Return a note where the trainer imports a framework that its interpreter lacks, or has in another version.

    Nothing is started: packages' metadata and the text of the trainer are read.
    """
    python = resolve_executable(argv[0], folder)
    prefix = python.parent.parent
    if os.path.realpath(prefix) == os.path.realpath(sys.prefix) or not any(prefix.glob("lib/python3*")):
        return []  # our own environment, or a wrapper of an interpreter that is elsewhere
    further = [Path(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    try:
        if "include-system-site-packages = true" in (prefix / "pyvenv.cfg").read_text(errors="replace"):
            return []
    except OSError:  # no virtual environment: such an interpreter looks in these as well
        further += prefix.glob("lib/python3/dist-packages")
        further += Path("/usr/local/lib").glob("python3*/dist-packages")
        further += Path.home().glob(".local/lib/python3*/site-packages")
    theirs, ours = framework_versions(python, further), framework_versions(Path(sys.executable))
    scripts = [Script(path=path, text=path.read_text(errors="replace")) for path in trainer_files(argv, folder)]
    for framework in sorted(FRAMEWORKS, key=lambda row: row.library is None):  # those that compute come first
        package, names = framework.module, framework.distributions
        here, there = (next((all_[name] for name in names if name in all_), None) for all_ in (ours, theirs))
        importing = next((script.path for script in scripts if script.imports(package)), None)
        if here is None or here == there or importing is None:
            continue
        if there is None:
            modules = [one.module for one in FRAMEWORKS if one.module in theirs]
            if any(script.imports(one) for script in scripts for one in modules):
                continue  # it trains with another one, and this is for some other use of its code
            return [
                f"{importing.name} imports {package}, which was not found beside {python} of the command, but beside "
                f"autotune: activate the environment that trains, or start the trainer with {sys.executable}"
            ]
        return [
            f"measured is {package} {there}, of {python} in the command, not the {here} beside autotune; to measure "
            f"that one, start the trainer with {sys.executable}"
        ]
    return []


# Dry run of a search: what it would do, and what could be in its way.


def show_dry_run(console: Console, problem: Problem, request: SearchRequest, clock: Clock) -> None:
    """Show what a search would do, and what could be in its way.

    Raises:
        GpuError: The GPU that trials would use is not there.
    """
    on_batch = [*([problem.batch_remark] if problem.batch_remark else []), *problem.trap_remarks]
    begins = [warm_start(problem).sentence] if request.warm_start and not request.fresh else []
    remarks = (*problem.state.remarks, *problem.settings.remarks, *remarks_on_gpus(problem), *on_batch)
    show_plan(console, problem, request)
    for sentence in (f"score: {problem.measures}", *remarks, *busy_remarks(problem, clock)):
        console.print(sentence, soft_wrap=True)
    for sentence in filter(None, begins):  # it names hardware that others may have written down
        console.print(plain(sentence, longest=1000), soft_wrap=True)
