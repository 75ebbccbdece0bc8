"""Comparison of the training data of trials, by fingerprints of samples (`autotune.trainee.samples`).

Most trials see part of one pass, each in another order, so the expected overlap is estimated from baseline trials.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from autotune.measure.window import main_stream
from autotune.records import DataEffect, DataFinding, TraineeEvent

Hashes = NDArray[np.uint64]

_CERTAIN = 1e-7  # p-value: many thousand comparisons may have one false difference
_DOUBTFUL = 0.01
_ENOUGH = 20  # expected events; the absence of fewer shows nothing
_ENOUGH_MOMENTS = 100
_ALL, _NEARLY_ALL, _FEW = 0.9, 0.85, 0.5  # of what is expected
_NEW = 0.02  # largest unseen share of the baseline's samples at which a few other samples are evidence
_NEAR = 0.002  # of the standard deviation of samples' sums: implementations differ by less, samples by more
_MOST_BYTES = 8_000_000
_ARRAYS = ("passes", "places", "content", "labels", "moments")


@dataclass(frozen=True, kw_only=True)
class TrialData:
    """Inspected samples of a trial; arrays are ``(n_samples,)``.

    Attributes:
        passes: Index of each sample's pass over the data.
        places: Position in that pass.
        content: Hash of the content, or of short fields if there are no others.
        labels: Hash of the labels; may be empty.
        moments: Sum and sum of squares of the first field's elements, ``(n_samples, 2)``; may be empty.
        stride: Only batches whose index in the pass is a multiple of it were inspected.
        batch: Samples in most batches.
        per_update: Samples in most updates of the weights; None if unknown or varying.
        pass_lengths: Samples in each whole pass, by the steps.
        has_ends: Whether the data iterator, not the reported steps, showed the ends of passes.
        is_unseen: Whether some batches could not be inspected.
    """

    passes: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    places: NDArray[np.intp] = field(default_factory=lambda: np.empty(0, np.intp))
    content: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    labels: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    moments: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 2)))
    stride: int = 1
    batch: int = 1
    per_update: int | None = None
    pass_lengths: tuple[int, ...] = ()
    has_ends: bool = True
    is_unseen: bool = False

    @property
    def size(self) -> int:
        return len(self.passes)

    def only(self, chosen: NDArray[np.bool_]) -> "TrialData":
        parts = {name: getattr(self, name) for name in _ARRAYS}
        return replace(self, **{name: values[chosen] for name, values in parts.items() if len(values)})

    def first_pass(self, samples: float = math.inf, stride: int = 1) -> "TrialData":
        """Return a copy with only the first samples of the first pass, in batches at a multiple of the stride."""
        in_first = (self.passes == 0) & (self.places < samples)
        return self.only(in_first & (self.places // self.batch % max(stride, 1) == 0))

    @property
    def identity(self) -> Hashes:
        return self.content if not len(self.labels) else self.content * np.uint64(3) + self.labels


def read_data(folder: Path, events: Sequence[TraineeEvent]) -> TrialData:
    """Read the samples of a trial from its folder, without malformed lines. Events are in time order."""
    ends_s = [event.t_s for event in events if event.kind == "epoch_end"]
    per_update, pass_lengths = _of_steps(events)
    known: dict[str, list[NDArray[np.generic]]] = {name: [] for name in _ARRAYS}
    strides, sizes, has_ends = [], Counter[int](), True
    lines = list(_lines(folder))
    is_unseen = any(isinstance(line, _Unseen) for line in lines)
    batches = [line for line in lines if isinstance(line, _Batch)]
    of_set = Counter(line.set for line in batches).most_common(1)
    for line in (line for line in batches if line.set == of_set[0][0]):
        has_ends = line.number is not None
        number = sum(end_s < line.t_s for end_s in ends_s) if line.number is None else line.number
        sizes[line.n] += 1
        strides.append(line.at)
        known["passes"].append(np.full(line.n, number))
        known["places"].append(line.at * sizes.most_common(1)[0][0] + np.arange(line.n))
        for name, hashes in (("content", line.content), ("labels", line.labels)):
            if hashes is not None:
                known[name].append(np.frombuffer(hashes, np.uint64))
        if line.moments is not None:
            known["moments"].append(np.frombuffer(line.moments, np.float32).reshape(-1, 2))
    joined = {name: np.concatenate(parts) for name, parts in known.items() if parts}
    size = len(joined.get("passes", ()))
    joined = {name: values for name, values in joined.items() if len(values) == size}  # else missing in some batches
    if "content" not in joined and "labels" in joined:
        joined["content"] = joined.pop("labels")
    for number in set(joined["passes"].tolist()) if "passes" in joined and of_set else ():
        of_pass = joined["passes"] == number  # graphs count batches over all passes
        joined["places"][of_pass] -= joined["places"][of_pass].min() if number else 0
    return TrialData(
        **joined,
        stride=max(1, math.gcd(*strides[1:])) if len(strides) > 2 else 1,
        batch=sizes.most_common(1)[0][0] if sizes else 1,
        per_update=per_update,
        pass_lengths=pass_lengths,
        has_ends=has_ends,
        is_unseen=is_unseen,
    )


class _Unseen(msgspec.Struct, tag_field="k", tag="unseen"):
    trained: bool = False


_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**9)]


class _Batch(msgspec.Struct, tag_field="k", tag="batch"):
    """Line of a batch, with hashes and moments of its `n` samples."""

    t_s: float
    set: _Count
    number: _Count | None = msgspec.field(name="pass")
    at: _Count
    n: Annotated[int, msgspec.Meta(ge=0, lt=10**6)]
    content: bytes | None = None
    labels: bytes | None = None
    moments: bytes | None = None
    trained: bool = False


_decoder: msgspec.json.Decoder[_Unseen | _Batch] = msgspec.json.Decoder(_Unseen | _Batch)


def _lines(folder: Path) -> Iterable[_Unseen | _Batch]:
    """Yield the lines about samples that are trained on."""
    for path in sorted(folder.glob("data.*.jsonl")):
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            continue
        for text in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, RecursionError):  # the last one may be torn
                line = _decoder.decode(text)
                if line.trained and (isinstance(line, _Unseen) or _is_sound(line)):
                    yield line


def _is_sound(line: _Batch) -> bool:
    hashes = (line.content, line.labels, line.moments)
    return all(values is None or len(values) == 8 * line.n for values in hashes)


def _of_steps(events: Sequence[TraineeEvent]) -> tuple[int | None, tuple[int, ...]]:
    """Return the samples in most updates, and those in each whole pass, by the steps."""
    updates, passes = Counter[int](), []
    in_update, in_pass, stream = 0.0, 0.0, main_stream(events)
    for event in (event for event in events if event.stream == stream):
        if event.kind == "step":
            in_update += math.nan if event.samples is None else event.samples
            in_pass += math.nan if event.samples is None else event.samples
            if event.update:
                if not math.isnan(in_update):
                    updates[round(in_update)] += 1
                in_update = 0.0
        elif event.kind == "epoch_end":
            # by its loader's count: a device may complete the last steps after the pass
            in_pass = in_pass if event.samples is None else event.samples
            if not math.isnan(in_pass) and in_pass:
                passes.append(round(in_pass))
            in_pass = 0.0
    size = max(updates, key=updates.__getitem__, default=None)
    is_usual = size is not None and updates[size] > updates.total() / 2.0  # batches by length vary
    return size if is_usual else None, tuple(passes)


def compare_data(
    baseline: Sequence[TrialData],
    other: TrialData,
    earlier: Sequence[TrialData] = (),
    *,
    may_freeze: bool = False,
    accumulated: float = 1.0,
) -> DataFinding:
    """Compare the data of a trial with those of baseline trials.

    Args:
        baseline: At least one trial.
        earlier: Earlier trials of the same point.
        may_freeze: Whether samples may be kept between passes, as by a cache: only a second pass verifies those.
        accumulated: Factor on samples per step that gradient accumulation makes up for, if updates are not seen.
    """
    if (found := _shuffled_less(baseline, (other, *earlier))) and baseline[0].batch == other.batch:
        return DataFinding(DataEffect.DIFFERENT, found)
    sizes = [one.per_update for one in baseline if one.per_update]
    size = round(median(sizes)) if sizes else None
    is_other_batch = size is not None and other.per_update not in (None, size, round(size * accumulated))
    in_batches = () if is_other_batch else (_pass_lengths, _unknown_samples, _other_samples)
    repeats = _repeats(baseline, other)
    if repeats is not None and repeats.effect is DataEffect.DIFFERENT:
        return repeats
    for test in (_frozen, _moved_labels, *in_batches):
        if (found := test(baseline, other)) is not None:
            return DataFinding(DataEffect.DIFFERENT, found)
    if is_other_batch:
        return DataFinding(DataEffect.BATCH, f"{size} → {other.per_update} samples per update")
    if other.is_unseen and not other.size:
        return DataFinding(DataEffect.UNVERIFIED, "its batches could not be inspected")
    if not other.size or not any(one.size for one in baseline):
        return DataFinding(DataEffect.UNVERIFIED, "batches not visible; `step(batch=batch)` shows them")
    return repeats or _same_data(baseline, other, may_freeze=may_freeze)


def _repeats(baseline: Sequence[TrialData], other: TrialData) -> DataFinding | None:
    """Return a finding if samples recur within a pass and do not in the baseline's; else None.

    Similar samples collide in both, in proportion to the square of their number. In a repeated stream, batches by
    length mix neighbouring passes: only copies of all samples are certain.
    """
    parts = [one.first_pass(other.places.max(initial=-1) + 1) for one in baseline]
    pairs = sum(one.size**2 / 2.0 for one in parts)
    own = other.first_pass(max((one.places.max(initial=-1) + 1 for one in parts), default=0))
    if not pairs or own.size < _ENOUGH or _are_mostly_equal(parts):
        return None
    expected = (1.0 + sum(map(_coincidences, parts))) / pairs * own.size**2 / 2.0
    met = _coincidences(own)
    if met < max(_ENOUGH, 0.05 * own.size) or _poisson_tail(met, expected) > _CERTAIN:
        return None
    times, distinct = 1.0 + 2.0 * (met - expected) * own.stride / own.size, len(np.unique(own.identity))
    mean_others = 2.0 * met / own.size  # per sample; copies of some leave more distinct ones than copies of all
    if times > 1.8 and distinct <= 1.1 * own.size * -math.expm1(-mean_others) / mean_others:
        return DataFinding(DataEffect.DIFFERENT, f"every sample occurs about {times:.0f} times per pass")
    effect = DataEffect.DIFFERENT if other.has_ends else DataEffect.UNVERIFIED
    return DataFinding(effect, f"samples repeat within a pass: {distinct} of {own.size} are distinct")


def _are_mostly_equal(parts: Sequence[TrialData]) -> bool:
    """Return whether samples equal others anyway, like constants: then copies are no independent events."""
    return sum(len(np.unique(one.identity)) for one in parts) < 0.2 * sum(one.size for one in parts)


def _coincidences(data: TrialData) -> float:
    _, counts = np.unique(data.identity, return_counts=True)
    return float((counts * (counts - 1) / 2).sum())


def _frozen(baseline: Sequence[TrialData], other: TrialData) -> str | None:
    """Return evidence that all passes have the same samples, and the baseline's do not; else None."""
    again, expected = _met_again(other)
    if expected < _ENOUGH or again < _FEW * expected:
        return None
    seen = [_met_again(one) for one in baseline]
    of_baseline, possible = (sum(one) for one in zip(*seen, strict=True))
    length = next(iter(other.pass_lengths), 0)
    if possible < _ENOUGH and length:  # no second pass: compare baseline trials with each other
        pairs = list(combinations((one.first_pass() for one in baseline), 2))
        of_baseline = float(sum(len(np.intersect1d(one.content, two.content)) for one, two in pairs))
        possible = sum(one.size * two.size / length for one, two in pairs)
    if possible < _ENOUGH or of_baseline > 0.05 * possible:
        return None
    return "augmentation is frozen: each pass has the same samples; today each has new ones"


