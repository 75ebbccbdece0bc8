"""Check of the config: mistakes, and values that do not fit this machine."""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from autotune.config.document import Leaf
from autotune.config.keys import counted, listed, scalar_text
from autotune.diagnose.findings import CheckResult, Issue, Limit, Severity, issue
from autotune.diagnose.subject import DatasetPlace, Key, Subject, known_keys, place_of, trainer_text
from autotune.diagnose.tables import PRECISION, SETTINGS, starting_batch, types_of
from autotune.measure.host import memory_state
from autotune.records import Scalar
from autotune.search.init_plan import constants, keys_beaten
from autotune.search.problem import Problem
from autotune.space.catalog import (
    BATCH_NAMES,
    KNOWN_KNOBS,
    accumulations,
    has_known_name,
    is_for_validation,
    known_knob,
    why_not_tuned,
)
from autotune.space.knob import Label, is_number, key_name, same_scalar, section_mates


def check_configuration(subject: Subject) -> CheckResult:
    """Check the values of the config."""
    problem = subject.problem
    if problem is None:
        return CheckResult(check="configuration", why_not="no config is given")
    kinds = (
        _mistyped_keys,
        _values_in_quotes,
        _empty_batches,
        _contradictions,
        _unmet_needs,
        _shapes_unknown,
        _numbers_read_as_words,
        _out_of_reach,
        _absent_gpus,
        _slow_precision,
        _slow_settings,
        _unsuitable_workers,
        _unused_precision,
        _accumulated_batches,
        _small_batches,
        _without_effect,
    )
    weights = list(Severity)
    raw = [one for kind in kinds for one in kind(problem)]
    if whole := [place for place in subject.places or () if place.is_whole]:
        dataset, room_bytes = max(whole, key=lambda place: place.size_bytes), memory_state().available_bytes
        raw += [*_caches_that_fit(problem, dataset, room_bytes), *_buffers_beyond_memory(problem, dataset, room_bytes)]
    found = [_as_it_can_be_written(problem, one) for one in raw]
    found.sort(key=lambda one: weights.index(one.severity))
    values, known = len(problem.settings.scalars), len(known_keys(problem))
    sentence = f"{values} values, {known} of them known knobs"
    return CheckResult(check="configuration", issues=tuple(found), sentence=sentence)


_found = partial(issue, "configuration")  # its place is a key


def _as_it_can_be_written(problem: Problem, found: Issue) -> Issue:
    """Return an issue with the line of its key, without values that cannot be edited."""
    refused = problem.settings.refused
    advice = [
        replace(one, values={path: value for path, value in one.values.items() if path not in refused})
        for one in found.recommendations
    ]
    place = place_of(problem, found.place) if found.place else ""
    return replace(found, place=place, recommendations=tuple(advice))


def _try(path: str, value: Scalar) -> str:
    return f"Try {path}: {scalar_text(value)}."


# Mistakes: mistyped keys and values, conflicting values.


_BATCHES = frozenset((*BATCH_NAMES.plain, *BATCH_NAMES.per_device, *BATCH_NAMES.all_devices))


def _mistyped_keys(problem: Problem) -> Iterator[Issue]:
    """Yield keys one letter off a known knob that the trainer's sources never name."""
    leaves = problem.settings.trial_document.leaves
    missing = {name for row in KNOWN_KNOBS for name in row.names if "." not in name}
    missing -= {key_name(leaf.dotted) for leaf in leaves}
    for leaf in leaves:
        name = key_name(leaf.dotted)
        # short names one letter apart may have different meanings: cache, cached
        if len(name) < 7 or has_known_name(leaf.dotted) or why_not_tuned(leaf.dotted):
            continue
        meant = next((one for one in sorted(missing) if is_one_letter_off(name, one)), None)
        if meant is None:
            continue
        sources = trainer_text(problem)
        if re.search(rb"\b%s\b" % re.escape(str(leaf.path[-1]).encode()), sources):
            continue  # the trainer uses this name
        sentence, severity = f"{leaf.dotted} is probably a typo for {meant}.", Severity.WARNING
        if re.search(rb"\b%s\b" % meant.encode(), sources):
            sentence, severity = f"{sentence[:-1]}; the trainer's sources name only {meant}.", Severity.ERROR
        yield _found(sentence, f"Rename it to {meant} if that is meant.", severity=severity, place=leaf.dotted)


