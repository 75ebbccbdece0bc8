"""Synthetic corpus for the trainer: speech-like sound laid out like LJSpeech, written in seconds.

    python -m autotune.workloads.tts.corpus --out data/quickstart

A text of common words is spoken letter by letter: a glottal buzz of wandering pitch through three
formants for vowels and voiced consonants, shaped noise for the others, silence for spaces and stops (the
source-filter model, Fant 1960). Nobody would call it speech, but length goes with text, and what is heard
with what is written, so a model can learn it. The same arguments give the same bytes.
"""

import argparse
import shutil
import sys
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.workloads.tts.ljspeech import SAMPLE_RATE, InputError

CLIPS = 64
_FRAME = 512
_HOP = _FRAME // 2
_WORDS = """
    the of and to in that was his it with as had for by on not at which from her but they were this have an one are
    their been would said there what when who more no out so up into them some could time only other then about such
    man little now like great after before made over never must where much through long down should people these
    being every under old house thought against life without world nothing always morning letter printing history
""".split()  # noqa: SIM905  # a paragraph reads better than eighty quoted words


@dataclass(frozen=True)
class _Sound:
    """Sound of a letter: formants in Hz, share of voice (the rest is noise), loudness, length."""

    formants: tuple[float, float, float]
    voiced: float
    loudness: float
    seconds: float


