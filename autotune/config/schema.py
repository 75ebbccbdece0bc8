"""The ``autotune:`` section: its keys, types and limits, with errors that name file, line and key; and its text.

It stands in the config itself, or, for trainers that reject unknown keys, in ``<stem>.autotune.yaml`` beside it
(there the key ``autotune:`` around it may be left out).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from autotune.config.command import is_word, split_command
from autotune.config.document import Document
from autotune.config.keys import converted, shown
from autotune.config.splice import new_scalar
from autotune.errors import ConfigError
from autotune.records import Scalar

SECTION = "autotune"
ENV = f"{SECTION}.env."
"""Prefix of knobs that are environment variables of the trials, not keys of the config."""

Objective = Literal["effective_utilization", "utilization", "throughput"]
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the length of a trial and on its memory.

    Attributes:
        start_timeout_s: Longest time from the start of the process to its first step.
        min_s: Shortest measuring window; 5 with the objective `utilization`, unless it is set.
        min_steps: Fewest steps in it.
        max_s: Longest measuring window.
        memory_margin: Share of the memory that has to stay free: points are not tried that would need more, as far
            as trials with smaller batches tell.
    """

    start_timeout_s: _Seconds = 300.0
    min_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.7
    min_steps: Annotated[int, Meta(ge=1, le=10**9)] = 10
    max_s: _Seconds = 10.0
    memory_margin: Annotated[float, Meta(ge=0, lt=1)] = 0.08


class SectionKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of the section as they are written, with their types and defaults.

    Attributes:
        command: How training is started; `{config}` is the trial's copy of the config.
        folder: The folder that the command runs in, relative to the file with this section.
        files: Further configs that the trainer reads, relative to the folder of this one.
        knobs: What may vary: a list of values, or a range with `low`, `high`, and `step` or `log: true`. Without it,
            the known knobs that are found in the config.
        env: Environment variables of every trial, and of `autotune run`.
        set: Values for trials only, by dotted path.
        redirect: Further keys that say where the trainer writes.
        redirect_except: Keys that look like it, and are not.
        objective: What is searched for.
        trial: Limits on the length of a trial and on its memory.
        keep_outputs: `true`: outputs that were redirected into a trial's folder stay when it ends.
        storage: Where studies are kept; journals in the state folder without it.
        batch: Largest effective batch to try: a factor of today's such as `4x`, or `same`, or `free`. Without it `4x`,
            and a list under `knobs` as it is.
        code: `false`: what is written into the trainer's code is not varied.
    """

    command: str | None = None
    folder: str | None = None
    files: list[str] = []
    knobs: dict[str, Any] | None = None
    env: dict[str, Any] = {}
    set: dict[str, Any] = {}
    redirect: list[str] = []
    redirect_except: list[str] = []
    objective: Objective = "effective_utilization"
    trial: TrialLimits = TrialLimits()
    keep_outputs: bool = False
    storage: str | None = None
    batch: Any = None
    code: bool = True


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Domain from `low` to `high`, both included.

    Attributes:
        step: Distance of neighbours; None leaves it open.
        log: Whether neighbours have equal ratios instead of equal distances.
    """

    low: int | float
    high: int | float
    step: int | float | None = None
    log: bool = False


Domain = tuple[Scalar, ...] | Range
"""Domain of a knob: a list of values, or a range."""


@dataclass(frozen=True)
class SectionSource:
    """Location of the section.

    Attributes:
        document: The file.
        prefix: The keys around the section: ``("autotune",)``, or none in a file of its own.
    """

    document: Document
    prefix: tuple[str, ...]

    def place(self, *keys: str | int) -> str:
        """Return file, line and name of a key of the section, for messages."""
        path: tuple[str | int, ...] = (*self.prefix, *keys)
        while path and path not in self.document:
            path = path[:-1]
        name = ".".join(str(key) for key in (SECTION, *keys))
        return f"{self.document.name}:{self.document.line(path)} ({name})"


class Section(SectionKeys, frozen=True, kw_only=True):
    """Parsed section, each part valid in itself; nothing is checked against the config yet.

    Attributes:
        source: Its location; None if there is no section.
        knobs: The domains by key path; None if the section leaves them to the table of known knobs.
        env: Environment variables, each with its text in the file.
        fixed: Values of ``set``, for trials only, by key path.
        batch: Limit of the effective batch; None if the section has none.
    """

    source: SectionSource | None = None
    knobs: dict[str, Domain] | None = None
    env: dict[str, str] = {}
    fixed: dict[str, Scalar] = {}
    batch: BatchLimit | None = None

    @property
    def varies_environment_alone(self) -> bool:
        """True if knobs are listed, all of them variables: then nothing of the config has to reach the trainer."""
        return bool(self.knobs) and all(path.startswith(ENV) for path in self.knobs or ())

    def place(self, *keys: str | int) -> str:
        """Return the place of a key of the section, for messages: file, line and key."""
        return self.source.place(*keys) if self.source else SECTION