def is_one_letter_off(name: str, other: str) -> bool:
    """Return whether one letter is missing, added or changed, or two are swapped, except plurals and digits."""
    short, long = sorted((name.replace("_", ""), other.replace("_", "")), key=len)
    if long in (short, f"{short}s") or re.sub(r"\d", "", short) == re.sub(r"\d", "", long):
        return False
    places = range(len(long))
    without = [long[:place] + long[place + 1 :] for place in places]
    swapped = [long[:place] + long[place + 1 : place + 2] + long[place] + long[place + 2 :] for place in places]
    changed = any(short[:place] + short[place + 1 :] == without[place] for place in places)
    return short in without or short in swapped or changed


def _numbers_read_as_words(problem: Problem) -> Iterator[Issue]:
    """Yield numbers such as ``1e-4`` that PyYAML reads as text, unless the sources read YAML 1.2."""
    found = [leaf for leaf in problem.settings.trial_document.leaves if _is_a_word_to_pyyaml(leaf)]
    if not found:
        return
    sources = trainer_text(problem)
    reads_1_2 = rb"\b(?:omegaconf|hydra|ruamel|hyperpyyaml|strictyaml|pydantic|lightning|jsonargparse)\b"
    is_1_2 = r"\$\{|: \?\?\?|^\s*_target_:|@package|^defaults:|: !(?:ref|new|apply|name|include)\b"
    if re.search(reads_1_2, sources, re.I) or re.search(is_1_2, problem.settings.document.text, re.M):
        return
    by_pyyaml = re.search(rb"\byaml\.(?:safe_load|load|full_load|unsafe_load)\b", sources) is not None
    parser = "PyYAML, which the trainer's sources use," if by_pyyaml else "PyYAML"
    keys = ", ".join(f"{leaf.dotted}: {leaf.text}" for leaf in found[:4])
    more = f" and {len(found) - 4} more" if len(found) > 4 else ""
    sentence = f"{parser} reads {keys}{more} as text, not as a number."
    number = _with_point(found[0].text)
    remedy = f"Write {number}, a number for every parser, or make sure that the trainer converts it."
    severity = Severity.WARNING if by_pyyaml else Severity.NOTE
    yield _found(sentence, remedy, severity=severity, place=found[0].dotted)


def _is_a_word_to_pyyaml(leaf: Leaf) -> bool:
    return is_number(leaf.value) and isinstance(leaf.reading_1_1, str) and leaf.style is None


def _with_point(text: str) -> str:
    mantissa, letter, exponent = re.split(r"([eE]|$)", text, maxsplit=1)
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = "" if exponent[:1] in ("+", "-") or not letter else "+"
    return f"{mantissa}{letter}{sign}{exponent}"


def _values_in_quotes(problem: Problem) -> Iterator[Issue]:
    for leaf in problem.settings.trial_document.leaves:
        if leaf.style is None or not isinstance(leaf.value, str) or not has_known_name(leaf.dotted):
            continue
        if known_knob(leaf.dotted, leaf.value) is not None:
            continue  # a valid text: mixed_precision: "no"
        name, text = key_name(leaf.dotted), leaf.text.strip().lower()
        is_a_switch = any(name in row.names and row.accepts(True) for row in KNOWN_KNOBS)
        is_number = text.isdecimal() and any(name in row.names and row.accepts(int(text)) for row in KNOWN_KNOBS)
        is_off = is_a_switch and text in ("false", "no", "off")
        if is_off or (is_a_switch and text in ("true", "yes", "on")) or is_number:
            why = ", and a non-empty text is true in Python" if is_off else ""
            sentence = f"{leaf.dotted} is the text {leaf.text} in quotes{why}."
            yield _found(sentence, "Remove the quotes.", place=leaf.dotted)


def _out_of_reach(problem: Problem) -> Iterator[Issue]:
    """Yield settings that no search can vary."""
    note = Severity.NOTE
    for path, why in problem.settings.refused.items():
        if has_known_name(path):
            yield _found(f"{path} cannot vary: {why}.", "Write it once, as a plain value.", severity=note, place=path)
    for sentence in keys_beaten(problem):
        yield _found(f"{sentence}.", severity=note)
    for one in constants(problem):
        place, _, named = one.path.partition(" ")
        yield _found(f"{named} cannot vary: {one.why}.", severity=note, place=place)


def _empty_batches(problem: Problem) -> Iterator[Issue]:
    for path, value in problem.settings.scalars.items():
        if key_name(path) in _BATCHES and same_scalar(value, 0) and not is_for_validation(path):
            yield _found(f"{path} is 0: no step has a sample.", "Set it to 1 or more.", place=path)


