"""Reader of the LJSpeech layout: ``metadata.csv`` with ``id|text|normalized text``, and ``wavs/<id>.wav``."""

import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

SAMPLE_RATE = 22050
SYMBOLS = " !\"'(),-.:;?abcdefghijklmnopqrstuvwxyz"
VOCABULARY = len(SYMBOLS) + 1  # 0 is padding
_NUMBERS = {character: number for number, character in enumerate(SYMBOLS, start=1)}
TokensOf = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""Function from texts to their symbol numbers."""


@dataclass(frozen=True, kw_only=True)
class Clip:
    """Clip with its text, as symbol numbers from 1; characters without a symbol are omitted."""

    wav: Path
    text: tuple[int, ...]
    offset_bytes: int
    samples: int
    size_bytes: int
    mtime_ns: int


def read_clips(folder: Path, tokens_of: TokensOf | None = None) -> list[Clip]:
    """Read the listing and the header of every file; raise InputError if one is missing or malformed.

    Args:
        tokens_of: Prepares the texts; None encodes them unchanged.
    """
    metadata = folder / "metadata.csv"
    try:
        lines = metadata.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {error}",
            where=str(metadata),
            remedy="set data.dataset_path to a folder in the LJSpeech layout, or create one: "
            f"python -m autotune.workloads.tts.corpus --out {folder}",
        ) from error
    numbered = [(line, f"{metadata}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    listed = [(_split(line, where), where) for line, where in numbered]
    if not listed:
        raise InputError("lists no clips", where=str(metadata), remedy="it needs lines of id|text|normalized text")
    texts = [parts[-1] for parts, _ in listed]
    tokens = tokens_of(texts) if tokens_of else map(encode, texts)
    return [_read_clip(folder, parts, tuple(text), where) for (parts, where), text in zip(listed, tokens, strict=True)]


def encode(text: str) -> tuple[int, ...]:
    """Return the symbol numbers of a text in lower case, without unknown characters."""
    return tuple(_NUMBERS[character] for character in text.lower() if character in _NUMBERS)


def crop(text: int, frames: int, *, max_text: int, max_frames: int) -> tuple[int, int]:
    """Return the symbols and frames of a clip to keep from the start, the same share of both, at least 1 each."""
    if text <= max_text and frames <= max_frames:
        return text, frames
    if max_text * frames < max_frames * text:  # the text exceeds its limit by more
        return max_text, max(1, frames * max_text // text)
    return max(1, text * max_frames // frames), max_frames


def _split(line: str, where: str) -> list[str]:
    parts = line.split("|")
    if len(parts) not in (2, 3) or not parts[0]:
        message = f"expected id|text|normalized text, got {len(parts)} field(s): {line[:60]!r}"
        raise InputError(message, where=where, remedy="fix the line")
    return parts


def _read_clip(folder: Path, parts: list[str], text: tuple[int, ...], where: str) -> Clip:
    if not text:
        raise InputError(f"no usable text in {'|'.join(parts)[:60]!r}", where=where, remedy="remove the line")
    wav = folder / "wavs" / f"{parts[0]}.wav"
    try:
        stat = wav.stat()
        with wav.open("rb") as file:
            offset, samples = find_samples(file, stat.st_size)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise InputError(message, where=f"{wav} ({where})", remedy="restore the file") from error
    except ValueError as error:
        remedy = f"convert it: ffmpeg -i IN -ac 1 -ar {SAMPLE_RATE} -c:a pcm_s16le OUT"
        raise InputError(str(error), where=str(wav), remedy=remedy) from error
    return Clip(
        wav=wav, text=text, offset_bytes=offset, samples=samples, size_bytes=stat.st_size, mtime_ns=stat.st_mtime_ns
    )


def find_samples(file: BinaryIO, size: int) -> tuple[int, int]:
    """Return the byte offset of the first sample in a WAV file of `size` bytes, and the number of samples.

    Raises:
        ValueError: The file is truncated, or not mono 16-bit PCM at the right rate.
    """
    try:
        with wave.open(file) as sound:
            channels, width, rate, samples, *_ = sound.getparams()
            offset = file.tell()
    except (wave.Error, EOFError) as error:
        raise ValueError(f"is not a PCM WAV file: {error or 'it ends too early'}") from error
    if (channels, width, rate) != (1, 2, SAMPLE_RATE):
        raise ValueError(f"is not mono, 16 bits, {SAMPLE_RATE} Hz: {channels} channels, {8 * width} bits, {rate} Hz")
    if samples < 1:
        raise ValueError("has no samples")
    if offset + 2 * samples > size:
        raise ValueError(f"is truncated: {offset + 2 * samples} bytes expected, {size} found")
    return offset, samples


class InputError(Exception):
    """Unusable config or data."""

    def __init__(self, message: str, *, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {message}\n{remedy}")
