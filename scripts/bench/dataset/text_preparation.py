"""Text preparation of as many lines as LJSpeech has: here, in worker processes, from the cache; the same tokens.

The ways take turns, so that a busy minute of the machine falls on all of them. What words the normalizer remembers is
forgotten before each, as at the start of a training.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.clock import SystemClock
from autotune.errors import ConfigError
from autotune.tf.options import TextOptions
from autotune.tf.text import PrepareLine, TokenCache, Tokens, prepare
from autotune.workloads.tts.texts import encode_spoken, spoken
from scripts.bench.dataset.spread import spread
from scripts.bench.markdown import markdown_table

LINES = 13_100
_TIMES_DEARER = 20
_MADE_UP = (
    "In 1465 Sweynheim and Pannartz began printing in the monastery of Subiaco near Rome,",
    "the first Bible actually dated, which also was printed at Maintz by Peter Schoeffer in the year 1462,",
    "and 1,200 copies were sold at $2.50 by Mr. Smith & Co. before the 21st of May",
    "has never been surpassed.",
)


@dataclass(frozen=True, kw_only=True)
class TextBenchmark:
    """Settings of the benchmark.

    Attributes:
        listing: A ``metadata.csv`` like LJSpeech's, whose second column is varied; None takes made-up lines.
        lines: Number of lines, all different.
        workers: Worker processes.
        turns: Turns, of each of which every way is a part.
    """

    listing: Path | None
    lines: int
    workers: int
    turns: int


def benchmark_texts(benchmark: TextBenchmark) -> str:
    """Return a table of the seconds, for the trainer's normalizer and for dearer ones.

    Raises:
        ConfigError: The listing cannot be read.
    """
    lines = _lines(benchmark)
    rows = []
    for name, function in _NORMALIZERS.items():
        seconds, same = _measure(lines, function, benchmark)
        rows.append((name, *(f"{spread(values)} s" for values in seconds.values()), "yes" if same else "NO"))
    heads = ("", "here", f"{benchmark.workers} processes", "cache, first", "cache, then", "same tokens")
    return f"{len(lines)} lines, median [least, most] of {benchmark.turns} turns\n\n{markdown_table(heads, rows)}\n"


def encode_dearly(line: str) -> Sequence[int]:
    """Return the symbol numbers of a text as it is spoken, twenty times over: phonemizers take as long."""
    for _ in range(_TIMES_DEARER - 1):
        encode_spoken(line)
    return encode_spoken(line)


def encode_forgetfully(line: str) -> Sequence[int]:
    """Return the symbol numbers of a text as it is spoken; each word is worked out anew for each line."""
    spoken.cache_clear()
    return encode_spoken(line)


_NORMALIZERS: dict[str, PrepareLine] = {
    "the trainer's normalizer": encode_spoken,
    "without its memory of words": encode_forgetfully,
    "the same twenty times over": encode_dearly,
}


def _measure(
    lines: Sequence[str], function: PrepareLine, benchmark: TextBenchmark
) -> tuple[dict[str, list[float]], bool]:
    clock = SystemClock()
    seconds: dict[str, list[float]] = {}
    expected: list[Tokens] | None = None
    same = True
    for _ in range(benchmark.turns):
        with tempfile.TemporaryDirectory(prefix="autotune-bench-texts-") as folder:
            cache = Path(folder)
            ways: dict[str, Callable[[], list[Tokens]]] = {
                "here": lambda: prepare(lines, function),
                "processes": lambda: prepare(lines, function, TextOptions(workers=benchmark.workers)),
                "first": lambda: prepare(lines, function, cache=TokenCache(cache, function)),  # noqa: B023  # called now
                "then": lambda: prepare(lines, function, cache=TokenCache(cache, function)),  # noqa: B023
            }
            for way, make in ways.items():
                spoken.cache_clear()
                started_s = clock.now_s()
                tokens = make()
                seconds.setdefault(way, []).append(clock.now_s() - started_s)
                expected = tokens if expected is None else expected
                same = same and tokens == expected
    return seconds, same


def _lines(benchmark: TextBenchmark) -> list[str]:
    """Return the lines, each with a number of its own in the middle."""
    texts: Sequence[str] = _MADE_UP
    if benchmark.listing is not None:
        try:
            listed = benchmark.listing.read_text(encoding="utf-8").splitlines()
            texts = [line.split("|")[1] for line in listed]
        except (OSError, UnicodeDecodeError, IndexError) as error:
            raise ConfigError(
                f"cannot be read: {error}", where=str(benchmark.listing), remedy="Name a metadata.csv like LJSpeech's."
            ) from error
    lines = []
    for number in range(benchmark.lines):
        words = texts[number % len(texts)].split()
        lines.append(" ".join([*words[: len(words) // 2], str(number), *words[len(words) // 2 :]]))
    return lines