def _met_again(data: TrialData) -> tuple[float, float]:
    """Return how many samples of later passes occur in the first, and how many would if all did."""
    first, later = data.content[data.passes == 0], data.content[data.passes > 0]
    if not len(first) or not len(later):
        return 0.0, 0.0
    again = np.isin(later, first).sum()
    return float(again), len(later) / data.stride


def _moved_labels(baseline: Sequence[TrialData], other: TrialData) -> str | None:
    """Return evidence that samples have other labels than in the baseline; else None."""
    of_content: dict[int, set[int]] = {}
    for one in (one for one in baseline if len(one.labels) and len(one.content)):
        for content, label in zip(one.content.tolist(), one.labels.tolist(), strict=True):
            of_content.setdefault(content, set()).add(label)
    if not len(other.labels) or not len(other.content):
        return None
    pairs = zip(other.content.tolist(), other.labels.tolist(), strict=True)
    known = [label in of_content[content] for content, label in pairs if len(of_content.get(content, ())) == 1]
    if len(known) < _ENOUGH or sum(known) > _ALL * len(known):
        return None
    return f"labels belong to other samples: {len(known) - sum(known)} of {len(known)} compared"


def _pass_lengths(baseline: Sequence[TrialData], other: TrialData) -> str | None:
    """Return evidence that a pass is longer or shorter than any of the baseline's; else None."""
    known = [length for one in baseline for length in one.pass_lengths]
    if not known or not other.pass_lengths:
        return None
    usual, own = round(median(known)), round(median(other.pass_lengths))
    spread = max(known) - min(known)
    if abs(own - usual) <= spread + 0.001 * usual or min(known) <= own <= max(known):
        return None
    return f"{own} samples per pass instead of {usual}"


