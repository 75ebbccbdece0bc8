"""Text of the ``autotune:`` section that ``autotune init`` writes: the command, and comments that show other keys."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.config.command import split_command
from autotune.config.schema import ENV, SECTION, Section
from autotune.config.splice import new_scalar
from autotune.errors import ConfigError
from autotune.records import Scalar

_DEFAULTS = Section()
_LIMITS = _DEFAULTS.trial
_QUOTE = '"'  # `on` and `010` are texts here, and a command is easier to read with its own quotes inside


@dataclass(frozen=True, kw_only=True)
class ListedKnob:
    """Knob as listed in the section.

    Attributes:
        baseline: The value that the config holds now.
        note: Its purpose, and its effect on the training.
    """

    path: str
    choices: Sequence[Scalar]
    baseline: Scalar
    note: str


@dataclass(frozen=True, kw_only=True)
class OfferedVariable:
    """Environment variable that is suggested as a knob.

    Attributes:
        baseline: Text that it holds now, or that stands for what the trainer does without it.
        choices: Values worth trying.
    """

    name: str
    baseline: str
    choices: Sequence[Scalar]
    note: str


def section_lines(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    knobs: Sequence[ListedKnob],
    redirected: Sequence[str],
    folder: str | None = None,
    files: Sequence[str] = (),
    offered: Sequence[OfferedVariable] = (),
    offers_vary: bool = False,
    in_config: bool = False,
) -> list[str]:
    """Return the lines of a section, without line ends; below its key they are indented by two spaces.

    Values that autotune finds by itself are written as comments, so that they follow the machine and the table of known
    knobs. The command comes last, because a comment behind it would be taken as one of the next key when the section is
    cut out.

    Args:
        env: Variables for every trial.
        redirected: Output keys that point into the trial's folder in trials.
        folder: The folder that the command runs in, relative to the file of the section; None leaves it out.
        files: Further configs, relative to the folder of the first one.
        in_config: Whether the section stands in a file that the trainer reads.

    Raises:
        ConfigError: The command cannot be written as one line of text.
    """
    shown = () if knobs or offers_vary else offered
    live = offered if offers_vary else ()
    comments = [] if live else _knob_comments(knobs, shown)
    if redirected:
        comments += [
            "Each trial gets a folder of its own for what it writes. Found by their names, without being listed:",
            *(f"  {new_scalar(path)}" for path in redirected),
        ]
    comments += [
        "redirect: []         # further keys that say where the trainer writes",
        "redirect_except: []  # keys that look like it, and are not",
        "set: {}              # values for trials only",
        *(() if env or offered else ("env: {}              # environment of every trial, and of `autotune run`",)),
        f"objective: {_DEFAULTS.objective}  # or throughput, or utilization (of the GPU)",
        "batch: 4x            # largest batch to try, relative to today's; same: leave it alone, free: any",
        "keep_effective_batch: false  # true: gradient accumulation makes up for a smaller batch",
        "keep_outputs: false          # true: what a trial wrote into its folder stays there after its end",
        "code: true                   # false: values that stand in the trainer's own code do not vary",
        "Of a trial: the longest time to its first step; the shortest time, the fewest steps and the longest time",
        "that are measured; the share of the memory that has to stay free (what would need more is not tried):",
        f"trial: {{start_timeout_s: {_LIMITS.start_timeout_s:g}, min_s: {_LIMITS.min_s:g}, "
        f"min_steps: {_LIMITS.min_steps}, max_s: {_LIMITS.max_s:g}, memory_margin: {_LIMITS.memory_margin:g}}}",
    ]
    lines = [f"  # {comment}" for comment in comments]
    if live:
        lines = [
            "  knobs:  # what may vary; take out what shall not",
            *(f"    {line.strip()}" for line in _variable_lines(live)),
            *lines,
        ]
    variables = {one.name: one.baseline for one in live} | dict(env)
    if variables:
        lines.append("  env:  # of every trial")
        lines += [f"    {_variable(name, text)}" for name, text in variables.items()]
    elif shown:
        lines.append("  # env:  # a variable that varies needs what holds today")
    lines += [f"  #   {_variable(one.name, one.baseline)}" for one in shown if one.name not in env]
    if files:
        lines.append(
            f"  files: [{', '.join(map(new_scalar, files))}]  # further configs; their names are in their keys"
        )
    if folder is not None:
        lines.append(f"  folder: {new_scalar(folder)}  # where the command runs, relative to this file")
    return [
        f"{SECTION}:  # for autotune{'; its trials get this file without it' if in_config else ''}",
        *lines,
        f"  command: {_command(command)}",
    ]


def _knob_comments(knobs: Sequence[ListedKnob], offered: Sequence[OfferedVariable]) -> list[str]:
    return [
        "What may vary is found by the names of the keys, and fitted to the machine. To say it yourself, take the",
        "comment signs away: then this list is all that varies. Also possible: {low: 1, high: 16, log: true}, and",
        f"variables of the environment as {SECTION}.env.NAME.",
        "knobs:",
        *(
            _knob_lines(knobs)
            or _variable_lines(offered)
            or ["  section.key: [1, 2, 4]  # nothing was found by its name"]
        ),
    ]


def _variable(name: str, text: str) -> str:
    return f"{new_scalar(name)}: {new_scalar(text, style=_QUOTE)}"


def _variable_lines(variables: Sequence[OfferedVariable]) -> list[str]:
    entries = [
        f"  {new_scalar(f'{ENV}{one.name}')}: [{', '.join(new_scalar(choice) for choice in one.choices)}]"
        for one in variables
    ]
    return [f"{entry}  # {one.note}" for entry, one in zip(entries, variables, strict=True)]


def _knob_lines(knobs: Sequence[ListedKnob]) -> list[str]:
    entries = [
        f"  {new_scalar(knob.path)}: [{', '.join(new_scalar(choice) for choice in knob.choices)}]" for knob in knobs
    ]
    width = max((len(entry) for entry in entries), default=0)
    return [
        f"{entry:<{width}}  # today {new_scalar(knob.baseline)}; {knob.note}"
        for entry, knob in zip(entries, knobs, strict=True)
    ]


def _command(tokens: Sequence[str]) -> str:
    # No shell reads the bare ones otherwise, and placeholders stay readable.
    text = " ".join(token if re.fullmatch(r"[\w@%+=:,./{}?!-]+", token) else shlex.quote(token) for token in tokens)
    if split_command(text, "command line") != tuple(tokens):
        raise ConfigError(
            f"the command cannot be written as text: {text!r}",
            where="command line",
            remedy="Put it into a script and name that.",
        )
    return new_scalar(text, style=_QUOTE)
