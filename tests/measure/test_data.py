"""What trials trained on is compared by their samples: made here as trainers make them, and as bugs change them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.data import TrialData, compare_data, read_data
from autotune.records import DataEffect, TraineeEvent
from autotune.trainee.samples import Fingerprints

SAMPLES = 600
FEATURES = np.random.default_rng(1).normal(size=(SAMPLES, 12)).astype(np.float32)
CLASSES = np.arange(SAMPLES) % 10

Batches = Iterable[tuple[NDArray[Any], ...]]


def batches(
    order: Sequence[int], size: int = 16, noise: float = 0.0, seed: int = 0, shift: int = 0, crop: int = 12
) -> Batches:
    """Yield batches of inputs and classes of these samples."""
    rng = np.random.default_rng(1000 + seed)
    for begin in range(0, len(order), size):
        chosen = np.array(order[begin : begin + size])
        drawn = noise * rng.normal(size=(len(chosen), 12))
        inputs = (FEATURES[chosen] + drawn).astype(np.float32)[:, :crop]
        yield inputs, CLASSES[(chosen + shift) % SAMPLES]


def shuffled(seed: int, buffer: int = SAMPLES) -> list[int]:
    """Return the samples in the order of a shuffle buffer of that size."""
    rng, order, waiting = np.random.default_rng(seed), [], []
    for sample in range(SAMPLES):
        waiting.append(sample)
        if len(waiting) >= buffer:
            order.append(waiting.pop(int(rng.integers(len(waiting)))))
    return order + [waiting[place] for place in rng.permutation(len(waiting))]


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., TrialData]:
    """Train on the batches of some passes, the first so many of each; return what was seen of it."""
    count, clock = iter(range(1000)), iter(range(10**6))
    # all are looked at, however slow this machine is
    monkeypatch.setattr("autotune.trainee.samples.START_S", 1e6)
    monkeypatch.setattr("autotune.trainee.samples.time", SimpleNamespace(monotonic=lambda: float(next(clock))))

    def trained(*passes: Batches, seen: int = 10**6, strides: Sequence[int] = (1,) * 9, ends: bool = True) -> TrialData:
        folder = tmp_path / f"{next(count)}"
        folder.mkdir()
        looks, events = Fingerprints(str(folder), "key"), list[TraineeEvent]()
        dataset = looks.dataset()
        for made, looks.stride in zip(passes, strides, strict=False):
            under_way = looks.begin(dataset, lambda: True)
            under_way.number = under_way.number if ends else None
            for place, batch in enumerate(made):
                if place >= seen:
                    break
                looks.take(under_way, batch, len(batch[0]))
                events.append(TraineeEvent(kind="step", t_s=next(clock), stream="1.0", samples=len(batch[0])))
            else:
                events.append(TraineeEvent(kind="epoch_end", t_s=next(clock), stream="1.0"))
        looks.flush()
        return read_data(folder, events)

    return trained


def test_the_same_samples_in_another_order_match(trial: Callable[..., TrialData]) -> None:
    """Each training shuffles by itself, and sees a part of a pass alone."""
    one, two, other = (trial(batches(shuffled(seed)), seen=25) for seed in range(3))
    assert one.size == 400
    found = compare_data([one, two], other)
    assert found.effect is DataEffect.SAME
    assert "samples match" in found.evidence


def test_augmented_samples_are_distributed_alike(trial: Callable[..., TrialData]) -> None:
    """No sample comes twice where noise is added: their values are compared."""
    one, two, other = (trial(batches(shuffled(seed), noise=0.3, seed=seed)) for seed in range(3))
    found = compare_data([one, two], other)
    assert found == compare_data([one], other)
    assert (found.effect, found.evidence) == (DataEffect.SAME, "600 samples are similarly distributed")


def test_samples_that_another_implementation_computes_match(trial: Callable[..., TrialData]) -> None:
    """Their last bits differ, their sums hardly do."""
    one, two = (trial(batches(shuffled(seed))) for seed in range(2))
    found = compare_data([one, two], trial(batches(shuffled(2), noise=1e-5, seed=2)))
    assert (found.effect, found.evidence) == (DataEffect.SAME, "samples match to within rounding")


def test_other_random_numbers_are_no_other_samples(trial: Callable[..., TrialData]) -> None:
    """Each training begins with one seed, so that today's repeat each other; workers draw with seeds of their own."""
    one, two = (trial(batches(shuffled(0), noise=0.3, seed=0)) for _ in range(2))
    other = trial(batches(shuffled(0), noise=0.3, seed=5))
    found = compare_data([one, two], other)
    assert (found.effect, found.evidence) == (DataEffect.SAME, "600 samples are similarly distributed")
    in_other_order = trial(batches(shuffled(1), noise=0.3, seed=5))
    assert compare_data([one, two], in_other_order).effect is DataEffect.UNVERIFIED
    garbage = trial(batches(shuffled(0), noise=3.0, seed=5))
    assert compare_data([one, two], garbage).effect is DataEffect.DIFFERENT


