"""The ``autotune:`` section: keys, types and limits, and the text that `init` writes.

It is in the config, or, for trainers that reject unknown keys, in ``<stem>.autotune.yaml``, where the key ``autotune:``
may be omitted.
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
"""Prefix of knobs that are environment variables of trials."""

Objective = Literal["effective_utilization", "utilization", "throughput"]
_Seconds = Annotated[float, Meta(gt=0, le=1e9)]


class TrialLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the duration and memory of a trial.

    Attributes:
        start_timeout_s: Longest time to the first step; idle trials may be stopped earlier.
        min_s: Shortest measuring window; 5 with `objective: utilization`, unless set.
        min_steps: Fewest steps in the window.
        max_s: Longest measuring window; a trial with enough steps ends at most 3 times this after its first step.
        memory_margin: Share of memory to keep free; points that would need more are not tried.
    """

    start_timeout_s: _Seconds = 300.0
    min_s: Annotated[float, Meta(ge=0, le=1e9)] = 0.7
    min_steps: Annotated[int, Meta(ge=1, le=10**9)] = 10
    max_s: _Seconds = 10.0
    memory_margin: Annotated[float, Meta(ge=0, lt=1)] = 0.08


class SectionKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Keys of the section as written, with their types and defaults.

    Attributes:
        command: Training command; `{config}` is the trial's copy of the config.
        folder: Folder that the command runs in, absolute or relative to the section's file.
        files: Further configs of the trainer, relative to the config's folder.
        knobs: The only values to vary: per key a list, or a range with `low`, `high`, and `step` or `log: true`.
            Default: known knobs in the config.
        env: Environment variables of trials, and of `autotune run`.
        set: Values for trials only, by dotted path.
        redirect: Further keys that hold output paths.
        redirect_except: Keys and flags (`--outdir`) that must not be redirected.
        objective: Score that a search maximizes.
        trial: Limits on the duration and memory of a trial.
        keep_outputs: `true` keeps redirected outputs after the trial ends.
        storage: Address of the studies, e.g. `sqlite:studies.db`; `--storage` and `AUTOTUNE_STORAGE` override it.
            Default: journals in the state folder.
        batch: Largest effective batch to try: `4x`, `same` or `free`; `--batch` overrides it. Default: `4x`, and lists
            under `knobs` as listed.
        code: `false` keeps values in the trainer's code fixed.
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
    """Domain from `low` to `high`, inclusive; `log` means equal ratios, no `step` an open distance."""

    low: int | float
    high: int | float
    step: int | float | None = None
    log: bool = False


Domain = tuple[Scalar, ...] | Range
"""Domain of a knob: a list of values, or a range."""


@dataclass(frozen=True)
class SectionSource:
    """Location of the section; `prefix` is ``("autotune",)``, or empty in a separate file."""

    document: Document
    prefix: tuple[str, ...]

    def place(self, *keys: str | int) -> str:
        """Return file, line and name of a key."""
        path: tuple[str | int, ...] = (*self.prefix, *keys)
        while path and path not in self.document:
            path = path[:-1]
        name = ".".join(str(key) for key in (SECTION, *keys))
        return f"{self.document.name}:{self.document.line(path)} ({name})"


class Section(SectionKeys, frozen=True, kw_only=True):
    """Parsed section, not yet checked against the config; `fixed` has the values of ``set``."""

    source: SectionSource | None = None
    knobs: dict[str, Domain] | None = None
    env: dict[str, str] = {}
    fixed: dict[str, Scalar] = {}
    batch: BatchLimit | None = None

    @property
    def varies_environment_alone(self) -> bool:
        """Whether all listed knobs are variables: no config value has to reach the trainer."""
        return bool(self.knobs) and all(path.startswith(ENV) for path in self.knobs or ())

    def place(self, *keys: str | int) -> str:
        return self.source.place(*keys) if self.source else SECTION


