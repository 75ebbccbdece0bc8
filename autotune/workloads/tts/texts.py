"""Texts of the clips: from what the listing says to symbol numbers, as the config selects."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from autotune.tf import text
from autotune.tf.options import cache_home
from autotune.tf.text import TextWorkerError, TokenCache
from autotune.workloads.tts.config import TrainerConfig
from autotune.workloads.tts.ljspeech import InputError, encode


def prepare_texts(config: TrainerConfig, config_file: Path, lines: Sequence[str]) -> list[text.Tokens]:
    """Return the symbol numbers of each line.

    Raises:
        InputError: A worker process failed.
    """
    prepare_line = encode_spoken if config.data.normalize_text else encode
    cache = TokenCache(cache_home(near=config_file), prepare_line) if config.data.text_cache else None
    try:
        return text.prepare(lines, prepare_line, config.text_options(), cache=cache)
    except TextWorkerError as error:
        raise InputError(
            str(error),
            where="data.text_workers",
            remedy="fewer need less memory; 0 prepares texts in the trainer itself",
        ) from error


# English numbers and abbreviations in words, as in the third column of LJSpeech: 1455 → fourteen fifty-five.


_ONES = (  # noqa: SIM905  # reads better
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()  # noqa: SIM905  # reads better
_SCALES = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}


_ORDINALS |= {"twelve": "twelfth"}


_ABBREVIATIONS = {
    "mr.": "mister", "mrs.": "misess", "dr.": "doctor", "drs.": "doctors", "st.": "saint", "co.": "company",
    "jr.": "junior", "maj.": "major", "gen.": "general", "rev.": "reverend", "lt.": "lieutenant", "hon.": "honorable",
    "sgt.": "sergeant", "capt.": "captain", "esq.": "esquire", "ltd.": "limited", "col.": "colonel", "ft.": "fort",
}  # fmt: skip
_CURRENCIES = {"$": ("dollar", "dollars", "cent", "cents"), "£": ("pound", "pounds", "penny", "pence")}


_CURRENCIES |= {"€": ("euro", "euros", "cent", "cents")}


_SIGNS = {"&": "and", "%": "percent", "+": "plus", "=": "equals", "@": "at"}
_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "..."})  # noqa: RUF001
_LARGEST = 10**15


# What is around a word; then: a currency, a number with commas or decimals, and what follows it.
_AROUND = re.compile(r"^([\"'(\[-]*)(.*?)([\"')\],;:.!?-]*)$", re.DOTALL)
_NUMBER = re.compile(r"([$£€]?)(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d+))?(st|nd|rd|th|s|%)?")


def normalize(text: str) -> str:
    """Return a text as it is spoken; one that is not English keeps its numbers, and loses accents only.

    Roman numerals, fractions, times and dates in digits are not understood.
    """
    plain = text if text.isascii() else _without_accents(text.translate(_QUOTES))
    return " ".join(map(spoken, plain.split())) if language_of(plain) == "en" else plain


def _without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text)
    return "".join(character for character in parts if not unicodedata.combining(character))


def encode_spoken(text: str) -> tuple[int, ...]:
    """Return the symbol numbers of a text as it is spoken."""
    return encode(normalize(text))


@lru_cache(maxsize=65536)
def spoken(word: str) -> str:
    """Return a word, punctuation around it included, as it is spoken in English."""
    if word.isalpha():
        return word
    if (full := _ABBREVIATIONS.get(word.lower())) is not None:
        return full
    before, core, after = _AROUND.match(word).groups()  # type: ignore[union-attr]  # it matches everything
    if (full := _ABBREVIATIONS.get(f"{core.lower()}.")) is not None and after.startswith("."):
        return f"{before}{full}{after[1:]}"
    core = _NUMBER.sub(_spoken_number, core)
    return before + "".join(f" {_SIGNS[sign]} " if sign in _SIGNS else sign for sign in core).strip() + after


def cardinal(number: int) -> str:
    """Return a number from 0 below 10¹⁵ in words: 1205 → one thousand two hundred five."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    scale, name = next((scale, name) for scale, name in _SCALES if number >= scale)
    count, rest = divmod(number, scale)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """Return 21 as twenty-first."""
    words = cardinal(number)
    cut = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[cut:]
    if last in _ORDINALS:
        return words[:cut] + _ORDINALS[last]
    return words[:cut] + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year(number: int) -> str:
    """Return a year from 1100 to 1999 as it is read: fourteen fifty-five, nineteen hundred, eighteen oh six."""
    century, rest = divmod(number, 100)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def _spoken_number(found: re.Match[str]) -> str:
    currency, digits, decimals, suffix = found.groups()
    number = int(digits.replace(",", ""))
    if number >= _LARGEST:
        return " ".join(_ONES[int(digit)] for digit in digits if digit.isdigit())
    if currency:
        return _money(number, decimals, _CURRENCIES[currency]) + (suffix or "")
    if decimals is not None:
        words = f"{cardinal(number)} point {' '.join(_ONES[int(digit)] for digit in decimals)}"
    elif suffix in ("st", "nd", "rd", "th"):
        return ordinal(number)
    elif len(digits) == 4 and 1100 <= number < 2000:
        words = year(number)
    else:
        words = cardinal(number)
    if suffix == "s":  # the 1880s, the 90s
        return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"
    return words + (" percent" if suffix == "%" else suffix or "")


def _money(number: int, decimals: str | None, names: tuple[str, str, str, str]) -> str:
    one, many, one_hundredth, hundredths = names
    whole = f"{cardinal(number)} {one if number == 1 else many}"
    part = int((decimals or "0").ljust(2, "0")[:2])
    return whole + (f", {cardinal(part)} {one_hundredth if part == 1 else hundredths}" if part else "")


# Language of a text, from its function words: enough to keep English rules off texts in other languages.


_FUNCTION_WORDS = {
    "en": "the of and to in that was his it with as had for by on not at which from her but they were this have are be",
    "de": "der die das und ist nicht ein eine zu den mit von dem auf für sich des im auch es an werden aus er sie ich",
    "fr": "le la les et est une un des du que qui dans pour pas sur au avec ce il elle sont par plus ne se en vous je",
    "es": "el la los las y es una un de que en por con para no se su al lo como más del pero sus fue ha era son",
    "it": "il la le gli e è un una di che in per con non si del della al dei sono come ma anche più nel questo ha",
}
_LANGUAGES = {
    word: tuple(language for language, words in _FUNCTION_WORDS.items() if word in words.split())
    for word in " ".join(_FUNCTION_WORDS.values()).split()
}
_WORDS = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str:
    """Return the language whose function words the text has most of; English where fewer than two say otherwise.

    Returns:
        ``en``, ``de``, ``fr``, ``es`` or ``it``.
    """
    counts = dict.fromkeys(_FUNCTION_WORDS, 0)
    for word in _WORDS.findall(text.lower()):
        for language in _LANGUAGES.get(word, ()):
            counts[language] += 1
    most = max(counts, key=counts.__getitem__)  # English of equals: it is the first
    return most if counts[most] >= 2 else "en"
