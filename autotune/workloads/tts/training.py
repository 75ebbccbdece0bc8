"""Training loop: fetch, step, report; checkpoints and resume."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import tensorflow as tf

from autotune.tf import pipeline, runtime
from autotune.tf.feed import BatchFeed, Feed, accelerator
from autotune.tf.options import PipelineOptions
from autotune.tf.runtime import Placement, place
from autotune.tf.step import Adam, Batch, TrainStep
from autotune.tf.two_stage import TwoStageFeed
from autotune.trainee import announce, epoch_end, mark, step
from autotune.workloads.tts import batches
from autotune.workloads.tts.config import TrainerConfig
from autotune.workloads.tts.ljspeech import Clip, InputError
from autotune.workloads.tts.model import Speech, l1_loss

REPORT_EVERY = 10  # steps between reads of the loss, which wait for the accelerator


def train(
    config: TrainerConfig, config_file: Path, clips: list[Clip], *, steps: int | None, epochs: int | None
) -> None:
    """Train, resuming from the newest checkpoint.

    Args:
        steps: Total steps, including those before the checkpoint; None for no limit.
        epochs: Total passes over the data, likewise; None takes ``training.epochs``.

    Raises:
        InputError: The checkpoint folder is unusable, or a device does not exist.
    """
    announce("autotune.workloads.tts")
    placement = _placement(config, config_file)
    on_model = partial(tf.device, placement.model if placement else None)
    with on_model():
        model = Speech(seed=config.training.seed, compute_dtype=config.training.mixed_precision.compute_dtype)
        optimizer = Adam(model.trainable_variables, learning_rate=config.training.learning_rate)
        checkpoints = Checkpoints(model, optimizer, config.training.checkpoint_dir)
        checkpoints.resume()

    # A resumed training draws a new order: it must not repeat the clips of the first steps.
    options = config.pipeline_options(seed=config.training.seed + checkpoints.progress.steps)
    dataset = _dataset(config, config_file, clips, options)
    with _feed(config, config_file, dataset, placement) as feed, on_model():
        train_step = TrainStep(
            loss_of(model), model.trainable_variables, optimizer, config.step_options(), feed.element_spec
        )
        if train_step.loss_scale is not None:
            checkpoints.add_loss_scale(train_step.loss_scale)
        print(f"{len(clips)} clips, {options.batch_size} per batch", flush=True)

        last_step = math.inf if steps is None else steps
        last_clip = len(clips) * (config.training.epochs if epochs is None else epochs)
        _train(feed, train_step, checkpoints, config, last_step=last_step, last_clip=last_clip, epoch_clips=len(clips))
        if isinstance(feed, TwoStageFeed):
            print(feed.times().verdict(), flush=True)
    print(f"done at step {checkpoints.progress.steps}", flush=True)


def _placement(config: TrainerConfig, config_file: Path) -> Placement | None:
    """Start TensorFlow; return the devices of two stages, None for one stage."""
    try:
        runtime.configure(config.runtime, config.device_options())
        return place(config.device_options())
    except ValueError as error:
        remedy = "set data.data_gpu and data.model_gpu to existing devices, or both to null"
        raise InputError(str(error), where=str(config_file), remedy=remedy) from error


def _dataset(config: TrainerConfig, config_file: Path, clips: list[Clip], options: PipelineOptions) -> tf.data.Dataset:
    data, store = config.data, batches.store(clips, config.data, config_file)
    if data.data_gpu is not None:  # two stages
        load, maxima, length_of = batches.sound_loader(clips, data), batches.sound_maxima(data), "sound"
    else:
        load, maxima, length_of = batches.loader(clips, data), batches.maxima(data), "mel"
    return pipeline.build(len(clips), load, options, maxima=maxima, length_of=length_of, store=store)


def _feed(config: TrainerConfig, config_file: Path, dataset: tf.data.Dataset, placement: Placement | None) -> BatchFeed:
    if placement is None:
        return Feed(dataset, work="mel_length", device=accelerator() if config.data.prefetch_to_gpu else None)
    try:
        return TwoStageFeed(dataset, batches.mel_features, placement, config.buffer_options(), work="mel_length")
    except ValueError as error:
        raise InputError(str(error), where=str(config_file), remedy="change the value") from error


def loss_of(model: Speech) -> Callable[[Batch], tf.Tensor]:
    """Return the loss function for `TrainStep`."""

    def loss(batch: Batch) -> tf.Tensor:
        frames = tf.shape(batch["mel"])[1]
        predicted = model(batch["text"], batch["text_length"], frames, batch["mel_length"])
        return l1_loss(predicted, batch["mel"], batch["mel_length"])

    return loss


def _train(
    feed: BatchFeed,
    train_step: TrainStep,
    checkpoints: Checkpoints,
    config: TrainerConfig,
    *,
    last_step: float,
    last_clip: int,
    epoch_clips: int,
) -> None:
    """Train until the last step or clip, reporting each step; `epoch_clips` make one pass."""
    progress, batch_size = checkpoints.progress, config.data.batch_size
    shown_s, waited_s = time.monotonic(), 0.0
    while progress.steps < last_step and progress.clips < last_clip:
        fetched = next(feed)
        loss = train_step(fetched.batch)
        passes_before = progress.clips // epoch_clips
        progress.steps += 1
        progress.clips += batch_size
        waited_s += fetched.wait_s
        is_shown = progress.steps % REPORT_EVERY == 0
        loss_value = float(loss) if is_shown else None
        step(samples=batch_size, wait_s=fetched.wait_s, loss=loss_value, work=fetched.work)
        for _ in range(progress.clips // epoch_clips - passes_before):
            epoch_end()
        if is_shown:
            mark("sync")
            now_s = time.monotonic()
            passed_s = now_s - shown_s
            print(
                f"step {progress.steps}  epoch {progress.clips / epoch_clips:.2f}  loss {loss_value:.4f}  "
                f"{REPORT_EVERY * batch_size / passed_s:.1f} clips/s  waiting for data {waited_s / passed_s:.0%}",
                flush=True,
            )
            shown_s, waited_s = now_s, 0.0
        checkpoints.save_if_new(config.training.checkpoint_every_steps)
    checkpoints.save_if_new()


class Progress(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Progress of the training, saved in checkpoints; `clips` counts each pass."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._clips = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.steps = self.clips = 0

    def load(self) -> None:
        self.steps, self.clips = int(self._steps), int(self._clips)

    def store(self) -> None:
        self._steps.assign(self.steps)
        self._clips.assign(self.clips)


class Checkpoints:
    """Checkpoints of a training, in a folder that is created if missing."""

    def __init__(self, model: Speech, optimizer: Adam, folder: str) -> None:
        self.progress = Progress()
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, progress=self.progress)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"training.checkpoint_dir cannot be used: {error}"
            raise InputError(message, where=folder, remedy="name a folder that can be written") from error
        self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=3)
        self._saved_at = 0

    def resume(self) -> None:
        newest = self._manager.latest_checkpoint
        if newest:
            # Partial: a loss scale exists only with some precisions.
            self._checkpoint.restore(newest).expect_partial().assert_existing_objects_matched()
            self.progress.load()
            print(f"resumed at step {self.progress.steps} from {newest}", flush=True)
        self._saved_at = self.progress.steps

    def add_loss_scale(self, loss_scale: tf.Module) -> None:
        """Also save a loss scale; restore it at once if the loaded checkpoint has one."""
        self._checkpoint.loss_scale = loss_scale

    def save_if_new(self, every_steps: int = 1) -> None:
        """Save at multiples of this step count, once each; 0 never saves."""
        if not every_steps or self.progress.steps % every_steps or self.progress.steps <= self._saved_at:
            return
        started_s = time.monotonic()
        self.progress.store()
        path = self._manager.save(checkpoint_number=self.progress.steps)
        mark("checkpoint", duration_s=time.monotonic() - started_s, text=path)
        print(f"saved {path}", flush=True)
        self._saved_at = self.progress.steps