def parse_section(source: SectionSource) -> Section:
    """Parse and check the section; raise a ConfigError for a mistake in it."""
    data: Any = source.document.data
    for key in source.prefix:
        data = data[key]
    data = {} if data is None else data
    model = converted(data, SectionKeys, source.place)
    if model.trial.min_s > model.trial.max_s:
        raise ConfigError(
            f"trial.min_s ({model.trial.min_s:g}) is above trial.max_s ({model.trial.max_s:g})",
            where=source.place("trial"),
            remedy="Raise max_s: a measuring window lasts min_s to max_s seconds.",
        )
    knobs, limits = model.knobs, model.trial
    if model.objective == "utilization" and "min_s" not in data.get("trial", ()):
        # about 30 samples of a driver, or 5 of the slowest one
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
            f"batch is {shown(value)}, which is not a batch limit",
            where=source.place("batch"),
            remedy="Write batch: 4x (any factor of at least 1x), batch: same or batch: free.",
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
    """Return an environment variable's value as a knob, a number if possible."""
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
    if len(values) > 1000:  # more than any search can distinguish
        remedy = "List the relevant ones, or write a range: {low: 1, high: 100000}."
        raise refused(f"has {len(values):,} values, more than the limit of 1,000", remedy)
    seen: set[tuple[bool, Scalar]] = set()
    for value in values:
        why = "which is not a single value" if isinstance(value, list | dict) else why_unfit(value)
        if why is not None:
            raise refused(f"contains {shown(value)}, {why}", UNFIT_REMEDY)
        if (isinstance(value, bool), value) in seen:
            raise refused(f"contains {shown(value)} twice", "Delete one of them.")
        seen.add((isinstance(value, bool), value))
    kinds = {_kind(value) for value in values if value is not None}
    if len(kinds) > 1:
        remedy = "Write all values as one type; quote numbers that are meant as words."
        raise refused(f"mixes {' and '.join(sorted(kinds))}: {shown(values)}", remedy)
    return tuple(values)


UNFIT_REMEDY = (
    "Allowed are integers up to 2^53, 0 and other numbers from 1e-100 to 1e100, valid text, true, false and null."
)


def why_unfit(value: Scalar) -> str | None:
    """Return why a value cannot be a knob's; None if it can."""
    if isinstance(value, str):
        return None if is_word(value) else "which contains a zero byte or a lone surrogate"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "which is not finite"
        return None if value == 0 or 1e-100 <= abs(value) <= 1e100 else "which is too large or too small"
    # larger integers are not distinct as floats
    return "which is too large" if value is not None and abs(value) > 2**53 else None


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true/false"
    return "words" if isinstance(value, str) else "numbers"


def _checked(found: Range, where: str, knob: str) -> Range:
    low, high, step = found.low, found.high, found.step
    for number in (low, high, step):
        if (unfit := why_unfit(number)) is not None:
            raise ConfigError(f"the range of {knob} has {shown(number)}, {unfit}", where=where, remedy=UNFIT_REMEDY)
    is_whole = isinstance(low, int) and isinstance(high, int)
    why = remedy = None
    if low >= high:
        why = f"the range of {knob} has low {low!r}, which is not below high {high!r}"
        remedy = "Write low below high, or fix the key in trials under set:."
    elif step is not None and not (0 < step <= high - low and (isinstance(step, int) or not is_whole)):
        why = f"the step of {knob} is {step!r}, in a range from {low!r} to {high!r}"
        remedy = "Write a step above 0, at most as wide as the range, and an integer in a range of integers."
    elif found.log and (low <= 0 or step is not None):
        why = f"the range of {knob} is log, but has a step or starts at {low!r}"
        remedy = "A log range has no step, and low above 0; list values that include 0: [0, 1, 2, 4]."
    if why is not None:
        raise ConfigError(why, where=where, remedy=remedy)
    return found


def _environment(name: str, value: Any, source: SectionSource) -> str:
    # Environment variables are text: the user's spelling (`on`, `010`) counts, not YAML's value.
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
            f"set: {path} is {shown(value)}, which is not a single value",
            where=source.place("set", path),
            remedy="Set a single value by its dotted path: set: {training.epochs: 1}.",
        )
    return value  # type: ignore[no-any-return]  # a document's values are scalars, lists and mappings


SAME, FREE = "same", "free"


@dataclass(frozen=True, kw_only=True)
class BatchLimit:
    """Limit of the effective batch in a search.

    Attributes:
        factor: Largest ratio to the baseline's, 1 or more; infinity for no limit.
        is_fixed: Whether the batch is kept fixed, in both directions.
    """

    factor: float
    is_fixed: bool = False

    @property
    def is_free(self) -> bool:
        return math.isinf(self.factor)


DEFAULT_BATCH_LIMIT = BatchLimit(factor=4.0)
"""Default limit: a larger batch gives more samples per second, but each teaches less."""


def parse_batch_limit(text: str) -> BatchLimit:
    """Parse ``same``, ``free``, or a factor of at least 1, e.g. ``4x``; raise a ValueError otherwise."""
    word = text.strip().lower()
    if word == SAME:
        return BatchLimit(factor=1.0, is_fixed=True)
    if word == FREE:
        return BatchLimit(factor=math.inf)
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)x", word)
    if match is None:
        raise ValueError(f"{text!r} is not a batch limit; write {SAME}, {FREE}, or a factor like 4x")
    if (factor := float(match[1])) < 1:
        raise ValueError(f"{text!r} is below the baseline's batch; the smallest factor is 1x")
    return BatchLimit(factor=factor)


