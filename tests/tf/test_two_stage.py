"""The pipeline over two devices gives the batches of one device, and ends whatever happens, on two logical CPUs."""

import contextlib
import gc
import itertools
import os
import random
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from autotune.tf.feed import Fetched
from autotune.tf.options import BufferOptions
from autotune.tf.runtime import Placement
from autotune.tf.two_stage import FeatureFunction, TwoStageFeed, two_stage_dataset
from tests.until import ended

APART = Placement(data="/CPU:1", model="/CPU:0")
TOGETHER = Placement(data="/CPU:0", model="/CPU:0")
PLACEMENTS = (APART, Placement(data="/CPU:0", model="/CPU:1"), TOGETHER)

_LEFT_EARLIER: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def no_hidden_copies() -> Iterator[None]:
    """Any operation on a tensor of the other device is an error."""
    tf.config.experimental.set_device_policy("explicit")
    yield
    tf.config.experimental.set_device_policy("silent")


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Each test ends all that it started; what an earlier one has left is that one's failure alone."""
    _LEFT_EARLIER.update(_threads())
    yield
    if left_threads():
        gc.collect()
    assert left_threads() == []


def left_threads() -> list[str]:
    """The threads of this test's pipelines that are still there, each with where it is."""
    frames = sys._current_frames()
    left = [thread for thread in _threads() if thread not in _LEFT_EARLIER]
    return [f"{thread.name}:\n{''.join(traceback.format_stack(frames.get(thread.ident or 0)))}" for thread in left]


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("autotune-")]


def batches(count: int) -> tf.data.Dataset:
    """Batches that hold their own number."""
    return tf.data.Dataset.range(count).map(lambda number: {"number": tf.fill([3], number), "work": number + 1})


def noisy(batch: dict[str, tf.Tensor], number: tf.Tensor) -> dict[str, tf.Tensor]:
    """Features with random numbers that depend on the batch's number alone."""
    noise = tf.random.stateless_normal([3, 4], seed=tf.stack([7, number]))
    return {"features": tf.cast(batch["number"], tf.float32)[:, None] + noise, "number": batch["number"]}


def feed_of(
    count: int, features: FeatureFunction = noisy, placement: Placement = APART, **options: Any
) -> TwoStageFeed:
    """A pipeline over so many batches."""
    return TwoStageFeed(batches(count), features, placement, BufferOptions(**options), work="work")


def calling(call: Callable[[int], object]) -> FeatureFunction:
    """Features of a function that calls Python with the number of each batch."""

    def called(number: np.int64) -> np.int64:
        call(int(number))
        return number

    def features(batch: dict[str, tf.Tensor], number: tf.Tensor) -> dict[str, tf.Tensor]:
        seen = tf.ensure_shape(tf.numpy_function(called, [number], tf.int64), [])
        return {"number": batch["number"] + (seen - number)}

    return features


def numbers(fetched: Iterator[Fetched]) -> list[int]:
    """The numbers of the batches."""
    return [int(one.batch["number"].numpy()[0]) for one in fetched]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_batches_are_on_the_model_device_with_their_work(placement: Placement) -> None:
    """Each comes once, in order, with the work counted on the host."""
    with feed_of(10, placement=placement) as feed, tf.device(placement.model):
        got = list(feed)
    assert [one.work for one in got] == list(range(1, 11))
    assert numbers(iter(got)) == list(range(10))
    assert all(one.batch["features"].backing_device.endswith(placement.model[1:]) for one in got)


@pytest.mark.services
@hypothesis_settings(max_examples=40)
@given(
    count=st.integers(0, 12),
    depth=st.integers(1, 5),
    warmup=st.integers(0, 7),
    taken=st.integers(0, 14),
    placement=st.sampled_from(PLACEMENTS),
)
def test_the_batches_are_those_of_one_device(
    count: int, depth: int, warmup: int, taken: int, placement: Placement
) -> None:
    """Bit for bit, whatever the sizes, the depth, the placement, and however early the training stops."""
    plain = [
        noisy(batch, tf.constant(number, tf.int64))["features"].numpy()
        for number, batch in enumerate(batches(count).take(taken))
    ]
    with feed_of(count, placement=placement, batches=depth, warmup_batches=warmup) as feed:
        piped = [one.batch["features"].numpy() for one in itertools.islice(feed, taken)]
    assert len(piped) == len(plain)
    assert all(np.array_equal(one, other) for one, other in zip(piped, plain, strict=True))


@pytest.mark.parametrize("placement", [APART, TOGETHER])
@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_is_computed_than_the_buffer_holds(depth: int, placement: Placement) -> None:
    """The buffer, one batch being computed, and with two devices two on their way to the second."""
    ahead = depth + (3 if placement is APART else 1)
    begun: list[int] = []
    full = threading.Event()

    def count(number: int) -> None:
        begun.append(number)
        if len(begun) == ahead + 1:
            full.set()

    with feed_of(50, calling(count), placement=placement, batches=depth) as feed:
        next(feed)
        assert full.wait(60)  # with the one that was taken
        for taken in range(2, 10):
            assert len(begun) <= ahead + taken
            next(feed)


