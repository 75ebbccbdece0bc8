"""Progress of the training, and the checkpoints that keep it."""

import time
from pathlib import Path

import tensorflow as tf

from autotune.tf.optimizer import Adam
from autotune.trainee import mark
from autotune.workloads.tts.input_error import InputError
from autotune.workloads.tts.model import Speech

KEEP_CHECKPOINTS = 3


class Progress(tf.Module):  # type: ignore[misc]  # TensorFlow has no stubs
    """Progress of the training, saved in checkpoints.

    Attributes:
        steps: Steps done.
        clips: Clips trained on, each pass counted.
    """

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


class Checkpoints:
    """Checkpoints of a training.

    Args:
        model: The model.
        optimizer: Its optimizer.
        folder: Folder of the checkpoints; made if it is not there.

    Attributes:
        progress: Progress of the training, saved along.

    Raises:
        InputError: The folder cannot be used.
    """

    def __init__(self, model: Speech, optimizer: Adam, folder: str) -> None:
        self.progress = Progress()
        self._checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, progress=self.progress)
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"training.checkpoint_dir cannot be used: {error}",
                where=folder,
                remedy="name a folder that can be written",
            ) from error
        self._manager = tf.train.CheckpointManager(self._checkpoint, folder, max_to_keep=KEEP_CHECKPOINTS)
        self._saved_at = 0

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        newest = self._manager.latest_checkpoint
        if newest:
            # Partial: whether there is a loss scale in it depends on the precision it was made with.
            self._checkpoint.restore(newest).expect_partial().assert_existing_objects_matched()
            self.progress.load()
            print(f"resumed at step {self.progress.steps} from {newest}", flush=True)
        self._saved_at = self.progress.steps

    def add_loss_scale(self, loss_scale: tf.Module) -> None:
        """Save a loss scale along; it is restored at once if the checkpoint that was resumed from has one."""
        self._checkpoint.loss_scale = loss_scale

    def save_if_new(self, every_steps: int = 1) -> None:
        """Save at steps that are a multiple of this number, unless this step is saved already; 0 never saves."""
        if every_steps and self.progress.steps % every_steps == 0 and self.progress.steps > self._saved_at:
            self._save()

    def _save(self) -> None:
        started_s = time.monotonic()
        self.progress.store()
        path = self._manager.save(checkpoint_number=self.progress.steps)
        mark("checkpoint", duration_s=time.monotonic() - started_s, text=path)
        print(f"saved {path}", flush=True)
        self._saved_at = self.progress.steps