# Text of the section for `init`: the command, and comments on other keys.


_DEFAULTS = Section()
_LIMITS = _DEFAULTS.trial
_QUOTE = '"'  # keeps `on` and `010` texts, and a command's single quotes readable


@dataclass(frozen=True, kw_only=True)
class ListedKnob:
    """Knob listed in the section."""

    path: str
    choices: Sequence[Scalar]
    baseline: Scalar
    note: str


@dataclass(frozen=True, kw_only=True)
class OfferedVariable:
    """Environment variable suggested as a knob."""

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
    """Return the lines of a section, without line ends; raise a ConfigError if the command cannot be one line.

    The command is last: a comment after it would belong to the next key when the section is cut out.

    Args:
        redirected: Output keys that trials redirect into their folder.
        folder: Working directory of the command, relative to the section's file.
        offered: Suggested variables, as comments, or as knobs if `offers_vary`.
        in_config: Whether the trainer reads the section's file.
    """
    shown = () if knobs or offers_vary else offered
    live = offered if offers_vary else ()
    comments = [] if live else _knob_comments(knobs, shown)
    if redirected:
        comments += [
            "Output paths, redirected into each trial's own folder; detected by name, no need to list them:",
            *(f"  {new_scalar(path)}" for path in redirected),
        ]
    comments += [
        "redirect: []         # further keys for output paths",
        "redirect_except: []  # keys that look like output paths but are not",
        "set: {}              # values for trials only",
        *(() if env or offered else ("env: {}              # environment of every trial, and of `autotune run`",)),
        f"objective: {_DEFAULTS.objective}  # or throughput, or utilization (of the GPU)",
        "batch: 4x            # largest batch to try, relative to the current one; same: keep it, free: any",
        "keep_outputs: false          # true: keep the files that trials write into their folders",
        "code: true                   # tune values in the trainer's code, unless knobs: lists keys; false: never",
        "Limits of a trial: longest time to the first step; shortest time, fewest steps and longest time to measure;",
        "share of memory to keep free (points that would need more are not tried):",
        f"trial: {{start_timeout_s: {_LIMITS.start_timeout_s:g}, min_s: {_LIMITS.min_s:g}, "
        f"min_steps: {_LIMITS.min_steps}, max_s: {_LIMITS.max_s:g}, memory_margin: {_LIMITS.memory_margin:g}}}",
    ]
    lines = [f"  # {comment}" for comment in comments]
    if live:
        lines = [
            "  knobs:  # values to tune; remove those to keep fixed",
            *(f"    {line.strip()}" for line in _variable_lines(live)),
            *lines,
        ]
    variables = {one.name: one.baseline for one in live} | dict(env)
    if variables:
        lines.append("  env:  # of every trial")
        lines += [f"    {_variable(name, text)}" for name, text in variables.items()]
    elif shown:
        lines.append("  # env:  # a tuned variable needs its current value here")
    lines += [f"  #   {_variable(one.name, one.baseline)}" for one in shown if one.name not in env]
    if files:
        lines.append(
            f"  files: [{', '.join(map(new_scalar, files))}]  # further configs; their keys start with their names"
        )
    if folder is not None:
        lines.append(f"  folder: {new_scalar(folder)}  # working directory of the command, relative to this file")
    return [
        f"{SECTION}:  # for autotune{'; trials get this file without it' if in_config else ''}",
        *lines,
        f"  command: {_command(command)}",
    ]


def _knob_comments(knobs: Sequence[ListedKnob], offered: Sequence[OfferedVariable]) -> list[str]:
    return [
        "Knobs are detected by key name, with values for this machine. To choose them yourself, uncomment this list:",
        "then only these keys are tuned. Also allowed: {low: 1, high: 16, log: true}, and environment variables as",
        f"{SECTION}.env.NAME.",
        "knobs:",
        *(_knob_lines(knobs) or _variable_lines(offered) or ["  section.key: [1, 2, 4]  # no known knob was found"]),
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
        f"{entry:<{width}}  # now {new_scalar(knob.baseline)}; {knob.note}"
        for entry, knob in zip(entries, knobs, strict=True)
    ]


def _command(tokens: Sequence[str]) -> str:
    # Unquoted words mean the same to any shell; placeholders stay readable.
    text = " ".join(token if re.fullmatch(r"[\w@%+=:,./{}?!-]+", token) else shlex.quote(token) for token in tokens)
    if split_command(text, "command line") != tuple(tokens):
        raise ConfigError(
            f"the command cannot be written as text: {text!r}",
            where="command line",
            remedy="Put it into a script and give its name.",
        )
    return new_scalar(text, style=_QUOTE)