def _contradictions(problem: Problem) -> Iterator[Issue]:
    keys = known_keys(problem)
    seen: set[frozenset[str]] = set()
    for key in keys:
        for kind, values in key.row.excludes(key.value).items():
            for other in _mates(key, keys, kind):
                pair = frozenset((key.path, other.path))
                if pair in seen or not any(same_scalar(other.value, value) for value in values):
                    continue
                seen.add(pair)
                sentence = f"{key.text} conflicts with {other.text}: an error in most trainers."
                yield _found(sentence, f"Change {key.path} or {other.path}.", place=key.path)


def _unmet_needs(problem: Problem) -> Iterator[Issue]:
    """Yield values that need another setting, which is off."""
    keys = known_keys(problem)
    for key in keys:
        for kind, needed in key.row.needs(key.value).items():
            for other in [one for one in _mates(key, keys, kind) if not same_scalar(one.value, needed)]:
                sentence = (
                    f"{key.text} needs {other.path}: {scalar_text(needed)}, which is {scalar_text(other.value)}: "
                    f"{key.row.why_only_with.get(kind, 'without it, it has no effect')}."
                )
                remedy = f"Set {other.path} to {scalar_text(needed)}, or {key.path} to false."
                yield _found(sentence, remedy, values={other.path: needed}, place=key.path)


def _shapes_unknown(problem: Problem) -> Iterator[Issue]:
    keys = known_keys(problem)
    if any(traits.row.shapes == "fixed" for traits in keys):
        return
    for key in keys:
        if key.row.shapes == "compiled" and key.value is True:
            sentence = (
                f"{key.text}: XLA compiles again for each new shape, and no key says that all batches have one shape."
            )
            remedy = "If lengths differ, pad them to a few lengths; a diagnosis with trials counts compilations."
            yield _found(sentence, remedy, severity=Severity.NOTE, place=key.path)


def _mates(key: Key, keys: tuple[Key, ...], kind: str) -> list[Key]:
    """Return the keys of a kind in the section of a key, else all of the kind."""
    fitting = {one.path: one for one in keys if one.row.kind == kind}
    return [fitting[path] for path in section_mates(key.path, fitting)]


# Values that do not fit this machine: workers, precision, devices, batch size.


_PREPARING = re.compile(r"binari[sz]\w*|pre_?process\w*|prepar\w*|extract\w*|prep")  # preprocessing sections


def _slow_settings(problem: Problem) -> Iterator[Issue]:
    keys = known_keys(problem)
    for setting in SETTINGS:
        if setting.needs_gpu and not problem.machine.gpus:
            continue
        for key in keys:
            if key.row.kind in setting.kinds and same_scalar(key.value, setting.value):
                needed = key.row.needs(setting.write).items()
                along = {mate.path: value for kind, value in needed for mate in _mates(key, keys, kind)}
                yield _found(
                    setting.sentence.format(key=key.text),
                    _try(key.path, setting.write),
                    severity=setting.severity,
                    values={key.path: setting.write, **along},
                    limit=setting.limit,
                    place=key.path,
                )


def _unsuitable_workers(problem: Problem) -> Iterator[Issue]:
    cores = problem.machine.cpu_cores
    for key in known_keys(problem):
        if key.row.counts != "workers" or not isinstance(key.value, int):
            continue
        if any(_PREPARING.match(section.lower()) for section in key.path.split(".")[:-1]):
            continue
        sentence = f"{key.path} is {key.value}, but this machine has {counted(cores, 'core')}"
        found = partial(_found, limit=Limit.PREPARING, place=key.path)
        good = min(cores, 16)
        if key.value == 0 and cores >= 4:
            sentence = f"{sentence}: samples are prepared between the steps."
            yield found(sentence, _try(key.path, good), values={key.path: good})
        elif key.value > 2 * cores:  # PyTorch warns above 1 per core; loaders that wait for a disk gain up to 2
            yield found(f"{sentence} for training.", _try(key.path, good), values={key.path: good})
        elif key.value > cores:
            yield found(f"{sentence}: this pays off only if workers wait.", severity=Severity.NOTE)