def test_the_first_batch_waits_for_the_warmup() -> None:
    """As many batches as were asked for are there when training begins, but never more than the buffer holds."""
    for warmup, depth, there in ((3, 4, 3), (9, 2, 2)):
        begun: list[int] = []
        with feed_of(50, calling(begun.append), batches=depth, warmup_batches=warmup) as feed:
            next(feed)
            assert len(begun) >= there


def test_an_error_in_the_features_reaches_the_trainer_after_the_batches_before_it() -> None:
    """With its own trace, which names the function that failed."""

    def fails_at_five(number: int) -> None:
        if number == 5:
            raise RuntimeError("window of length zero")

    with feed_of(20, calling(fails_at_five)) as feed:
        assert numbers(itertools.islice(feed, 5)) == [0, 1, 2, 3, 4]
        with pytest.raises(tf.errors.UnknownError, match="window of length zero") as raised:
            next(feed)
    assert "fails_at_five" in str(raised.value)
    assert "_compute" in "".join(traceback.format_tb(raised.value.__traceback__))


def test_one_that_is_forgotten_ends() -> None:
    """A trainer that drops it without a word keeps no thread and no batch."""
    feed = feed_of(1000)
    tensor = weakref.ref(next(feed).batch["number"])
    del feed
    gc.collect()
    assert left_threads() == []
    assert tensor() is None


@pytest.mark.parametrize("way", ["stop", "features", "trainer", "close", "interrupt"])
def test_it_can_end_at_any_moment(way: str) -> None:
    """Errors on each side, ^C, closing and early stops: no batch is lost or doubled, nothing hangs, nothing is left."""
    randomness = random.Random(way)
    for placement in PLACEMENTS:
        _end_somehow(way, placement, randomness)
        assert left_threads() == []


def _end_somehow(way: str, placement: Placement, randomness: random.Random) -> None:
    last = randomness.randrange(12)

    def reached(number: int) -> None:
        if way == "features" and number == last:
            raise RuntimeError("told to fail")
        if way == "interrupt" and number == last:
            os.kill(os.getpid(), signal.SIGINT)
        if way == "close" and number == last:
            closer.start()

    taken: list[int] = []
    feed = feed_of(40, calling(reached), placement, batches=randomness.randint(1, 4))
    closer = threading.Thread(target=feed.close)
    with contextlib.suppress(tf.errors.UnknownError, ZeroDivisionError, KeyboardInterrupt):
        try:
            for one in feed:
                taken.append(int(one.batch["number"].numpy()[0]))
                if way == "trainer" and len(taken) > last:
                    raise ZeroDivisionError
                if way == "stop" and len(taken) > last:
                    break
        finally:
            feed.close()
    if way == "close":
        closer.join()
    assert taken == list(range(len(taken)))
    if way in ("stop", "trainer"):
        assert len(taken) == last + 1
    if way == "features":
        assert len(taken) == last


@pytest.mark.services
@pytest.mark.parametrize("placement", [APART, TOGETHER])
def test_memory_is_flat_over_10_000_batches(placement: Placement) -> None:
    """Memory that a batch took is given back."""
    process = psutil.Process()
    with feed_of(11_000, placement=placement, batches=4) as feed:
        for _ in itertools.islice(feed, 1000):
            pass
        before_bytes = process.memory_info().rss
        for _ in feed:
            pass
        assert process.memory_info().rss - before_bytes < 5 * 2**20  # half a KiB a batch


def test_a_shape_that_is_not_fixed_is_refused() -> None:
    """Of the host's batches and of the features, with the name and what to do."""
    ragged = batches(4).map(lambda batch: {**batch, "number": batch["number"][: batch["work"]]})
    with pytest.raises(ValueError, match=r"input 'number' has shape \(None,\).*Pad it"):
        TwoStageFeed(ragged, noisy, APART, BufferOptions(), work="work")
    with pytest.raises(ValueError, match="feature 'some' has shape"):
        feed_of(4, lambda batch, number: {"some": batch["number"][:number]})
    with pytest.raises(ValueError, match="feature 'text' is text"):
        feed_of(4, lambda batch, _: {"text": tf.strings.as_string(batch["number"])})


