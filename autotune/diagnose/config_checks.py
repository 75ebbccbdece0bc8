"""Check of the config: mistakes in it, and values that do not suit this machine."""

import re
from collections.abc import Callable, Iterator

from autotune.config.document import Leaf
from autotune.diagnose.config_for_machine import MISFITS
from autotune.diagnose.config_keys import CONFIGURATION, Key, issue, known_keys, trainer_text, written
from autotune.diagnose.findings import CheckResult, Issue, Severity
from autotune.diagnose.look import Look
from autotune.messages import _
from autotune.search.problem import Problem
from autotune.space.batch_sizes import GLOBAL_NAMES, PER_DEVICE_NAMES, PLAIN_NAMES
from autotune.space.catalog import KNOWN_KNOBS, has_known_name, is_for_validation, known_knob, why_not_turned
from autotune.space.knob import key_name, same_scalar, section_mates

_WEIGHT = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def check_configuration(look: Look) -> CheckResult:
    """Look at the values of the config."""
    problem = look.problem
    if problem is None:
        return CheckResult(check=CONFIGURATION, why_not=_("no config is given"))
    found = [issue for kind in (*MISTAKES, *MISFITS) for issue in kind(problem)]
    known = len(known_keys(problem))
    return CheckResult(
        check=CONFIGURATION,
        issues=tuple(sorted(found, key=lambda issue: _WEIGHT[issue.severity])),
        sentence=_(
            "{values} values, {known} of them known knobs",
            values=len(problem.settings.scalars),
            known=known,
        ),
    )


# Mistakes in a config: mistyped keys and values, and values that do not go together.


_KEYS_SHOWN = 4


# Parsers that read 1e-4 as a number, as YAML 1.2 has it.
_READS_1_2 = re.compile(rb"\b(?:omegaconf|hydra|ruamel|hyperpyyaml|strictyaml|pydantic|lightning|jsonargparse)\b", re.I)
_OF_1_2 = re.compile(r"\$\{|: \?\?\?|^\s*_target_:|@package|^defaults:|: !(?:ref|new|apply|name|include)\b", re.M)
_READS_1_1 = re.compile(rb"\byaml\.(?:safe_load|load|full_load|unsafe_load)\b")
_BATCHES = frozenset((*PLAIN_NAMES, *PER_DEVICE_NAMES, *GLOBAL_NAMES))


def mistyped_keys(problem: Problem) -> Iterator[Issue]:
    """Yield keys that differ from the name of a known knob by one letter, and that the trainer's sources never name."""
    names = {name for row in KNOWN_KNOBS for name in row.names if "." not in name}
    present = {key_name(leaf.dotted) for leaf in problem.settings.trial_document.leaves}
    sources: bytes | None = None
    for leaf in problem.settings.trial_document.leaves:
        last = str(leaf.path[-1])
        name = key_name(leaf.dotted)
        # shorter ones differ by a letter and mean something else: cache, cached
        if len(name) < 7 or has_known_name(leaf.dotted) or why_not_turned(leaf.dotted):
            continue
        meant = next((one for one in sorted(names - present) if is_one_letter_off(name, one)), None)
        if meant is None:
            continue
        sources = trainer_text(problem) if sources is None else sources
        if re.search(rb"\b%s\b" % re.escape(last.encode()), sources):
            continue  # the trainer calls it so
        reads = re.search(rb"\b%s\b" % meant.encode(), sources) is not None
        sources_say = _("; the trainer's sources name that one, and never this")
        yield issue(
            problem,
            leaf.dotted,
            _(
                "{key} looks like a slip for {meant}{never}.",
                key=leaf.dotted,
                meant=meant,
                never=sources_say if reads else "",
            ),
            _("Write {meant}, if that is meant.", meant=meant),
            severity=Severity.ERROR if reads else Severity.WARNING,
        )


def is_one_letter_off(name: str, other: str) -> bool:
    """Return whether one letter was left out, added, changed, or two were swapped; spelling and plurals do not count.

    So ``batchsize`` and ``batch_sizes`` are no slips for ``batch_size``: some trainers call it so.
    """
    one, two = name.replace("_", ""), other.replace("_", "")
    if one == two or sorted((one, two), key=len)[1] == sorted((one, two), key=len)[0] + "s":
        return False
    if re.sub(r"\d", "", one) == re.sub(r"\d", "", two):
        return False
    if len(one) == len(two):
        unlike = [place for place in range(len(one)) if one[place] != two[place]]
        swapped = len(unlike) == 2 and unlike[1] == unlike[0] + 1 and one[unlike[0]] == two[unlike[1]]
        return len(unlike) == 1 or (swapped and one[unlike[1]] == two[unlike[0]])
    short, long = sorted((one, two), key=len)
    return len(long) == len(short) + 1 and any(long[:place] + long[place + 1 :] == short for place in range(len(long)))


def numbers_read_as_words(problem: Problem) -> Iterator[Issue]:
    """Yield numbers such as ``1e-4`` that PyYAML reads as a text, unless the trainer's sources read YAML 1.2."""
    found = [leaf for leaf in problem.settings.trial_document.leaves if _is_a_word_to_pyyaml(leaf)]
    if not found:
        return
    sources = trainer_text(problem)
    if _READS_1_2.search(sources) or _OF_1_2.search(problem.settings.document.text):
        return
    shown = ", ".join(f"{leaf.dotted}: {leaf.text}" for leaf in found[:_KEYS_SHOWN])
    others = _(" and {count} more", count=len(found) - _KEYS_SHOWN)
    by_pyyaml = _READS_1_1.search(sources) is not None
    used = _("PyYAML, which the trainer's sources use,")
    yield issue(
        problem,
        found[0].dotted,
        _(
            "{pyyaml} reads {keys}{more} as a text and not as a number.",
            pyyaml=used if by_pyyaml else "PyYAML",
            keys=shown,
            more=others if len(found) > _KEYS_SHOWN else "",
        ),
        _(
            "Write {number}, which is a number to every parser; or see that the trainer makes it one.",
            number=_with_point(found[0].text),
        ),
        severity=Severity.WARNING if by_pyyaml else Severity.NOTE,
    )


