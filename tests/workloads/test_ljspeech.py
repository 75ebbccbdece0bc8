"""Reading a corpus: everything that is wrong with it is named before anything starts."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.workloads.tts.ljspeech import InputError, crop, encode, find_samples, read_clips
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
        (wav(kind=3, bits=32), "is not 16-bit PCM: format 3, 32 bits"),
        (wav(bits=24), "is not 16-bit PCM: format 1, 24 bits"),
        (wav(channels=2), "is not mono: 2 channels"),
        (wav(rate=44100), "is not sampled at 22050 Hz: 44100 Hz"),
        (wav()[:-1], "is cut short"),
        (wav(data=b""), "holds no samples"),
        (b"ID3 this is an mp3", "is not a WAV file"),
        (b"", "is not a WAV file"),
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
        ("QS001-0004|a|123", "no speakable text"),
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


def test_other_chunks_and_the_extensible_header_are_understood() -> None:
    """Samples are found behind a list of odd length, and under the newer header of the same format."""
    plain = wav(data=b"\1\2\3\4")
    at = plain.index(b"fmt ")
    extra = plain[:at] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + plain[at:]
    offset, samples = find_samples(extra, len(extra))
    assert (extra[offset : offset + 2 * samples], samples) == (b"\1\2\3\4", 2)
    described = struct.pack("<HHIIHHHHIH", 0xFFFE, 1, 22050, 44100, 2, 16, 22, 16, 4, 1) + bytes(14)
    newer = plain[:at] + b"fmt " + struct.pack("<I", 40) + described + plain[at + 24 :]
    assert find_samples(newer, len(newer))[1] == 2


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
