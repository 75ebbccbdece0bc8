"""Spectrograms and batches: the two loaders agree, and padding and buckets change nothing that counts."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from autotune.tf import pipeline
from autotune.tf.options import Cache
from autotune.workloads.tts import batches
from autotune.workloads.tts.config import DataConfig, TrainerConfig
from autotune.workloads.tts.ljspeech import Clip, read_clips
from autotune.workloads.tts.model import Speech, l1_loss


def load_all(clips: list[Clip], data: DataConfig) -> list[dict[str, np.ndarray]]:
    """Every clip as the loader gives it."""
    return list(tf.data.Dataset.range(len(clips)).map(batches.loader(clips, data)).as_numpy_iterator())


def test_both_loaders_give_the_same_spectrograms(speech: Path) -> None:
    """On real speech they differ by float32 rounding only."""
    clips = read_clips(speech)[:6]
    data = DataConfig(dataset_path=str(speech))
    in_numpy = load_all(clips, data)
    native = load_all(clips, dataclasses.replace(data, use_tf_native_loading=True))
    differences = [np.abs(one["mel"] - other["mel"]) for one, other in zip(in_numpy, native, strict=True)]
    assert max(difference.max() for difference in differences) <= 5e-3
    assert np.concatenate(differences).mean() <= 1e-5
    for one, other, clip in zip(in_numpy, native, clips, strict=True):
        np.testing.assert_array_equal(one["text"], other["text"])
        assert one["mel_length"] == len(one["mel"]) == batches.frame_count(clip.samples)
        assert other["mel_length"] == one["mel_length"]


@pytest.mark.parametrize("samples", [1, 2, 255, 512, 513, 1024])
def test_the_shortest_clips_have_spectrograms(samples: int) -> None:
    """A clip of less than a frame is no crash, in either way of computing."""
    pcm = np.arange(samples, dtype=np.int16)
    one, other = batches.log_mel(pcm), batches.log_mel_tf(tf.constant(pcm)).numpy()
    assert one.shape == other.shape == (batches.frame_count(samples), batches.N_MELS)
    np.testing.assert_allclose(one, other, atol=5e-3)


def config(folder: Path, **data: object) -> TrainerConfig:
    """A config over these clips."""
    return TrainerConfig(data=DataConfig(dataset_path=str(folder), **data))


def stream(settings: TrainerConfig, clips: list[Clip]) -> tf.data.Dataset:
    """Its batches."""
    return pipeline.build(
        len(clips),
        batches.loader(clips, settings.data),
        settings.pipeline_options(seed=0),
        maxima=batches.maxima(settings.data),
        length_of="mel",
    )


@pytest.mark.parametrize("limits", [{}, {"max_text_length": 20, "max_mel_frames": 100}], ids=["whole", "cropped"])
def test_padding_does_not_change_what_is_trained(limits: dict[str, int], corpus: Path) -> None:
    """Padded or not, batches hold the same clips cut by the same rule, and the model's loss on them is the same."""
    clips = read_clips(corpus)
    free, fixed = config(corpus, **limits), config(corpus, pad_to_fixed_length=True, **limits)
    model = Speech(seed=0, compute_dtype="float32")
    for one, other in zip(stream(free, clips).take(2), stream(fixed, clips).take(2), strict=True):
        assert other["mel"].shape == (8, fixed.data.max_mel_frames, batches.N_MELS)
        assert other["text"].shape == (8, fixed.data.max_text_length)
        losses = []
        for batch in (one, other):
            predicted = model(batch["text"], batch["text_length"], tf.shape(batch["mel"])[1], batch["mel_length"])
            losses.append(float(l1_loss(predicted, batch["mel"], batch["mel_length"])))
        np.testing.assert_array_equal(one["mel_length"], other["mel_length"])
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_disk_cache_depends_on_data_and_features(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another limit, loader or file is another cache; the same is the same."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    folders = set()

    def folders_after(**data: object) -> int:
        clips = read_clips(corpus)
        store = batches.store(clips, config(corpus, cache=Cache.DISK, **data).data, tmp_path / "config.yaml")
        folders.add(store.path(0).parent)
        return len(folders)

    assert folders_after() == 1
    assert folders_after(batch_size=3) == 1
    assert folders_after(max_mel_frames=10) == 2
    assert folders_after(use_tf_native_loading=True) == 3
    victim = next((corpus / "wavs").iterdir())
    victim.write_bytes(victim.read_bytes()[:-2] + b"xy")
    assert folders_after() == 4
