"""The trainer as the tuner and its users run it, in this process: a config, and what comes out."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytest.importorskip("tensorflow")

from autotune.trainee.stream import process_stream
from autotune.trial.step_files import StepReader
from autotune.workloads.tts import training
from autotune.workloads.tts.__main__ import main
from tests.tf import conftest as two_devices
from tests.workloads.conftest import SHIPPED

assert two_devices  # set up

Start = Callable[..., list[str]]


@pytest.fixture
def start(
    tmp_path: Path, written_corpus: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Start:
    """Run the trainer to its end in a project, with changes to the shipped config; return the lines it printed."""
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training.runtime, "configure", lambda *_: None)  # settings of a process that begins

    def run(*arguments: str, trial_dir: str | None = None, code: int = 0, **changes: object) -> list[str]:
        content = yaml.safe_load(SHIPPED.read_text())
        for key, value in {"dataset_path": str(written_corpus), **changes}.items():
            (section,) = [section for section in content.values() if key in section]
            section[key] = value
        Path("config.yaml").write_text(yaml.safe_dump(content))
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["tts", "--config", "config.yaml", *arguments])
            if trial_dir:
                Path(trial_dir).mkdir()
                patch.setenv("AUTOTUNE_TRIAL_DIR", trial_dir)
            process_stream.forget()
            assert main() == code
            process_stream.forget()
        printed = capsys.readouterr()
        return (printed.err if code else printed.out).splitlines()

    return run


def losses_in(lines: list[str]) -> list[float]:
    """Losses that the trainer printed."""
    return [float(match[1]) for line in lines if (match := re.search(r"loss ([0-9.]+)", line))]


@pytest.mark.services
def test_it_learns_to_speak(start: Start, speech: Path) -> None:
    """On real speech the loss falls to less than half within 200 steps."""
    lines = start(
        *("--steps", "200"), trial_dir="run", dataset_path=str(speech), batch_size=4, use_tf_native_loading=True,
        cache="memory",
    )  # fmt: skip
    losses = [event.loss for event in StepReader(Path("run")).poll() if event.loss is not None]
    assert len(losses) == 20
    assert sum(losses[-5:]) / 5 < losses[0] / 2
    assert lines[-1] == "done at step 200"


@pytest.mark.services
def test_it_goes_on_from_its_checkpoint(start: Start) -> None:
    """A second run starts where the first one ended, with its loss, and counts on; a third finds nothing to do."""
    changes = {"learning_rate": 0.003, "batch_size": 4, "max_mel_frames": 30, "cache": "memory"}
    first = start("--steps", "30", checkpoint_every_steps=20, **changes)
    second = start("--steps", "40", **changes)
    third = start("--steps", "40", **changes)
    assert [line for line in first if line.startswith("saved")] == [
        "saved checkpoints/tts/ckpt-20",
        "saved checkpoints/tts/ckpt-30",
    ]
    assert second[0] == "resumed at step 30 from checkpoints/tts/ckpt-30"
    assert second[-1] == "done at step 40"
    assert (third[0], third[-1]) == ("resumed at step 40 from checkpoints/tts/ckpt-40", "done at step 40")
    assert losses_in(second)[0] < losses_in(first)[0]
    assert not Path(".autotune").exists()


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.services)])
def test_the_tuner_sees_steps_passes_and_waits(start: Start, xla: bool) -> None:
    """Samples, valid frames and waits of each step, a checkpoint, and one end of a pass per 12 clips.

    Batches are larger than the data, XLA compiles fixed shapes, the cache is on disk: one run for all of it.
    """
    start(
        *("--epochs", "4"), trial_dir="run", batch_size=16, pad_to_fixed_length=True, max_mel_frames=40,
        enable_xla_compilation=xla, cache="disk", num_workers=2, prefetch_to_gpu=True,
    )  # fmt: skip
    events = [event for event in StepReader(Path("run")).poll() if event.kind != "files"]
    steps = [event for event in events if event.kind == "step"]
    assert [event.kind for event in events if event.kind != "step"] == ["start", *["epoch_end"] * 4, "checkpoint"]
    assert [event.samples for event in steps] == [16.0] * 3
    assert all(16 * 30 < (event.work or 0) <= 16 * 40 for event in steps)
    assert all((event.wait_s or 0) >= 0 for event in steps)
    # The cache lies beside the config, and holds each clip once.
    assert len(list(Path(".autotune", "cache").rglob("*.features"))) == 12


@pytest.mark.services
def test_two_devices_train_as_one_does(start: Start) -> None:
    """Spectrograms made on one device while the other trains: the same losses, and the stages are told."""
    lines = {
        placement: start(
            *("--steps", "20"), trial_dir=f"run{placement}", data_gpu=placement and int(placement[0]),
            model_gpu=placement and int(placement[1]), checkpoint_dir=f"checkpoints/{placement}",
            bucket_by_length=True, batch_size=4, max_mel_frames=90, logical_cpu_devices=2, cache="memory",
        )
        for placement in (None, "01", "10", "00")
    }  # fmt: skip
    losses = {placement: losses_in(printed) for placement, printed in lines.items()}
    assert losses["01"] == losses["10"] == losses["00"]
    assert losses["01"] == pytest.approx(losses[None], abs=2e-4)  # another order of summation
    assert re.match(r"features .* ms, step .* ms per batch: ", lines["01"][-2])
    events = StepReader(Path("run01")).poll()
    stages = next(event for event in events if event.kind == "stages").stages
    assert stages is not None
    assert stages.passed_s >= 0.0
    assert not [event for event in StepReader(Path("runNone")).poll() if event.kind == "stages"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"data_gpu": 0, "model_gpu": 2, "logical_cpu_devices": 2},
            "model_gpu is 2, but TensorFlow sees 2 CPU devices, numbered from 0",
        ),
        ({"data_gpu": 7, "model_gpu": 8}, "data_gpu is 7, but TensorFlow sees"),
        (
            {"data_gpu": 0, "model_gpu": 1, "logical_cpu_devices": 2, "pipeline_buffer_mb": 1},
            "pipeline_buffer_mb must be at least 3 for one batch, got 1",
        ),
    ],
)
def test_devices_that_are_not_there_end_the_training_with_a_sentence(
    start: Start, changes: dict[str, object], said: str
) -> None:
    """No falling back to fewer: the key, what is there, and what to do."""
    assert said in "\n".join(start(code=2, **changes))


def test_a_loss_that_is_not_a_number_is_told(start: Start) -> None:
    """A diverged training says so in its stream; eager mode and bfloat16 run."""
    start(
        *("--steps", "10"), trial_dir="run", batch_size=2, learning_rate=1.0e30, max_mel_frames=30,
        enable_graph_mode=False, mixed_precision="mixed_bfloat16",
    )  # fmt: skip
    losses = [event.loss for event in StepReader(Path("run")).poll() if event.loss is not None]
    assert losses
    assert not all(loss < 1e9 for loss in losses)


def test_throughput_and_prepared_texts_train(start: Start) -> None:
    """With tf.data's own options and texts from workers, which are kept for the next start."""
    lines = start(
        *("--steps", "10"), throughput_options=True, text_workers=2, text_cache=True, max_mel_frames=30
    )  # fmt: skip
    assert lines[-1] == "done at step 10"
    assert len(list(Path(".autotune", "cache").rglob("*.tokens"))) == 1