def test_features_that_are_no_tensors_by_name_are_refused() -> None:
    """With what they are; so are batches that are none, a device that is not there, and work that cannot be counted."""
    returned: list[tuple[Callable[[Any], Any], str]] = [
        (lambda batch: batch["number"], "dict of tensors by name, got SymbolicTensor"),
        (lambda batch: (batch, batch), "got tuple"),
        (lambda _: None, "got NoneType"),
        (lambda _: {}, "got dict"),
        (lambda batch: {"a": {"b": batch["number"]}}, "features must be dense tensors"),
        (lambda batch: {"a": tf.sparse.from_dense(batch["number"])}, "features must be dense tensors"),
    ]
    for features, said in returned:
        with pytest.raises(ValueError, match=said):
            feed_of(3, lambda batch, _, features=features: features(batch))
    for placement in (Placement(data="/CPU:0", model="/GPU:3"), Placement(data="/CPU:9", model="/CPU:0")):
        with pytest.raises(ValueError, match="does not exist: TensorFlow sees CPU:0, CPU:1"):
            feed_of(3, placement=placement)
    with pytest.raises(ValueError, match=r"an integer tensor 'zzz', got .*number.*work"):
        TwoStageFeed(batches(3), noisy, APART, BufferOptions(), work="zzz")


def test_a_resumed_training_counts_on() -> None:
    """The numbers of its batches, and their random numbers, are those of a training that was not interrupted."""
    through = [one.batch["features"].numpy() for one in feed_of(6)][3:]
    rest = TwoStageFeed(batches(6).skip(3), noisy, APART, BufferOptions(), work="work", first_number=3)
    resumed = [one.batch["features"].numpy() for one in rest]
    assert all(np.array_equal(one, other) for one, other in zip(through, resumed, strict=True))


def test_a_buffer_in_bytes_holds_fewer_batches() -> None:
    """The lower of both limits counts; one that holds no batch is refused."""

    def large(_: dict[str, tf.Tensor], __: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"number": tf.zeros([1024, 1024], tf.float32)}  # 4 MiB

    for megabytes, depth in ((0, 8), (64, 8), (13, 3)):
        with feed_of(3, large, batches=8, megabytes=megabytes) as feed:
            assert feed.depth == depth
    with pytest.raises(ValueError, match="pipeline_buffer_mb must be at least 4 for one batch, got 3"):
        feed_of(3, large, megabytes=3)


def test_other_ways_to_divide_the_work_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution strategy places batches itself; cudaMallocAsync orders memory by streams."""
    strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
    with strategy.scope(), pytest.raises(ValueError, match="MirroredStrategy conflicts with a pipeline"):
        feed_of(3)
    monkeypatch.setenv("TF_GPU_ALLOCATOR", "cuda_malloc_async")
    with pytest.raises(ValueError, match="unset it"):
        feed_of(3)


def test_the_times_say_which_stage_sets_the_pace() -> None:
    """Features that hold up the steps are busy all the time, and the steps wait for them."""
    gate = threading.Semaphore(3)

    def slow(_: int) -> None:
        gate.acquire(timeout=60)

    with feed_of(40, calling(slow), batches=2) as feed:
        for _ in itertools.islice(feed, 3):
            pass
        threading.Timer(0.05, gate.release, (40,)).start()
        for _ in feed:
            pass
        times = feed.times()
    assert times.model.batches >= 39  # the last step may still be waited for
    assert times.model.input_s > times.model.busy_s
    assert times.features_s > times.step_s
    assert "features" in times.verdict()


@pytest.mark.services
def test_the_example_of_the_documents_runs() -> None:
    """As printed, but on logical CPUs."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "two-gpus.md").read_text()
    code = "".join(part.split("```")[0] for part in page.split("```python\n")[1:])  # the second goes on with the first
    assert "model_gpu=1)" in code
    done = ended(sys.executable, "-c", code.replace("model_gpu=1)", "model_gpu=1, logical_cpu_devices=2)"))
    assert done.returncode == 0, done.stderr
    said, fitting = done.stdout.split("Epoch 1/2")
    loss, verdict = said.split(maxsplit=1)
    assert 0.0 < float(loss) < 10.0
    assert verdict.startswith("features ")
    assert "50/50" in fitting


@pytest.mark.parametrize("placement", [APART, TOGETHER])
def test_keras_fits_over_two_devices(placement: Placement) -> None:
    """The losses of its steps are those of one device, bit for bit; each pass ends its threads, also one cut short."""
    tf.config.experimental.set_device_policy("silent")  # Keras copies each batch to its step

    def pair(features: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return features["features"], features["number"]

    plain = batches(12).enumerate().map(lambda number, batch: pair(noisy(batch, number)))
    made = two_stage_dataset(batches(12), noisy, placement, BufferOptions(), work="work", elements=pair)
    assert made.cardinality() == 12
    losses = losses_of_fit(made, placement.model)
    assert len(losses) == 29
    assert losses == losses_of_fit(plain, placement.model)


def losses_of_fit(dataset: tf.data.Dataset, device: str) -> list[float]:
    """The loss of each step of two passes over a dataset, and of five steps more."""
    losses: list[float] = []
    follow = tf.keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: losses.append(logs["loss"]))
    with tf.device(device):
        tf.keras.utils.set_random_seed(1)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(dataset, epochs=2, shuffle=False, callbacks=[follow], verbose=0)
        model.fit(dataset, epochs=1, steps_per_epoch=5, shuffle=False, callbacks=[follow], verbose=0)
    assert model.layers[0].kernel.value.device.endswith(device[1:])
    return losses
