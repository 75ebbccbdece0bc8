"""Reading a corpus: everything that is wrong with it is named before anything starts."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.workloads.tts.__main__ import prepare_texts
from autotune.workloads.tts.config import DataConfig, TrainerConfig
from autotune.workloads.tts.ljspeech import InputError, crop, encode, read_clips
from tests.workloads.conftest import wav


def test_real_speech_is_read(speech: Path) -> None:
    """All clips, with the number of samples that their files hold."""
    clips = read_clips(speech)
    assert len(clips) == 32
    assert all(clip.size_bytes == 44 + 2 * clip.samples for clip in clips)
    assert clips[1].text == encode("in being comparatively modern.")


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (wav(kind=3, bits=32), "is not a PCM WAV file: unknown format: 3"),
        (wav(channels=2), "is not mono, 16 bits, 22050 Hz: 2 channels"),
        (wav(rate=44100), "is not mono, 16 bits, 22050 Hz: 1 channels, 16 bits, 44100 Hz"),
        (wav()[:-1], "is truncated"),
        (wav(data=b""), "has no samples"),
        (b"", "is not a PCM WAV file"),
    ],
)
def test_a_file_of_another_form_is_named(file: bytes, said: str, corpus: Path) -> None:
    """The file, what it is, and how to convert it."""
    victim = sorted((corpus / "wavs").iterdir())[4]
    victim.write_bytes(file)
    with pytest.raises(InputError, match="convert it") as caught:
        read_clips(corpus)
    assert f"{victim}: {said}" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("QS001-0004", "expected id|text|normalized text, got 1 field(s)"),
        ("QS001-0004|a|b|c", "got 4 field(s)"),
        ("|a|b", "expected id|text"),
        ("QS001-0004|a|123", "no usable text"),
        ("missing|a|b", "missing.wav"),
    ],
)
def test_a_broken_line_is_named(line: str, said: str, corpus: Path) -> None:
    """File and line, and what is wrong there."""
    metadata = corpus / "metadata.csv"
    lines = metadata.read_text().splitlines()
    lines[3] = line
    metadata.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        read_clips(corpus)
    assert f"{metadata}:4" in str(caught.value)
    assert said in str(caught.value)


def test_a_missing_corpus_says_how_to_make_one(tmp_path: Path) -> None:
    """The remedy is a command."""
    with pytest.raises(InputError, match=r"autotune\.workloads\.tts\.corpus --out"):
        read_clips(tmp_path / "nowhere")


sizes = st.integers(1, 3000)


@given(text=sizes, frames=sizes, max_text=sizes, max_frames=sizes)
def test_cropping_keeps_text_and_sound_together(text: int, frames: int, max_text: int, max_frames: int) -> None:
    """Both limits hold, one of them exactly, and both lose the same share to within one symbol or frame."""
    kept_text, kept_frames = crop(text, frames, max_text=max_text, max_frames=max_frames)
    assert 1 <= kept_text <= max_text
    assert 1 <= kept_frames <= max_frames
    if text <= max_text and frames <= max_frames:
        assert (kept_text, kept_frames) == (text, frames)
    else:
        assert kept_text == max_text or kept_frames == max_frames
        assert abs(kept_text * frames - kept_frames * text) <= max(text, frames)


def test_workers_and_cache_change_no_clip(
    written_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clips are those of the plain reader, at the first start and at the next."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    data = DataConfig(dataset_path=str(written_corpus), text_workers=2, text_cache=True)
    for _ in range(2):
        prepared = partial(prepare_texts, TrainerConfig(data=data), tmp_path / "config.yaml")
        assert read_clips(written_corpus, prepared) == read_clips(written_corpus)
    assert (tmp_path / "cache").exists()