def test_steps_that_a_device_completes_late_shorten_no_pass(trial: Callable[..., TrialData]) -> None:
    """The end of a pass tells how many samples its loader handed out, whichever steps were over by then."""
    step, end = (TraineeEvent(kind=kind, t_s=0.0, stream="1.0", samples=32) for kind in ("step", "epoch_end"))
    events = [*[step] * 3, replace(end, samples=160), *[step] * 5, replace(end, samples=160), step, step]
    events = [replace(event, t_s=float(place)) for place, event in enumerate(events)]
    assert read_data(Path("none"), events).pass_lengths == (160, 160)


def test_a_short_look_verifies_nothing(trial: Callable[..., TrialData]) -> None:
    """Nor does one whose batches are not visible, or lie on an accelerator."""
    one, other = (trial(batches(shuffled(seed)), seen=3) for seed in range(2))
    assert compare_data([one], other).effect is DataEffect.UNVERIFIED
    assert "batches not visible" in compare_data([one], TrialData()).evidence
    assert "could not be inspected" in compare_data([one], TrialData(is_unseen=True)).evidence


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_another_number_of_samples_per_update_is_a_batch(trial: Callable[..., TrialData], noise: float) -> None:
    """Whatever key made it."""
    one, two = (trial(batches(shuffled(seed), noise=noise, seed=seed)) for seed in range(2))
    other = trial(batches(shuffled(3), size=64, noise=noise, seed=3))
    found = compare_data([one, two], other)
    assert (found.effect, found.evidence) == (DataEffect.BATCH, "16 → 64 samples per update")


def test_a_stream_that_each_worker_repeats_is_different_data(trial: Callable[..., TrialData]) -> None:
    """Of two workers, each second batch is that of the other."""
    one, two = (trial(batches(range(SAMPLES)), seen=25) for _ in range(2))
    order = [sample for begin in range(0, SAMPLES, 16) for sample in 4 * list(range(begin, min(begin + 16, SAMPLES)))]
    found = compare_data([one, two], trial(batches(order), seen=25))
    assert (found.effect, found.evidence) == (DataEffect.DIFFERENT, "every sample occurs about 4 times per pass")


def by_length(order: Sequence[int], size: int = 16) -> list[int]:
    """Return the samples of a repeated stream in batches of the same length: one in 20 is long."""
    waiting: dict[bool, list[int]] = {False: [], True: []}
    made = []
    for sample in order:
        waiting[sample % 20 == 0].append(sample)
        if len(waiting[sample % 20 == 0]) == size:
            made += waiting[sample % 20 == 0]
            waiting[sample % 20 == 0] = []
    return made


