"""Training loop: fetch, step, report; checkpoints and resume."""

import time
from pathlib import Path

import tensorflow as tf

from autotune.tf import pipeline, runtime
from autotune.tf.feed import Feed
from autotune.tf.optimizer import Adam
from autotune.tf.step import Batch, TrainStep
from autotune.trainee import announce, epoch_end, mark, step
from autotune.workloads.tts import batches
from autotune.workloads.tts.config import TrainerConfig
from autotune.workloads.tts.input_error import InputError
from autotune.workloads.tts.ljspeech import Clip
from autotune.workloads.tts.model import Speech, l1_loss

REPORT_EVERY = 10  # steps between looks at the loss: reading it waits for the accelerator
KEEP_CHECKPOINTS = 3


class Progress(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Progress of the training, saved in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._clips = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.steps = 0
        self.clips = 0

    def load(self) -> None:
        """Restore the state from a loaded checkpoint."""
        self.steps, self.clips = int(self._steps), int(self._clips)

    def store(self) -> None:
        """Store the present state for the next checkpoint."""
        self._steps.assign(self.steps)
        self._clips.assign(self.clips)


def train(
    config: TrainerConfig, config_file: Path, clips: list[Clip], *, steps: int | None, epochs: int | None
) -> None:
    """Train, from the newest checkpoint on if there is one.

    Args:
        config: The settings.
        config_file: Path of the config.
        clips: The data.
        steps: End at this step, those before the checkpoint included; None sets no end.
        epochs: End at this pass over the data, likewise; None takes ``training.epochs``.

    Raises:
        InputError: The checkpoint folder cannot be used.
    """
    announce("autotune.workloads.tts")
    runtime.configure(config.runtime)
    model = Speech(seed=config.training.seed, compute_dtype=config.training.mixed_precision.compute_dtype)
    optimizer = Adam(model.trainable_variables, learning_rate=config.training.learning_rate)
    progress = Progress()

    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, progress=progress)
    manager = _manager(checkpoint, config.training.checkpoint_dir)
    if manager.latest_checkpoint:
        # Partial: whether there is a loss scale in it depends on the precision it was made with.
        checkpoint.restore(manager.latest_checkpoint).expect_partial().assert_existing_objects_matched()
        progress.load()
        print(f"resumed at step {progress.steps} from {manager.latest_checkpoint}", flush=True)

    # A resumed run draws new orders: it must not train on the clips of the first steps again.
    options = config.pipeline_options(seed=config.training.seed + progress.steps)
    dataset = pipeline.build(
        len(clips),
        batches.loader(clips, config.data),
        options,
        maxima=batches.maxima(config.data),
        length_of="mel",
        store=batches.store(clips, config.data, config_file),
    )

    def loss_of(batch: Batch) -> tf.Tensor:
        predicted = model(batch["text"], batch["text_length"], tf.shape(batch["mel"])[1], batch["mel_length"])
        return l1_loss(predicted, batch["mel"], batch["mel_length"])

    train_step = TrainStep(loss_of, model.trainable_variables, optimizer, config.step_options(), dataset.element_spec)
    if train_step.loss_scale is not None:
        checkpoint.loss_scale = train_step.loss_scale  # restored here if the checkpoint has one
    feed = Feed(dataset, work="mel_length", to_device=options.prefetch_to_device)
    last_step = steps if steps is not None else float("inf")
    last_clip = len(clips) * (epochs if epochs is not None else config.training.epochs)
    every = config.training.checkpoint_every_steps
    saved_at = progress.steps
    print(f"{len(clips)} clips, {options.batch_size} a batch", flush=True)

    shown_s, waited_s = time.monotonic(), 0.0
    while progress.steps < last_step and progress.clips < last_clip:
        fetched = next(feed)
        loss = train_step(fetched.batch)
        passes_before = progress.clips // len(clips)
        progress.steps += 1
        progress.clips += options.batch_size
        waited_s += fetched.wait_s
        look = progress.steps % REPORT_EVERY == 0
        loss_value = float(loss) if look else None
        step(samples=options.batch_size, wait_s=fetched.wait_s, loss=loss_value, work=fetched.work)
        for _ in range(progress.clips // len(clips) - passes_before):
            epoch_end()
        if look:
            mark("sync")
            now_s = time.monotonic()
            rate = REPORT_EVERY * options.batch_size / (now_s - shown_s)
            print(
                f"step {progress.steps}  epoch {progress.clips / len(clips):.2f}  loss {loss_value:.4f}  "
                f"{rate:.1f} clips/s  waiting for data {waited_s / (now_s - shown_s):.0%}",
                flush=True,
            )
            shown_s, waited_s = now_s, 0.0
        if every and progress.steps % every == 0:
            _save(manager, progress)
            saved_at = progress.steps
    if progress.steps > saved_at:
        _save(manager, progress)
    print(f"done at step {progress.steps}", flush=True)


def _manager(checkpoint: tf.train.Checkpoint, folder: str) -> tf.train.CheckpointManager:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"training.checkpoint_dir cannot be used: {error}", where=folder, remedy="name a folder that can be written"
        ) from error
    return tf.train.CheckpointManager(checkpoint, folder, max_to_keep=KEEP_CHECKPOINTS)


def _save(manager: tf.train.CheckpointManager, progress: Progress) -> None:
    started_s = time.monotonic()
    progress.store()
    path = manager.save(checkpoint_number=progress.steps)
    mark("checkpoint", duration_s=time.monotonic() - started_s, text=path)
    print(f"saved {path}", flush=True)
