"""The input pipeline does what each option says, and nothing more."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf import pipeline
from autotune.tf.feed import Feed, accelerator
from autotune.tf.options import PipelineOptions
from autotune.tf.pipeline import DiskStore, MemoryStore, cache_folder
from tests.conftest import fill

EXAMPLES = 10
LONGEST = 12


class Source:
    """Examples whose length is known from their number, and that remember being loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []
        self.eight_loaded = threading.Event()

    def load(self, index: tf.Tensor) -> dict[str, tf.Tensor]:
        """Example n holds n + 1 times the number n."""

        def remember(number: np.int64) -> np.int64:
            self.loaded.append(int(number))
            if len(self.loaded) == 8:
                self.eight_loaded.set()
            return number

        number = tf.ensure_shape(tf.numpy_function(remember, [index], tf.int64), [])
        return {"values": tf.fill([number + 1], number), "number": number, "length": number + 1}

    def build(self, store: Any = None, **options: Any) -> tf.data.Dataset:
        """A pipeline over these examples."""
        chosen = PipelineOptions(**{"batch_size": 2} | options)
        return pipeline.build(EXAMPLES, self.load, chosen, maxima={"values": LONGEST}, length_of="values", store=store)


def numbers(dataset: tf.data.Dataset, batches: int) -> list[int]:
    """The numbers of the examples in the first batches, in order."""
    return [int(number) for batch in dataset.take(batches) for number in batch["number"]]


def test_no_prefetch_is_none() -> None:
    """With a prefetch of 0 no batch is made ahead; the parallel loader is at most its own width ahead."""
    dataset = Source().build(prefetch_batches=0)
    assert "Prefetch" not in type(dataset._input_dataset).__name__
    assert dataset.options().experimental_optimization.inject_prefetch is False
    source = Source()
    iterator = iter(source.build(prefetch_batches=0))
    for batches in range(1, 20):
        next(iterator)
        assert len(source.loaded) <= 2 * batches + 2