def parse_section(source: SectionSource) -> Section:
    """Parse and check the section.

    Raises:
        ConfigError: Something in it is unknown, of the wrong type, or out of range; file, line and key are named.
    """
    data: Any = source.document.data
    for key in source.prefix:
        data = data[key]
    data = {} if data is None else data
    model = converted(data, SectionKeys, source.place)
    if model.trial.min_s > model.trial.max_s:
        raise ConfigError(
            f"trial.min_s ({model.trial.min_s:g}) is above trial.max_s ({model.trial.max_s:g})",
            where=source.place("trial"),
            remedy="A measuring window lasts from min_s to max_s seconds: raise max_s.",
        )
    knobs, limits = model.knobs, model.trial
    if model.objective == "utilization" and "min_s" not in data.get("trial", ()):
        # some 30 of a driver's samples, or 5 of the slowest
        limits = msgspec.structs.replace(limits, min_s=min(5.0, limits.max_s))
    parsed: dict[str, Any] = {
        "source": source,
        "knobs": None if knobs is None else {knob: _domain(domain, source, knob) for knob, domain in knobs.items()},
        "env": {name: _environment(name, value, source) for name, value in model.env.items()},
        "fixed": {path: _fixed(path, value, source) for path, value in model.set.items()},
        "trial": limits,
        "batch": None if model.batch is None else _batch_limit(model.batch, source),
    }
    return Section(**(msgspec.structs.asdict(model) | parsed))


def _batch_limit(value: Any, source: SectionSource) -> BatchLimit:
    try:
        return parse_batch_limit(value if isinstance(value, str) else shown(value))
    except ValueError as error:
        raise ConfigError(
            f"batch is {shown(value)}, which is no limit of the batch",
            where=source.place("batch"),
            remedy="Write batch: 4x (any factor from 1x on), batch: same or batch: free.",
        ) from error


def _domain(value: Any, source: SectionSource, knob: str) -> Domain:
    where = source.place("knobs", knob)
    if isinstance(value, list):
        return _choices(_as_variables(value, source, knob) if knob.startswith(ENV) else value, where, knob)
    if isinstance(value, dict):
        return _checked(converted(value, Range, source.place, "knobs", knob), where, knob)
    raise ConfigError(
        f"{knob} has the domain {shown(value)}, which is neither a list nor a range",
        where=where,
        remedy=f"Write {knob}: [8, 16, 32] or {knob}: {{low: 1, high: 16}}.",
    )


def variable_value(text: str) -> Scalar:
    """Return an environment variable's value as a knob: a number if its text is one, else the text."""
    if len(text) > 300:
        return text
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]*\.?[0-9]+(?:e[-+]?[0-9]{1,2})?", text) else text


def _as_variables(values: list[Any], source: SectionSource, knob: str) -> list[Any]:
    return [
        value
        if isinstance(value, list | dict)
        else variable_value(source.document.leaf((*source.prefix, "knobs", knob, index)).text)
        for index, value in enumerate(values)
    ]


def _choices(values: list[Any], where: str, knob: str) -> tuple[Scalar, ...]:
    def refused(why: str, remedy: str) -> ConfigError:
        return ConfigError(f"the domain of {knob} {why}", where=where, remedy=remedy)

    if not values:
        raise refused("is empty", "List the values to try, or delete the line.")
    if len(values) > 1000:  # more than any search can tell apart
        remedy = "List those that matter, or write a range: {low: 1, high: 100000}."
        raise refused(f"holds {len(values):,} values, more than the 1,000 that one may have", remedy)
    seen: set[tuple[bool, Scalar]] = set()
    for value in values:
        if isinstance(value, list | dict):
            remedy = "A knob's values are numbers, words, true, false or null."
            raise refused(f"holds {shown(value)}, which is no single value", remedy)
        if (why := why_unfit(value)) is not None:
            raise refused(f"holds {shown(value)}, {why}", UNFIT_REMEDY)
        if (isinstance(value, bool), value) in seen:
            raise refused(f"holds {shown(value)} twice", "Delete one of them.")
        seen.add((isinstance(value, bool), value))
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) > 1:
        remedy = "Write all its values as one type; quote numbers that are meant as words."
        raise refused(f"mixes {' and '.join(sorted(kinds))}: {shown(values)}", remedy)
    return tuple(values)


UNFIT_REMEDY = (
    "A knob holds whole numbers up to 2^53, other numbers from 1e-100 to 1e100 and 0, texts of characters, true, false "
    "and null."
)