def _shuffled_less(baseline: Sequence[TrialData], own: Sequence[TrialData]) -> str | None:
    """Return evidence that neighbours stay closer between passes or trainings than the baseline's; else None."""
    for way, where in ((_apart_in_passes, "in the next pass"), (_apart_in_trials, "in the next training")):
        of_baseline, of_own = way(baseline), way(own)
        if of_baseline is None or of_own is None or of_baseline < _ENOUGH or of_own > 0.4 * of_baseline:
            continue
        return f"samples are shuffled less: neighbours are {of_own:.0f} apart {where}, {of_baseline:.0f} today"
    return None


def _apart_in_passes(trials: Sequence[TrialData]) -> float | None:
    return _least_apart((one.only(one.passes == 0), one.only(one.passes == 1)) for one in trials)


def _apart_in_trials(trials: Sequence[TrialData]) -> float | None:
    return _least_apart((one.first_pass(), two.first_pass()) for one, two in combinations(trials, 2))


def _least_apart(pairs: Iterable[tuple[TrialData, TrialData]]) -> float | None:
    """Return the least distance, over the pairs, of the first's neighbours in the second; None if unknown."""
    known = [_apart(first, later) for first, later in pairs if first.size and later.size]
    return min((apart for apart in known if apart is not None), default=None)


