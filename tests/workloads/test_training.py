"""The trainer as the tuner and its users run it: a process, a config, and what comes out."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.trial.step_files import StepReader

pytestmark = pytest.mark.services

SHIPPED = Path(__file__).resolve().parents[2] / "configs" / "config.yaml"


class Trainer:
    """Runs the trainer in a folder of its own, with a config made from the shipped one."""

    def __init__(self, folder: Path, dataset: Path) -> None:
        self.folder = folder
        self.dataset = dataset

    def start(self, *arguments: str, trial_dir: str | None = None, **changes: object) -> list[str]:
        """Runs it to its end and gives the lines it printed; ``changes`` are keys of any section."""
        content = yaml.safe_load(SHIPPED.read_text())
        content["data"]["dataset_path"] = str(self.dataset)
        for key, value in changes.items():
            (section,) = [section for section in content.values() if key in section]
            section[key] = value
        (self.folder / "config.yaml").write_text(yaml.safe_dump(content))
        env = dict(os.environ)
        if trial_dir:
            (self.folder / trial_dir).mkdir()
            env["AUTOTUNE_TRIAL_DIR"] = str(self.folder / trial_dir)
        command = [sys.executable, "-m", "autotune.workloads.tts", "--config", "config.yaml", *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, check=False, timeout=150
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def trainer(tmp_path: Path, written_corpus: Path) -> Trainer:
    """A trainer on made-up clips, in a project of its own."""
    (tmp_path / ".git").mkdir()
    return Trainer(tmp_path, written_corpus)


def test_it_learns_to_speak(speech: Path, tmp_path: Path) -> None:
    """On real speech the loss falls to less than half within 200 steps."""
    lines = Trainer(tmp_path, speech).start(
        "--steps", "200", trial_dir="run", batch_size=4, use_tf_native_loading=True, cache="memory"
    )
    losses = [event.loss for event in StepReader(tmp_path / "run").poll() if event.loss is not None]
    assert len(losses) == 20
    assert sum(losses[-5:]) / 5 < losses[0] / 2
    assert lines[-1] == "done at step 200"


def test_it_goes_on_from_its_checkpoint(trainer: Trainer) -> None:
    """A second run starts where the first one ended, with its loss, and counts on; a third finds nothing to do."""
    first = trainer.start("--steps", "30", learning_rate=0.003, checkpoint_every_steps=20)
    second = trainer.start("--steps", "40", learning_rate=0.003)
    third = trainer.start("--steps", "40")
    assert [line for line in first if line.startswith("saved")] == [
        "saved checkpoints/tts/ckpt-20",
        "saved checkpoints/tts/ckpt-30",
    ]
    assert second[0] == "resumed at step 30 from checkpoints/tts/ckpt-30"
    assert second[-1] == "done at step 40"
    assert (third[0], third[-1]) == ("resumed at step 40 from checkpoints/tts/ckpt-40", "done at step 40")

    def losses(lines: list[str]) -> list[float]:
        return [float(match[1]) for line in lines if (match := re.search(r"loss ([0-9.]+)", line))]

    assert losses(second)[0] < losses(first)[0] * 0.8
    assert not (trainer.folder / ".autotune").exists()


def test_the_tuner_sees_steps_passes_and_waits(trainer: Trainer) -> None:
    """Samples, valid frames and waits of each step, a checkpoint, and one end of a pass per 12 clips.

    Batches are larger than the data, XLA compiles fixed shapes, the cache is on disk: one process for all of it.
    """
    trainer.start(
        "--epochs",
        "4",
        trial_dir="run",
        batch_size=16,
        pad_to_fixed_length=True,
        max_mel_frames=120,
        enable_xla_compilation=True,
        cache="disk",
        num_workers=2,
        prefetch_to_gpu=True,
        intra_op_threads=1,
        inter_op_threads=1,
    )
    events = [event for event in StepReader(trainer.folder / "run").poll() if event.kind != "files"]
    steps = [event for event in events if event.kind == "step"]
    assert [event.kind for event in events if event.kind != "step"] == ["start", *["epoch_end"] * 4, "checkpoint"]
    assert len(steps) == 3
    assert {event.samples for event in steps} == {16.0}
    assert all(16 * 30 < event.work <= 16 * 120 for event in steps)
    assert all(event.wait_s >= 0 for event in steps)
    # The cache lies beside the config, and holds each clip once.
    assert len(list((trainer.folder / ".autotune" / "cache").rglob("*.features"))) == 12


def test_two_devices_train_as_one_does(trainer: Trainer) -> None:
    """Spectrograms made on one device while the other trains: the same losses, and the stages are told."""
    settings = {"batch_size": 4, "max_mel_frames": 90, "logical_cpu_devices": 2, "cache": "memory"}
    lines = {
        placement: trainer.start(
            "--steps",
            "20",
            trial_dir=f"run{placement}",
            data_gpu=placement and int(placement[0]),
            model_gpu=placement and int(placement[1]),
            checkpoint_dir=f"checkpoints/{placement}",
            bucket_by_length=True,
            **settings,
        )
        for placement in (None, "01", "10", "00")
    }

    def losses(placement: str | None) -> list[float]:
        return [float(found) for line in lines[placement] for found in re.findall(r"loss ([0-9.]+)", line)]

    assert losses("01") == losses("10") == losses("00")
    assert losses("01") == pytest.approx(losses(None), abs=2e-4)  # another order of summation
    assert any("batches_on /CPU:1" in line for line in lines["01"])
    assert re.match(r"features .* ms, step .* ms a batch: ", lines["01"][-2])
    events = StepReader(trainer.folder / "run01").poll()
    assert next(event for event in events if event.kind == "stages").stages.passed_s >= 0.0
    assert not [event for event in StepReader(trainer.folder / "runNone").poll() if event.kind == "stages"]


def test_devices_that_are_not_there_end_the_training_with_a_sentence(trainer: Trainer) -> None:
    """No falling back to fewer: the key, what is there, and what to do."""
    with pytest.raises(AssertionError, match=r"model_gpu is 2, but TensorFlow sees 2 logical CPU devices, 0 to 1"):
        trainer.start(data_gpu=0, model_gpu=2, logical_cpu_devices=2)
    with pytest.raises(AssertionError, match="data_gpu is 7, but TensorFlow sees"):
        trainer.start(data_gpu=7, model_gpu=8)
    with pytest.raises(AssertionError, match="pipeline_buffer_mb must be at least 3 for one batch, got 1"):
        trainer.start(data_gpu=0, model_gpu=1, logical_cpu_devices=2, pipeline_buffer_mb=1)


def test_a_loss_that_is_not_a_number_is_told(trainer: Trainer) -> None:
    """A diverged training says so in its stream; eager mode and bfloat16 run."""
    trainer.start(
        "--steps",
        "10",
        trial_dir="run",
        batch_size=2,
        learning_rate=1.0e30,
        max_mel_frames=60,
        enable_graph_mode=False,
        mixed_precision="mixed_bfloat16",
    )
    losses = [event.loss for event in StepReader(trainer.folder / "run").poll() if event.loss is not None]
    assert losses
    assert not all(loss < 1e9 for loss in losses)


def test_the_options_that_apply_are_printed(trainer: Trainer) -> None:
    """Each record in a paragraph at the start, with what TensorFlow was given; in order or for throughput it trains."""
    lines = trainer.start(
        "--steps",
        "10",
        throughput_options=True,
        text_workers=2,
        normalize_text=True,
        text_cache=True,
        max_mel_frames=60,
    )
    printed = " ".join(" ".join(lines).split())
    for said in (
        "12 clips, 8 a batch runtime inter_op_threads 0,",
        "texts workers 2,",
        "normalized yes, cached yes",
        "pipeline batch_size 8,",
        "tf_data deterministic false, autotune true,",
        "batches_on the host step graph yes, xla no, precision float32 step 10 ",
    ):
        assert said in printed
    assert len(list((trainer.folder / ".autotune" / "cache").rglob("*.tokens"))) == 1