def _sounds() -> dict[str, _Sound]:
    vowels = {"a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010), "o": (570, 840, 2410)}
    vowels |= {"u": (300, 870, 2240), "y": (390, 1990, 2550)}  # Peterson and Barney 1952
    sounds = {letter: _Sound(formants, 1.0, 1.0, 0.095) for letter, formants in vowels.items()}
    for place, letter in enumerate("lmnrwjbdgvz"):
        sounds[letter] = _Sound((250.0 + 30 * place, 1000.0 + 140 * place, 2300.0 + 60 * place), 0.85, 0.5, 0.065)
    for place, letter in enumerate("ptkqcxfhs"):
        sounds[letter] = _Sound((900.0 + 350 * place, 2500.0 + 400 * place, 4500.0 + 350 * place), 0.0, 0.35, 0.07)
    silence = (500.0, 1500.0, 2500.0)
    return (
        sounds
        | {" ": _Sound(silence, 0.0, 0.003, 0.04), ",": _Sound(silence, 0.0, 0.003, 0.16)}
        | {".": _Sound(silence, 0.0, 0.003, 0.25)}
    )


def write_corpus(folder: Path, *, clips: int = CLIPS, seed: int = 0) -> bool:
    """Write the corpus, all of it or nothing.

    Args:
        folder: Folder of the corpus; does not exist yet, or holds this very corpus.
        clips: Number of clips, of about 1 to 10 seconds.

    Returns:
        False if it existed already.

    Raises:
        InputError: The folder holds something else.
    """
    texts = [_text(np.random.default_rng([seed, number, 0])) for number in range(clips)]
    names = [f"QS{number // 1000 + 1:03d}-{number % 1000 + 1:04d}" for number in range(clips)]
    metadata = "".join(f"{name}|{text}|{text}\n" for name, text in zip(names, texts, strict=True))
    if folder.exists():
        listing = folder / "metadata.csv"
        if listing.is_file() and listing.read_text(encoding="utf-8") == metadata:
            return False
        raise InputError(
            "is there already and holds something else", where=str(folder), remedy="remove it, or name another folder"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (aside / "wavs").mkdir()
        for number, (name, text) in enumerate(zip(names, texts, strict=True)):
            sound = _speak(text, np.random.default_rng([seed, number, 1]))
            with wave.open(str(aside / "wavs" / f"{name}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(SAMPLE_RATE)
                file.writeframes(sound.astype("<i2").tobytes())
        (aside / "metadata.csv").write_text(metadata, encoding="utf-8")
        aside.chmod(0o755)  # mkdtemp makes it private
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _text(random: np.random.Generator) -> str:
    words = list(random.choice(_WORDS, size=int(random.integers(3, 27))))
    commas = (word + "," if random.random() < 0.1 else word for word in words[:-1])
    return " ".join([*commas, words[-1]]).capitalize() + "."


def _speak(text: str, random: np.random.Generator) -> npt.NDArray[np.int16]:
    table = _sounds()
    spoken = [table[letter] for letter in text.lower() if letter in table]
    pace = random.normal(1.0, 0.05)
    frames_each = [
        max(1, round(sound.seconds * pace * random.normal(1.0, 0.12) * SAMPLE_RATE / _HOP)) for sound in spoken
    ]

    def track(values: list[float]) -> npt.NDArray[np.float64]:
        """Return one value per frame, gliding from one letter to the next."""
        steps = np.repeat(np.asarray(values, np.float64), frames_each)
        return np.convolve(np.pad(steps, 1, mode="edge"), [0.25, 0.5, 0.25], mode="valid")

    loudness = track([sound.loudness for sound in spoken])
    voiced = track([sound.voiced for sound in spoken])
    formants = np.stack([track([sound.formants[n] for sound in spoken]) for n in range(3)], axis=-1)
    shape = _formant_filter(formants)

    frames = len(loudness)
    samples = (frames + 1) * _HOP
    at = np.arange(frames) * _HOP / SAMPLE_RATE
    pitch_hz = (
        190.0 + 25.0 * np.sin(2.0 * np.pi * at / random.uniform(1.5, 3.0)) - 4.0 * at + random.normal(0.0, 2.0, frames)
    )
    phase = 2.0 * np.pi * np.cumsum(np.interp(np.arange(samples), np.arange(frames) * _HOP, pitch_hz)) / SAMPLE_RATE
    buzz = np.where(phase % (2.0 * np.pi) < 2.0 * np.pi * pitch_hz.mean() / SAMPLE_RATE, 6.0, 0.0)  # a pulse per period
    noise = random.normal(0.0, 0.5, samples)

    window = np.hanning(_FRAME + 1)[:-1]
    cut = np.lib.stride_tricks.sliding_window_view
    source = cut(buzz, _FRAME)[::_HOP] * voiced[:, None] + cut(noise, _FRAME)[::_HOP] * (1.0 - voiced[:, None])
    filtered = np.fft.irfft(np.fft.rfft(source * window) * shape) * loudness[:, None]
    sound = np.zeros(samples)
    for number, frame in enumerate(filtered):  # overlap-add
        sound[number * _HOP : number * _HOP + _FRAME] += frame
    sound += random.normal(0.0, 2e-4, samples)  # the room
    return np.asarray(np.round(sound / np.abs(sound).max() * 0.7 * 32767), np.int16)


def _formant_filter(formants: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the gain by frame and frequency bin: a resonance at each formant, and 6 dB less per octave."""
    hz = np.linspace(0.0, SAMPLE_RATE / 2, _FRAME // 2 + 1)
    width = 60.0 + 0.06 * formants
    resonances = 1.0 / (1.0 + ((hz - formants[:, :, None]) / width[:, :, None]) ** 2)
    return np.asarray(resonances.sum(axis=1) / (1.0 + hz / 1000.0) + 0.003)


def main() -> int:
    """Write the corpus; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m autotune.workloads.tts.corpus", description="Writes a corpus to try the trainer on."
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--clips", type=int, default=CLIPS, help=f"how many clips ({CLIPS})")
    parser.add_argument("--seed", type=int, default=0, help="of texts and sound (0)")
    arguments = parser.parse_args()
    if arguments.clips < 1 or arguments.seed < 0:
        parser.error("--clips must be at least 1, --seed at least 0")
    try:
        written = write_corpus(arguments.out, clips=arguments.clips, seed=arguments.seed)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {'wrote' if written else 'already holds'} {arguments.clips} clips")
    return 0


if __name__ == "__main__":
    sys.exit(main())