def test_only_copies_of_all_are_certain_in_a_repeated_stream(
    trial: Callable[..., TrialData], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches by length mix its passes: one of the few long samples has each of them several times."""
    monkeypatch.setattr(f"{__name__}.SAMPLES", 60)

    def stream(seed: int, times: int = 1) -> list[int]:
        return [one for number in range(12) for one in shuffled(10 * seed + number) for _ in range(times)]

    def steps_end_passes(order: Sequence[int]) -> TrialData:
        return trial(*(batches(order[begin : begin + 64]) for begin in range(0, 320, 64)), ends=False)

    one, two = (steps_end_passes(stream(seed)) for seed in range(2))
    found = compare_data([one, two], steps_end_passes(by_length(stream(2))[240:]))
    assert (found.effect, found.evidence) == (
        DataEffect.UNVERIFIED,
        "samples repeat within a pass: 49 of 64 are distinct",
    )
    found = compare_data([one, two], steps_end_passes(stream(2, times=4)))
    assert (found.effect, found.evidence) == (DataEffect.DIFFERENT, "every sample occurs about 4 times per pass")


def test_augmentation_that_is_frozen_is_different_data(trial: Callable[..., TrialData]) -> None:
    """A cache behind it keeps what the first pass has drawn; where today's trial sees one pass alone, two tell."""
    drawn = [trial(batches(range(SAMPLES), noise=0.3, seed=seed)) for seed in range(2)]
    passes = trial(*(batches(range(SAMPLES), noise=0.3, seed=seed) for seed in (3, 4)))
    frozen = trial(*(batches(range(SAMPLES), noise=0.3, seed=5) for _ in range(2)))
    for today in (drawn, [passes]):
        assert "augmentation is frozen" in compare_data(today, frozen).evidence
        assert compare_data(today, passes).effect is DataEffect.SAME
    found = compare_data(drawn, trial(batches(range(SAMPLES), noise=0.3, seed=9)), may_freeze=True)
    assert (found.effect, found.evidence[:26]) == (DataEffect.UNVERIFIED, "no second pass was seen, s")
    plain = trial(batches(range(SAMPLES)), batches(range(SAMPLES)))
    assert compare_data([plain, plain], plain).effect is DataEffect.SAME


CHANGED: dict[str, tuple[Callable[[int], Batches], str]] = {
    "labels of other samples": (lambda seed: batches(shuffled(seed), shift=1), "labels belong to other samples"),
    "a last batch that is dropped": (
        lambda seed: batches(shuffled(seed)[:592]),
        "592 samples per pass instead of 600",
    ),
    "half of the samples": (
        lambda seed: batches(shuffled(seed)[::2] * 2),
        "every sample occurs about 2 times per pass",
    ),
    "truncated inputs": (lambda seed: batches(shuffled(seed), crop=9), "0 of its samples are among today's"),
    "garbage": (lambda seed: batches(shuffled(seed), noise=2.0, seed=seed), "0 of its samples are among today's"),
}


@pytest.mark.parametrize("change", CHANGED)
def test_what_changes_samples_is_different_data(trial: Callable[..., TrialData], change: str) -> None:
    """It is said what differs, in numbers."""
    made, said = CHANGED[change]
    today = [trial(batches(shuffled(seed))) for seed in range(2)]
    found = compare_data(today, trial(made(3)))
    assert found.effect is DataEffect.DIFFERENT
    assert said in found.evidence


def test_a_few_samples_of_garbage_are_different_data(trial: Callable[..., TrialData]) -> None:
    """Workers that share a file's position read some samples wrong: found once today's are all known."""

    def some_garbage(seed: int) -> Batches:
        for place, (inputs, classes) in enumerate(batches(shuffled(seed))):
            inputs[: place % 2] += 1.0
            yield inputs, classes

    today = [trial(batches(shuffled(seed)), batches(shuffled(seed + 10))) for seed in range(2)]
    found = compare_data(today, trial(some_garbage(3)))
    assert (found.effect, found.evidence) == (DataEffect.DIFFERENT, "19 of 600 samples are not among today's")
    assert compare_data(today, trial(batches(shuffled(4)))).effect is DataEffect.SAME


def test_other_batches_of_the_same_samples_are_no_difference(trial: Callable[..., TrialData]) -> None:
    """Without shuffling, each pass of a fast training is looked at in the same places, and a slow one's in others."""
    in_order = [list(range(SAMPLES))] * 3
    today = [trial(*map(batches, in_order), strides=(2, 4, 4)) for _ in range(2)]
    found = compare_data(today, trial(*map(batches, in_order), strides=(2, 1, 4)))
    assert found.effect is not DataEffect.DIFFERENT, found


def test_a_smaller_shuffle_buffer_is_different_data(trial: Callable[..., TrialData]) -> None:
    """Seen from pass to pass, or from training to training where these are long."""
    today = [trial(batches(shuffled(seed)), batches(shuffled(seed + 10))) for seed in range(2)]
    less = trial(batches(shuffled(3, 8)), batches(shuffled(4, 8)))
    assert "samples are shuffled less: neighbours are" in compare_data(today, less).evidence
    order = [
        sample for shard in np.random.default_rng(1).permutation(30) for sample in range(20 * shard, 20 * shard + 20)
    ]
    of_shards = trial(batches(range(SAMPLES)), batches(order))
    assert "neighbours are 1 apart in the next pass" in compare_data(today, of_shards).evidence
    today, (less, again) = (
        [trial(batches(shuffled(seed, buffer)), seen=30) for seed in range(2)] for buffer in (SAMPLES, 8)
    )
    assert "in the next training" in compare_data(today, less, [again]).evidence
    assert compare_data(today, today[0], today[1:]).effect is DataEffect.SAME


def test_short_trials_of_files_in_order_are_no_difference(trial: Callable[..., TrialData]) -> None:
    """Each file holds one value; trials that end after a few files have not seen those of the longer ones."""
    files = [(np.full((16, 12), place // 4, np.float32),) for place in range(120)]
    baseline = [trial(files, seen=12, ends=False) for _ in range(3)] + [trial(files, seen=80, ends=False)]
    assert compare_data(baseline, trial(files, ends=False)).effect is not DataEffect.DIFFERENT


def test_equal_samples_that_are_inspected_more_often_do_not_repeat(trial: Callable[..., TrialData]) -> None:
    """Constants, or blank images: a faster trial looks at a smaller share of its batches."""
    files = [(np.full((16, 12), place // 4, np.float32),) for place in range(120)]
    baseline = [trial(files, strides=(4,), ends=False) for _ in range(2)]
    assert compare_data(baseline, trial(files, ends=False)).effect is not DataEffect.DIFFERENT
    few = trial(files, strides=(8,), ends=False)  # of every other file
    assert compare_data(baseline, few).effect is not DataEffect.DIFFERENT


def test_the_order_of_fields_is_no_difference(tmp_path: Path) -> None:
    """Two loaders of one trainer may name the same fields in another order."""
    inputs, classes = FEATURES[:16], CLASSES[:16]
    seen = []
    for number, batch in enumerate(
        ({"x": inputs, "y": classes, "z": inputs + 1}, {"z": inputs + 1, "y": classes, "x": inputs})
    ):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        looks = Fingerprints(str(folder), "key")
        looks.take(looks.begin(looks.dataset(), lambda: True), batch, 16)
        looks.flush()
        seen.append(read_data(folder, ()))
    assert (seen[0].identity == seen[1].identity).all()
    assert (seen[0].moments == seen[1].moments).all()


def test_padding_is_no_difference() -> None:
    """Zeros at the end add nothing to a hash, however long the batch is padded."""
    inputs = np.arange(1, 41, dtype=np.int64).reshape(4, 10)
    looks = Fingerprints("/nowhere", "key")
    hashes = [looks._hashes(looks._selected(np.pad(inputs, ((0, 0), (0, more))))[0], 0) for more in (0, 3, 300)]
    assert all((one == hashes[0]).all() for one in hashes)
    assert len(set(hashes[0].tolist())) == 4


def test_lines_that_are_not_ours_are_left_out(tmp_path: Path, trial: Callable[..., TrialData]) -> None:
    """A trainer may write what it likes into its folder."""
    lines = ['{"k": "batch", "n": 1e9}', "[]", '{"k": "batch", "trained": true, "at": -1}', "{", '"\\u0000"']
    (tmp_path / "data.1.0.jsonl").write_text("\n".join(lines))
    (tmp_path / "data.2.0.jsonl").symlink_to("/etc/passwd")
    assert read_data(tmp_path, ()).size == 0


def test_equal_trainings_are_never_told_apart(trial: Callable[..., TrialData]) -> None:
    """Of comparisons with all kinds of looks, none is a false alarm."""
    for seed in range(0, 120, 4):
        noise, seen = (0.0, 0.3)[seed % 8 // 4], (10, 25, 38)[seed % 3]
        one, two, other = (
            trial(batches(shuffled(s), noise=noise, seed=s), seen=seen) for s in (seed, seed + 1, seed + 2)
        )
        assert compare_data([one, two], other).effect in (DataEffect.SAME, DataEffect.UNVERIFIED), (noise, seen)