def _apart(first: TrialData, later: TrialData) -> float | None:
    places = dict(zip(later.identity.tolist(), later.places.tolist(), strict=True))
    if len(places) < _ALL * later.size:  # samples are not unique
        return None
    order = [places.get(one) for one in first.identity[np.argsort(first.places)].tolist()]
    apart = [abs(one - two) for one, two in pairwise(order) if one is not None and two is not None]
    return float(median(apart)) if len(apart) >= 2 * _ENOUGH else None


def _unknown_samples(baseline: Sequence[TrialData], other: TrialData) -> str | None:
    """Return evidence of samples outside the baseline's data, if these are nearly all known; else None.

    The share of samples seen once estimates the probability that the next one is new (Good, 1953).
    """
    known, counts = np.unique(np.concatenate([one.content for one in baseline]), return_counts=True)
    lengths = [length for one in baseline for length in one.pass_lengths]
    if not lengths or len(known) < max(_ENOUGH_MOMENTS, (1.0 - _NEW) * median(lengths)):
        return None
    share, size = (int((counts == 1).sum()) + 1) / counts.sum(), len(other.content)
    unknown = int((~np.isin(other.content, known)).sum())
    if share > _NEW or not 0.03 * size < unknown < _FEW * size:
        return None
    # twice, because trials differ in the samples that they inspect most
    if unknown < _ENOUGH // 4 or _poisson_tail(unknown, 2.0 * share * size) > _CERTAIN:
        return None
    return f"{unknown} of {size} samples are not among today's"


