"""Synthetic speech-like corpus in the LJSpeech layout, written in seconds and deterministic.

    python -m autotune.workloads.tts.corpus --out data/quickstart

Each letter is three tones at a vowel's or voiced consonant's formants, mixed with noise; spaces and stops are silent.
"""

import argparse
import shutil
import sys
import tempfile
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.workloads.tts.ljspeech import SAMPLE_RATE, InputError

CLIPS = 256
_WORDS = """
    the of and to in that was his it with as had for by on not at which from her but they were this have an one are
    their been would said there what when who more no out so up into them some could time only other then about such
    man little now like great after before made over never must where much through long down should people these
    being every under old house thought against life without world nothing always morning letter printing history
""".split()  # noqa: SIM905  # a paragraph reads better than eighty quoted words


def _sounds() -> dict[str, tuple[tuple[float, ...], float, float, float]]:
    """Return the sound of each letter: formants in Hz, voiced share (the rest is noise), loudness, seconds."""
    vowels = {"a": (730, 1090, 2440), "e": (530, 1840, 2480), "i": (270, 2290, 3010), "o": (570, 840, 2410)}
    vowels |= {"u": (300, 870, 2240), "y": (390, 1990, 2550)}  # Peterson and Barney 1952
    silence = (500, 1500, 2500)
    return {
        **{letter: (formants, 1.0, 1.0, 0.095) for letter, formants in vowels.items()},
        **{c: ((250 + 30 * n, 1000 + 140 * n, 2300 + 60 * n), 0.85, 0.5, 0.065) for n, c in enumerate("lmnrwjbdgvz")},
        **{c: ((900 + 350 * n, 2500 + 400 * n, 4500 + 350 * n), 0.0, 0.35, 0.07) for n, c in enumerate("ptkqcxfhs")},
        **{c: (silence, 0.0, 0.003, seconds) for c, seconds in ((" ", 0.04), (",", 0.16), (".", 0.25))},
    }


def write_corpus(folder: Path, *, clips: int = CLIPS, seed: int = 0) -> bool:
    """Write clips of about 1 to 10 seconds, all or none; return False if they exist.

    Raises:
        InputError: The folder has other content.
    """
    texts = [_text(np.random.default_rng([seed, number, 0])) for number in range(clips)]
    names = [f"QS{number // 1000 + 1:03d}-{number % 1000 + 1:04d}" for number in range(clips)]
    metadata = "".join(f"{name}|{text}|{text}\n" for name, text in zip(names, texts, strict=True))
    if folder.exists():
        listing = folder / "metadata.csv"
        if listing.is_file() and listing.read_text(encoding="utf-8") == metadata:
            return False
        raise InputError("already exists with other content", where=str(folder), remedy="name another folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (temporary / "wavs").mkdir()
        for number, (name, text) in enumerate(zip(names, texts, strict=True)):
            sound = _speak(text, np.random.default_rng([seed, number, 1]))
            with wave.open(str(temporary / "wavs" / f"{name}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(SAMPLE_RATE)
                file.writeframes(sound.astype("<i2").tobytes())
        (temporary / "metadata.csv").write_text(metadata, encoding="utf-8")
        temporary.chmod(0o755)  # mkdtemp creates it with 0700
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _text(random: np.random.Generator) -> str:
    words = list(random.choice(_WORDS, size=int(random.integers(3, 27))))
    commas = (word + "," if random.random() < 0.1 else word for word in words[:-1])
    return " ".join([*commas, words[-1]]).capitalize() + "."


def _speak(text: str, random: np.random.Generator) -> npt.NDArray[np.int16]:
    table = _sounds()
    formants, voiced, loudness, seconds = zip(*(table[letter] for letter in text.lower()), strict=True)
    pace = random.normal(1.0, 0.05)
    samples = SAMPLE_RATE * pace * np.array(seconds) * random.normal(1.0, 0.12, len(seconds))
    lengths = np.maximum(100, samples).astype(int)

    def track(values: Sequence[float]) -> npt.NDArray[np.float64]:
        """Return one value per sample, smoothed over 10 ms between letters."""
        glide = np.hanning(SAMPLE_RATE // 100)
        return np.convolve(np.repeat(np.asarray(values, float), lengths), glide / glide.sum(), mode="same")

    tones = [np.sin(2.0 * np.pi * np.cumsum(track(hz)) / SAMPLE_RATE) for hz in zip(*formants, strict=True)]
    voice, noise = sum(tones), random.normal(0.0, 0.5, lengths.sum())
    share = track(voiced)
    sound = track(loudness) * (share * voice + (1.0 - share) * noise) + random.normal(0.0, 2e-4, lengths.sum())
    return np.asarray(np.round(sound / np.abs(sound).max() * 0.7 * 32767), np.int16)


def main() -> int:
    """Write the corpus; return the exit status."""
    program = "python -m autotune.workloads.tts.corpus"
    parser = argparse.ArgumentParser(prog=program, description="Write a synthetic corpus for the trainer.")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument("--clips", type=int, default=CLIPS, help=f"number of clips ({CLIPS})")
    parser.add_argument("--seed", type=int, default=0, help="seed of texts and sound (0)")
    arguments = parser.parse_args()
    if arguments.clips < 1 or arguments.seed < 0:
        parser.error("--clips must be at least 1, --seed at least 0")
    try:
        written = write_corpus(arguments.out, clips=arguments.clips, seed=arguments.seed)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.out}: {'wrote' if written else 'already has'} {arguments.clips} clips")
    return 0


if __name__ == "__main__":
    sys.exit(main())
