"""Texts as the trainer prepares them: English in words, the same whoever prepares them."""

from pathlib import Path

import pytest

from autotune.workloads.tts import texts
from autotune.workloads.tts.config import DataConfig, TrainerConfig
from autotune.workloads.tts.ljspeech import encode, read_clips
from autotune.workloads.tts.texts import normalize


def test_real_texts_are_spoken_as_their_readers_did(speech: Path) -> None:
    """What is made of the second column of LJSpeech is what its authors wrote in the third."""
    spoken = texts.prepare_texts(config(normalize_text=True), speech / "config.yaml", column(speech, 1))
    assert [tuple(tokens) for tokens in spoken] == [encode(line) for line in column(speech, 2)]
    assert column(speech, 1) != column(speech, 2)


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("about 1455,", "about fourteen fifty-five,"),
        ("in 1806; 1900", "in eighteen oh six; nineteen hundred"),
        ("the 1880s", "the eighteen eighties"),
        ("2,300,000 and 1205", "two million three hundred thousand and twelve oh five"),
        ("$12.50 (£1)", "twelve dollars, fifty cents (one pound)"),
        ("3.14 is 50%", "three point one four is fifty percent"),
        ("the 21st, 12th", "the twenty-first, twelfth"),
        ("Mr. Smith & Co.", "mister Smith and company"),
        ('"forty-two line Bible"', '"forty-two line Bible"'),
        ("Paul Café’s", "Paul Cafe's"),  # noqa: RUF001
        ("99999999999999999", " ".join(["nine"] * 17)),
        ("", ""),
    ],
)
def test_numbers_and_abbreviations_are_spoken(written: str, spoken: str) -> None:
    """Years, money, ordinals and abbreviations, with the punctuation that is around them."""
    assert normalize(written) == spoken


def test_other_languages_keep_their_numbers() -> None:
    """English words do not get into a German line."""
    assert normalize("Das Maß ist 12 und nicht 5") == "Das Maß ist 12 und nicht 5"


@pytest.mark.parametrize("keys", [{}, {"text_workers": 2, "text_cache": True}])
@pytest.mark.parametrize("normalized", [False, True])
def test_workers_and_cache_change_no_clip(
    normalized: bool, keys: dict[str, object], written_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clips are those of the plain reader, at the first start and at the next."""
    monkeypatch.setenv("AUTOTUNE_CACHE_DIR", str(tmp_path / "cache"))
    chosen = config(normalize_text=normalized, **keys)
    plain = read_clips(written_corpus)
    for _ in range(2):
        clips = read_clips(
            written_corpus,
            lambda lines: texts.prepare_texts(chosen, tmp_path / "config.yaml", lines),
            written=normalized,
        )
        assert clips == plain  # made-up texts have no numbers
    assert (tmp_path / "cache").exists() is chosen.data.text_cache


def config(**data: object) -> TrainerConfig:
    """A config of the trainer."""
    return TrainerConfig(data=DataConfig(dataset_path="x", **data))


def column(folder: Path, number: int) -> list[str]:
    """One column of the listing."""
    return [line.split("|")[number] for line in (folder / "metadata.csv").read_text().splitlines()]