def _other_samples(baseline: Sequence[TrialData], other: TrialData) -> str | None:
    """Return evidence that a trial met other samples than baseline trials would; else None."""
    met, expected = _meetings(baseline, other)
    is_less = met < _FEW * expected and _poisson_tail_below(met, expected) < _CERTAIN
    is_redrawn = is_less and _are_redrawn(baseline, other) is not False
    if expected >= _ENOUGH and is_less and not is_redrawn and not _are_nearly_met(baseline, other, expected):
        return f"{met:.0f} of its samples are among today's, {expected:.0f} expected"
    if expected >= _ENOUGH and not is_redrawn:
        return None
    for name, one, two in _moments_of(baseline, other):
        if _ks_probability(one, two) < _CERTAIN:
            return f"its samples are distributed differently ({name} of their values)"
    return None


def _meetings(baseline: Sequence[TrialData], other: TrialData) -> tuple[float, float]:
    """Return the number of samples shared with baseline trials, and that expected from the overlap among these."""
    known = [one for one in baseline if one.size]
    if len(known) < 2 or not other.size:
        return 0.0, 0.0
    stride = max(one.stride for one in (*known, other))
    limit = min(one.first_pass().places.max(initial=-1) for one in (*known, other)) + 1
    parts, own = [one.first_pass(limit, stride) for one in known], other.first_pass(limit, stride)
    rates = [len(np.intersect1d(a.content, b.content)) / max(1, a.size * b.size) for a, b in combinations(parts, 2)]
    expected = sum(one.size for one in parts) * own.size * float(median(rates))
    return float(sum(len(np.intersect1d(one.content, own.content)) for one in parts)), expected


def _are_redrawn(baseline: Sequence[TrialData], other: TrialData) -> bool | None:
    """Return whether a trial has the baseline's samples under other random numbers; None if labels don't show it."""
    (first, of_first), *rest = [_by_place(one) for one in baseline if one.size] or [({}, {})]
    repeated = [content == first[place] for one, _ in rest for place, content in one.items() if place in first]
    content, labels = _by_place(other)
    if len(repeated) < _ENOUGH or sum(repeated) < _NEARLY_ALL * len(repeated):
        return False
    met = [content[place] == first[place] for place in content.keys() & first.keys()]
    if len(met) < _ENOUGH or sum(met) > 0.05 * len(met):
        return False
    known = [label == of_first[place] for place, label in labels.items() if place in of_first]
    labels_match = len(known) >= _ENOUGH and len(set(labels.values())) > 1 and sum(known) >= _NEARLY_ALL * len(known)
    return True if labels_match else None


def _by_place(data: TrialData) -> tuple[dict[int, int], dict[int, int]]:
    first = data.first_pass()
    places = first.places.tolist()
    content, labels = (dict(zip(places, of.tolist(), strict=False)) for of in (first.content, first.labels))
    return content, labels


def _are_nearly_met(baseline: Sequence[TrialData], other: TrialData, expected: float) -> bool:
    """Return whether as many samples as expected have nearly equal sums, unless the baseline's are as close."""
    pooled = np.unique(np.concatenate([one.moments for one in baseline]), axis=0)
    if len(pooled) < 2 * _ENOUGH or not len(other.moments):
        return False
    near = _NEAR * pooled.std(axis=0)
    matches = sum(_count_near(one.moments, other.moments, near) for one in baseline)
    by_chance = _count_near(pooled[::2], pooled[1::2], near) / len(pooled[1::2])
    return by_chance < 0.1 and matches > _NEARLY_ALL * expected