def why_unfit(value: Scalar) -> str | None:
    """Return the reason for which no knob can hold a value; None if one can."""
    if isinstance(value, str):
        return None if is_word(value) else "which holds a zero byte or half a surrogate pair"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "which is no finite number"
        return None if value == 0 or 1e-100 <= abs(value) <= 1e100 else "which is too large or too small"
    # above it, whole numbers cannot be told apart as floats
    return "which is too large" if value is not None and abs(value) > 2**53 else None


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true/false"
    return "words" if isinstance(value, str) else "numbers"


def _checked(found: Range, where: str, knob: str) -> Range:
    low, high, step = found.low, found.high, found.step
    for number in (low, high, step):
        if (unfit := why_unfit(number)) is not None:
            raise ConfigError(f"the range of {knob} holds {shown(number)}, {unfit}", where=where, remedy=UNFIT_REMEDY)
    whole = isinstance(low, int) and isinstance(high, int)
    why = remedy = None
    if low > high:
        why = f"the range of {knob} is upside down: low {low!r}, high {high!r}"
        remedy = f"Write {{low: {high!r}, high: {low!r}}}."
    elif low == high:
        why = f"the range of {knob} holds one value, {low!r}"
        remedy = "Widen it, or put the key below set: to fix it in trials."
    elif step is not None and (step <= 0 or step > high - low):
        why = f"the step of {knob} is {step!r}, in a range {high - low!r} wide"
        remedy = "A step is above 0 and at most as wide as the range."
    elif step is not None and whole and not isinstance(step, int):
        why, remedy = f"{knob} is a range of integers with the step {step!r}", "Write an integer step."
    elif found.log and low <= 0:
        why = f"{knob} is a log range from {low!r}"
        remedy = "Equal ratios need low above 0; list the values where 0 is one of them: [0, 1, 2, 4]."
    elif found.log and step is not None:
        why, remedy = f"{knob} has both log and step", "Leave one out: log means equal ratios, step distances."
    if why is not None:
        raise ConfigError(why, where=where, remedy=remedy)
    return found


def _environment(name: str, value: Any, source: SectionSource) -> str:
    # An environment holds texts: the user's spelling is kept (`on`, `010`), not YAML's value of it.
    if value is None or isinstance(value, list | dict) or not _is_variable(name) or not is_word(str(value)):
        raise ConfigError(
            f"env: {name}: {shown(value)} cannot be set as an environment variable",
            where=source.place("env", name),
            remedy='Write one text for each variable; "" for an empty one.',
        )
    return source.document.leaf((*source.prefix, "env", name)).text


def _is_variable(name: str) -> bool:
    return bool(name) and "=" not in name and is_word(name)


def _fixed(path: str, value: Any, source: SectionSource) -> Scalar:
    if isinstance(value, list | dict):
        raise ConfigError(
            f"set: {path} holds {shown(value)}, which is no single value",
            where=source.place("set", path),
            remedy="Name a single value by its dotted path, as in set: {training.epochs: 1}.",
        )
    return value  # type: ignore[no-any-return]  # a document's values are scalars, lists and mappings


SAME, FREE = "same", "free"


@dataclass(frozen=True, kw_only=True)
class BatchLimit:
    """Limit of the effective batch that a search may try, relative to the baseline's.

    Attributes:
        factor: Largest ratio to the baseline's effective batch, 1 or more; infinity for no limit.
        is_fixed: Whether the batch is not turned at all, to smaller sizes neither.
    """

    factor: float
    is_fixed: bool = False

    @property
    def is_free(self) -> bool:
        """True if every batch of the domain may be tried."""
        return math.isinf(self.factor)


DEFAULT_BATCH_LIMIT = BatchLimit(factor=4.0)
"""Limit where nothing says another. A larger batch makes more samples a second, of which each teaches less."""


def parse_batch_limit(text: str) -> BatchLimit:
    """Parse a limit of the batch.

    Args:
        text: ``same``, ``free``, or a factor from 1 on, e.g. ``4x``.

    Raises:
        ValueError: The text is none of these; the message says what would be.
    """
    word = text.strip().lower()
    if word == SAME:
        return BatchLimit(factor=1.0, is_fixed=True)
    if word == FREE:
        return BatchLimit(factor=math.inf)
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)x", word)
    if match is None:
        raise ValueError(f"{text!r} is no limit of the batch; write {SAME}, {FREE}, or a factor like 4x")
    if (factor := float(match[1])) < 1:
        raise ValueError(f"{text!r} is below today's batch; the least factor is 1x")
    return BatchLimit(factor=factor)


# Text of the section that `init` writes: the command, and comments that show other keys.


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