def test_each_pass_holds_every_example_once_in_another_order() -> None:
    """The order is drawn anew for each pass, and follows from the seed."""
    passes = np.reshape(numbers(Source().build(), 3 * EXAMPLES // 2), (3, EXAMPLES)).tolist()
    assert all(sorted(one) == list(range(EXAMPLES)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    assert numbers(Source().build(), 15) == numbers(Source().build(), 15)
    assert numbers(Source().build(seed=1), 15) != numbers(Source().build(), 15)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_cache_loads_once_and_changes_nothing_else(kind: str, tmp_path: Path) -> None:
    """The examples, their order and their values are those of no cache; each is loaded once."""
    plain, kept = Source(), Source()
    store = MemoryStore() if kind == "memory" else DiskStore(tmp_path / "cache")
    without = list(plain.build(parallel_calls=3).take(15).as_numpy_iterator())
    with_cache = list(kept.build(store, parallel_calls=3).take(15).as_numpy_iterator())
    for one, other in zip(without, with_cache, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    assert sorted(set(kept.loaded)) == list(range(EXAMPLES))
    assert len(plain.loaded) > len(kept.loaded)
    # Two of the same example can be under way at once where one pass follows on the other, not more.
    assert len(kept.loaded) <= EXAMPLES + 2


def test_a_disk_cache_serves_the_next_run(tmp_path: Path) -> None:
    """Examples that one process has loaded are not loaded again by the next."""
    first, second = Source(), Source()
    expected = numbers(first.build(DiskStore(tmp_path / "cache")), 5)
    assert numbers(second.build(DiskStore(tmp_path / "cache")), 5) == expected
    assert second.loaded == []


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "foreign", "another's"])
def test_a_cache_entry_that_is_not_whole_is_rebuilt(damage: str, tmp_path: Path) -> None:
    """A torn, damaged, foreign or misplaced file is never trusted: the example is loaded and the file replaced."""
    store = DiskStore(tmp_path / "cache")
    expected = numbers(Source().build(store), 5)
    victim = store.path(3)
    good = victim.read_bytes()
    victim.write_bytes(
        {
            "torn": good[:-1],
            "flipped": good[:-5] + bytes([good[-5] ^ 1]) + good[-4:],
            "empty": b"",
            "foreign": b"not of this cache",
            "another's": store.path(4).read_bytes(),
        }[damage]
    )
    source = Source()
    assert numbers(source.build(DiskStore(tmp_path / "cache")), 5) == expected
    assert set(source.loaded) == {3}
    assert victim.read_bytes() == good


def test_a_cache_that_cannot_be_written_does_not_stop_training(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On a full disk the examples are loaded anew, this is said once, and no litter stays."""
    store = DiskStore(small_disk / "cache")
    store.path(0).parent.mkdir()
    fill(small_disk)
    assert sorted(numbers(Source().build(store), 5)) == list(range(EXAMPLES))
    assert len([record for record in caplog.records if "cache cannot be written" in record.message]) == 1
    assert [path for path in (small_disk / "cache").iterdir() if path.name.startswith(".")] == []


def test_the_folder_of_a_cache_follows_what_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other data, another folder; beside the project's other state, or where the tuner says."""
    config = tmp_path / "project" / "configs" / "config.yaml"
    config.parent.mkdir(parents=True)
    (tmp_path / "project" / ".git").mkdir()
    folder = cache_folder({"clips": 1}, near=config)
    assert folder.parent == tmp_path / "project" / ".autotune" / "cache"
    assert (tmp_path / "project" / ".autotune" / ".gitignore").read_text() == "*\n"
    assert cache_folder({"clips": 1}, near=config) == folder
    assert cache_folder({"clips": 2}, near=config) != folder
    (tmp_path / "project" / ".autotune").chmod(0o777)  # others could put other features into it
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    assert cache_folder({"clips": 1}, near=config) == tmp_path / "home" / "autotune" / "cache" / folder.name
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "said"))
    assert cache_folder({"clips": 1}, near=config) == tmp_path / "said" / folder.name


def test_fixed_length_makes_static_shapes() -> None:
    """Every batch has one shape, known before the first; without, a batch is as long as its longest."""
    fixed, free = Source().build(fixed_length=True), Source().build()
    assert fixed.element_spec["values"].shape == (2, LONGEST)
    assert free.element_spec["values"].shape.as_list() == [2, None]
    for one, other in zip(fixed.take(5), free.take(5), strict=True):
        assert one["values"].shape == (2, LONGEST)
        assert other["values"].shape[1] == max(other["length"])
        width = other["values"].shape[1]
        np.testing.assert_array_equal(one["values"][:, :width], other["values"])
        assert not one["values"][:, width:].numpy().any()


def test_buckets_hold_like_lengths() -> None:
    """No batch spans more than one class of length; fixed length pads to the end of the class."""
    for fixed in (False, True):
        for batch in Source().build(buckets=3, fixed_length=fixed).take(20):
            lengths = batch["length"].numpy()
            assert len({(length - 1) // 4 for length in lengths}) == 1
            top = 4 * ((max(lengths) - 1) // 4 + 1)
            assert batch["values"].shape == (2, top if fixed else max(lengths))


def test_throughput_gives_up_the_order_and_nothing_else() -> None:
    """Every example comes, with the same features, in full batches; TensorFlow has the options that are promised."""
    dataset = Source().build(throughput=True, parallel_calls=4)
    options = dataset.options()
    assert (options.deterministic, options.autotune.enabled) == (False, True)
    assert options.experimental_optimization.parallel_batch
    seen = set()
    for batch in dataset.take(30):
        for number, length, values in zip(batch["number"], batch["length"], batch["values"], strict=True):
            assert length == number + 1
            np.testing.assert_array_equal(values[:length], [number] * int(length))
            seen.add(int(number))
    assert seen == set(range(EXAMPLES))
    written = Source().build(parallel_calls=4).options()
    assert (written.autotune.enabled, written.experimental_optimization.inject_prefetch) == (False, False)
    assert written.threading.private_threadpool_size == 4


def test_throughput_does_not_wait_for_the_slowest() -> None:
    """Examples that are ready pass one that hangs; in order, they wait behind it."""
    release = threading.Event()

    def wait_at_first(number: np.int64) -> np.int64:
        if number == 0:
            assert release.wait(timeout=60)
        return number

    def load(index: tf.Tensor) -> dict[str, tf.Tensor]:
        number = tf.ensure_shape(tf.numpy_function(wait_at_first, [index], tf.int64), [])
        return {"values": tf.fill([number + 1], number), "number": number}

    options = PipelineOptions(batch_size=1, throughput=True, parallel_calls=4)
    batches = iter(pipeline.build(EXAMPLES, load, options, maxima={"values": LONGEST}, length_of="values"))
    first = [int(next(batches)["number"][0]) for _ in range(EXAMPLES - 1)]
    release.set()
    assert 0 not in first


@pytest.mark.parametrize("throughput", [False, True])
def test_a_feed_counts_valid_work_per_batch(throughput: bool) -> None:
    """The count belongs to the batch it comes with, also when more batches are made ahead."""
    feed = Feed(Source().build(prefetch_batches=4, throughput=throughput, parallel_calls=3), work="length")
    for _ in range(20):
        fetched = next(feed)
        assert fetched.work == fetched.batch["length"].numpy().sum()
        assert fetched.wait_s >= 0.0


def test_a_missing_accelerator_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Prefetching to a device that is not there has no effect, and says so."""
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("there is an accelerator here")
    feed = Feed(Source().build(), work="length", device=accelerator())
    next(feed), next(feed)
    assert [record.message for record in caplog.records] == ["no accelerator found: batches stay in host memory"]