def _caches_that_fit(problem: Problem, dataset: DatasetPlace, room_bytes: float) -> Iterator[Issue]:
    """Yield memory caches that are off although the files fit ten times: decoded samples are larger."""
    for key in known_keys(problem):
        if key.row.settling and key.value not in key.row.settling and 10 * dataset.size_bytes < room_bytes:
            sentence = (
                f"{key.text}, but the {dataset.size_bytes >> 20} MiB of {dataset.key} fit into memory ten times: from "
                "the second epoch on, a cache avoids loading and preparing again, except for random parts."
            )
            value = key.row.heuristic_values(key.value, problem.machine)[0]
            yield _found(
                sentence,
                _try(key.path, value),
                severity=Severity.NOTE,
                values={key.path: value},
                limit=Limit.LOADING,
                cost="memory; random steps before the cache are no longer random",
                place=key.path,
            )


_ONE_SAMPLE = (".wav", ".flac", ".mp3", ".ogg", ".png", ".jpg", ".jpeg", ".npy")  # files of one sample each


def _buffers_beyond_memory(problem: Problem, dataset: DatasetPlace, room_bytes: float) -> Iterator[Issue]:
    """Yield prefetch sizes that exceed the free memory, if a sample takes at least the size of its file."""
    batches = [value for _, value in _batch_sizes(problem)]
    sample_bytes = dataset.size_bytes / max(1, len(dataset.files))
    are_samples = any(path.suffix.lower() in _ONE_SAMPLE for path, _ in dataset.files[:1])
    # else a file may hold many samples
    if len(batches) != 1 or (len(dataset.files) < 2 * batches[0] and not are_samples):
        return
    for key in known_keys(problem):
        is_count = key.row.counts == "batches" and isinstance(key.value, int)
        needed_bytes = int(key.value or 0) * batches[0] * sample_bytes if is_count else 0.0
        if needed_bytes > room_bytes:
            sentence = (
                f"{key.text} batches of {batches[0]} samples take {needed_bytes / 2**30:.1f} GiB, but "
                f"{room_bytes / 2**30:.1f} GiB of memory are free."
            )
            good = max(1, int(0.1 * room_bytes / (batches[0] * sample_bytes)))
            remedy, values = _try(key.path, good), {key.path: good}
            yield _found(sentence, remedy, severity=Severity.ERROR, values=values, limit=Limit.MEMORY, place=key.path)


def _absent_gpus(problem: Problem) -> Iterator[Issue]:
    gpus, why = len(problem.machine.gpus), problem.hardware.why_no_gpu
    there = f"this machine has {gpus}, counted from 0" if gpus else "this machine has none"
    for key in known_keys(problem):
        if key.row.device and isinstance(key.value, int) and key.value >= gpus:
            because = f" ({why})" if why else ""
            sentence = f"{key.path} is GPU {key.value}, but {there}{because}."
            remedy = "Set an existing GPU, or null for any."
            yield _found(sentence, remedy, severity=Severity.ERROR, place=key.path)
    drivers = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")  # of NVIDIA's driver, of WSL2, of AMD's
    if gpus or why is None or any(map(os.path.exists, drivers)):
        return  # a GPU is present, or may be
    for path, value in problem.settings.scalars.items():
        is_device = key_name(path) in ("device", "devices", "accelerator")
        if is_device and re.fullmatch(r"(?:cuda|gpu)(?::\d+)?", str(value), re.IGNORECASE):
            sentence = f"{path} is {value}, but there is no GPU: {why}."
            remedy = "Train on a machine with a GPU, or on the CPU."
            yield _found(sentence, remedy, severity=Severity.ERROR, place=path)


def _without_effect(problem: Problem) -> Iterator[Issue]:
    gpus, keys = len(problem.machine.gpus), known_keys(problem)
    found = [key for key in keys if key.row.idle_without_gpu and key.value is True] if gpus == 0 else []
    if gpus < 2 and any(one.row.device and one.value is not None for one in keys):
        found += [key for key in keys if key.row.needs_gpus == 2]
    if found:
        there, have = "no GPU" if gpus == 0 else "one GPU", "has" if len(found) == 1 else "have"
        names = [key.path for key in found]
        more = [f"{len(names) - 4} more"] if len(names) > 4 else []
        sentence = f"On this machine, with {there}, {listed([*names[:4], *more])} {have} no effect."
        yield _found(sentence, severity=Severity.NOTE, place=found[0].path)