def _count_near(known: NDArray[np.float64], wanted: NDArray[np.float64], near: NDArray[np.float64]) -> int:
    """Return how many rows have a known row within these distances."""
    known = known[np.argsort(known[:, 0])]
    begins, ends = (np.searchsorted(known[:, 0], wanted[:, 0] + sign * near[0]) for sign in (-1.0, 1.0))
    rows = zip(begins.tolist(), ends.tolist(), wanted[:, 1].tolist(), strict=True)
    return sum(bool((np.abs(known[begin:end, 1] - one) <= near[1]).any()) for begin, end, one in rows)


def _moments_of(
    baseline: Sequence[TrialData], other: TrialData
) -> Iterable[tuple[str, NDArray[np.float64], NDArray[np.float64]]]:
    """Yield the moments of samples in the same part of a pass: name, baseline's, other's.

    Only baseline trials that reach the end of that part count: of data in order, shorter ones have other samples.
    """
    ends = [one.first_pass().places.max(initial=-1) for one in baseline]
    end = min(max(ends), other.first_pass().places.max(initial=-1))
    own = other.first_pass(end + 1).moments
    whole = [one for one, reached in zip(baseline, ends, strict=True) if reached >= end]
    pooled = np.concatenate([one.first_pass(end + 1).moments for one in whole])
    if min(len(own), len(pooled)) >= _ENOUGH_MOMENTS and not _are_mostly_equal(whole):
        yield "sum", pooled[:, 0], own[:, 0]
        yield "sum of squares", pooled[:, 1], own[:, 1]


def _same_data(baseline: Sequence[TrialData], other: TrialData, *, may_freeze: bool) -> DataFinding:
    """Return the evidence that the data are the baseline's, or that there is too little."""
    met, expected = _meetings(baseline, other)
    is_redrawn = _are_redrawn(baseline, other) if met < _FEW * expected else False
    if is_redrawn is None:
        return DataFinding(DataEffect.UNVERIFIED, "today's trials share their random numbers, this one has others")
    if expected >= _ENOUGH and met < _FEW * expected and not is_redrawn:
        return DataFinding(DataEffect.SAME, "samples match to within rounding")
    if is_redrawn:
        expected = 0.0  # the same samples under other random numbers: none can match
    if expected >= _ENOUGH and met < _NEARLY_ALL * expected and _poisson_tail_below(met, expected) < _DOUBTFUL:
        return DataFinding(DataEffect.UNVERIFIED, f"{met:.0f} samples match, {expected:.0f} expected")
    if expected >= _ENOUGH:
        return DataFinding(DataEffect.SAME, f"{met:.0f} samples match")
    compared = [len(own) for _, _, own in _moments_of(baseline, other)]
    if compared and may_freeze and _met_again(other)[1] < _ENOUGH:
        return DataFinding(DataEffect.UNVERIFIED, "no second pass was seen, so augmentation may be frozen")
    if compared:
        return DataFinding(DataEffect.SAME, f"{min(compared):,} samples are similarly distributed")
    return DataFinding(DataEffect.UNVERIFIED, "too few samples seen")


def _poisson_tail(observed: float, expected: float) -> float:
    """Return a Chernoff bound of the probability of at least this many events."""
    if observed <= expected or not expected:
        return 1.0
    return math.exp(observed - expected - observed * math.log(observed / expected))


def _poisson_tail_below(observed: float, expected: float) -> float:
    """Return a Chernoff bound of the probability of at most this many events."""
    if observed >= expected:
        return 1.0
    return math.exp(observed - expected - (observed * math.log(observed / expected) if observed else 0.0))


def _ks_probability(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Return the p-value of the two-sample Kolmogorov-Smirnov test."""
    values = np.concatenate([one, two])
    first, second = (np.searchsorted(np.sort(part), values, side="right") / len(part) for part in (one, two))
    root = math.sqrt(len(one) * len(two) / (len(one) + len(two)))
    distance = float(np.abs(first - second).max()) * (root + 0.12 + 0.11 / root)
    return min(1.0, 2.0 * math.exp(-2.0 * distance**2))