def values_in_quotes(problem: Problem) -> Iterator[Issue]:
    """Yield switches and batch sizes whose value is a text: ``use_amp: "false"`` is true to Python."""
    for leaf in problem.settings.trial_document.leaves:
        if leaf.style is None or not isinstance(leaf.value, str) or not has_known_name(leaf.dotted):
            continue
        if known_knob(leaf.dotted, leaf.value) is not None:
            continue  # a text that means something: mixed_precision: "no"
        name, text = key_name(leaf.dotted), leaf.text.strip().lower()
        is_a_switch = any(name in row.names and row.accepts(True) for row in KNOWN_KNOBS)
        if is_a_switch and text in ("true", "false", "yes", "no", "on", "off"):
            is_true = _(", and every text that is not empty is true to Python")
            yield _in_quotes(problem, leaf, is_true if text in ("false", "no", "off") else "")
        elif name in _BATCHES and text.isdecimal():
            yield _in_quotes(problem, leaf)


def empty_batches(problem: Problem) -> Iterator[Issue]:
    """Yield batch sizes of 0."""
    for path, value in problem.settings.scalars.items():
        if key_name(path) in _BATCHES and same_scalar(value, 0) and not is_for_validation(path):
            sentence = _("{key} is 0: no step has a sample.", key=path)
            yield issue(problem, path, sentence, _("Give a number from 1 on."))


def contradictions(problem: Problem) -> Iterator[Issue]:
    """Yield values that are an error together, or of which one needs another, as the table of knobs has it."""
    keys = known_keys(problem)
    rows = {row.kind: row for row in KNOWN_KNOBS}
    seen: set[frozenset[str]] = set()
    for key in keys:
        for kind, values in rows[key.kind].excludes(key.value).items():
            for other in _mates(key, keys, kind):
                pair = frozenset((key.path, other.path))
                if pair not in seen and any(same_scalar(other.value, value) for value in values):
                    seen.add(pair)
                    yield issue(
                        problem,
                        key.path,
                        _(
                            "{one} does not go with {other}: that is an error in most trainers.",
                            one=key.said,
                            other=other.said,
                        ),
                        _(
                            "Change one of the two: {one}, or {other}.",
                            one=key.path,
                            other=other.path,
                        ),
                    )


def unmet_needs(problem: Problem) -> Iterator[Issue]:
    """Yield values that pay only together with another one that is off, such as XLA without fixed shapes."""
    keys = known_keys(problem)
    rows = {row.kind: row for row in KNOWN_KNOBS}
    for key in keys:
        for kind, needed in rows[key.kind].needs(key.value).items():
            for other in [one for one in _mates(key, keys, kind) if not same_scalar(one.value, needed)]:
                yield issue(
                    problem,
                    key.path,
                    _(
                        "{key} needs {needed}, and that is {value}: {why}.",
                        key=key.said,
                        needed=f"{other.path}: {written(needed)}",
                        value=written(other.value),
                        why=_WHY_NEEDED.get(kind, _NO_EFFECT),
                    ),
                    _(
                        "Set {other} to {needed}, or {key} to false.",
                        other=other.path,
                        needed=written(needed),
                        key=key.path,
                    ),
                    values={other.path: needed},
                )


_WHY_NEEDED = {
    "fixed_length": _("XLA compiles again for each new shape, and with it a step was 20 times as slow"),
    "graph_mode": _("XLA compiles graphs only"),
}
_NO_EFFECT = _("without it, it has no effect")


def _mates(key: Key, keys: tuple[Key, ...], kind: str) -> list[Key]:
    """Return the keys of a kind that belong to a key: those of its own section, or all if there is none there."""
    fitting = {one.path: one for one in keys if one.kind == kind}
    return [fitting[path] for path in section_mates(key.path, fitting)]


def _in_quotes(problem: Problem, leaf: Leaf, why: str = "") -> Issue:
    sentence = _("{key} is the text {text} in quotes{why}.", key=leaf.dotted, text=leaf.text, why=why)
    return issue(problem, leaf.dotted, sentence, _("Leave the quotes out."))


def _is_a_word_to_pyyaml(leaf: Leaf) -> bool:
    is_number = isinstance(leaf.value, int | float) and not isinstance(leaf.value, bool)
    return is_number and isinstance(leaf.reading_1_1, str) and leaf.style is None


def _with_point(text: str) -> str:
    mantissa, letter, exponent = re.fullmatch(r"([^eE]*)([eE]?)(.*)", text, re.S).groups()  # type: ignore[union-attr]  # it fits everything
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = "" if exponent[:1] in ("+", "-") or not letter else "+"
    return f"{mantissa}{letter}{sign}{exponent}"


MISTAKES: tuple[Callable[[Problem], Iterator[Issue]], ...] = (
    mistyped_keys,
    values_in_quotes,
    empty_batches,
    contradictions,
    unmet_needs,
    numbers_read_as_words,
)
"""Kinds of mistakes, the gravest first."""