def _slow_precision(problem: Problem) -> Iterator[Issue]:
    gpus, machine = problem.machine.gpus, problem.machine
    known = [types_of(gpu) for gpu in gpus]
    for key in _precisions(problem):
        is_bfloat16 = key.value in PRECISION.bfloat16 or (key.row.number_type == "bfloat16" and key.value is True)
        if not gpus and key.value in PRECISION.float16 and not isinstance(key.value, bool):
            why = "a CPU only emulates float16: a quarter of the speed of float32"
        elif not gpus and is_bfloat16 and not machine.cpu_bfloat16:
            why = f"this CPU ({machine.cpu_model}) has no native bfloat16"
        elif gpus and is_bfloat16 and all(types is not None and "bfloat16" not in types for types in known):
            why = f"{gpus[0].name} has no native bfloat16"
        else:
            continue
        full: Scalar = False if key.row.number_type != "any" else PRECISION.full.get(str(key.value))
        full = 32 if key.value == 16 else full
        remedy = _try(key.path, full) if full is not None else "Use float32 on this machine."
        values = {key.path: full} if full is not None else {}
        sentence = f"{key.text}: {why}."
        yield _found(sentence, remedy, values=values, label=Label.PRECISION, limit=Limit.STEP, place=key.path)


def _unused_precision(problem: Problem) -> Iterator[Issue]:
    gpus = problem.machine.gpus
    known = [types_of(gpu) or frozenset() for gpu in gpus]
    keys = _precisions(problem)
    is_half = any(key.value is True or key.value in (*PRECISION.float16, *PRECISION.bfloat16) for key in keys)
    if not gpus or not all(known) or is_half:
        return
    bfloat16 = all("bfloat16" in types for types in known)
    for key in keys:
        half = _half(key, problem, bfloat16=bfloat16)
        if half is not None:
            gpu = gpus[0].name
            sentence = f"{key.text}: the tensor cores of {gpu} compute far faster in 16 bits."
            yield _found(
                sentence,
                _try(key.path, half),
                severity=Severity.NOTE,
                values={key.path: half},
                label=Label.PRECISION,
                limit=Limit.STEP,
                place=key.path,
            )
            return


def _precisions(problem: Problem) -> list[Key]:
    return [key for key in known_keys(problem) if key.row.number_type]


def _half(key: Key, problem: Problem, *, bfloat16: bool) -> Scalar:
    """Return the key's spelling of a 16-bit type that is fast here; None if there is none."""
    if isinstance(key.value, bool):
        return True if key.row.number_type in ("any", "bfloat16" if bfloat16 else "float16") else None
    halves = key.row.heuristic_values(key.value, problem.machine)
    return next((one for one in halves if (one in PRECISION.bfloat16) is bfloat16), None)


def _small_batches(problem: Problem) -> Iterator[Issue]:
    if not problem.machine.gpus or _accumulations(problem):
        return
    gpu = problem.machine.gpus[0]
    good = starting_batch(gpu)
    for path, size in _batch_sizes(problem):
        # at most a sixteenth of the usual initial batch; 4 and more may suit large models
        if good is not None and size <= min(3, good // 16) and key_name(path) in BATCH_NAMES.plain:
            sentence = f"{path} is {size}, which is small for {gpu.name}: most of a step may be launches."
            remedy = f"Try larger ones; {good} is a usual start for a GPU of this memory, if the model is small enough."
            yield _found(
                sentence,
                remedy,
                severity=Severity.NOTE,
                values={path: good},
                label=Label.BATCH,
                limit=Limit.HOST,
                cost="memory, and perhaps another learning rate",
                place=path,
            )


def _batch_sizes(problem: Problem) -> list[tuple[str, int]]:
    sizes = [key for key in known_keys(problem) if key.row.counts == "samples"]
    return [(key.path, key.value) for key in sizes if isinstance(key.value, int)]


def effective_batch(problem: Problem) -> int | None:
    """Return the samples per update from the config; None if unknown."""
    batch = problem.batch_size(problem.space.baseline)
    return None if batch is None else int(batch) * math.prod(steps for _, steps in _accumulations(problem))


def _accumulated_batches(problem: Problem) -> Iterator[Issue]:
    batches, found = _batch_sizes(problem), _accumulations(problem)
    if not problem.machine.gpus or len(found) != 1 or len(batches) != 1 or found[0][1] % 2:
        return
    (path, steps), (batch, size) = found[0], batches[0]
    sentence = f"{path} is {steps}: {steps} batches of {size} make one update."
    remedy = f"If memory suffices, {batch}: {size * 2} with {path}: {steps // 2} is the same training in larger steps."
    values = {batch: size * 2, path: steps // 2}
    yield _found(sentence, remedy, severity=Severity.NOTE, values=values, limit=Limit.HOST, cost="memory", place=path)


def _accumulations(problem: Problem) -> list[tuple[str, int]]:
    return [(path, steps) for path, steps in accumulations(problem.settings.scalars).items() if steps > 1]
