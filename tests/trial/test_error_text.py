"""Errors of trainers, as their frameworks print them, reduced to what went wrong; the texts are in error_texts.yaml."""

from pathlib import Path

import pytest
import yaml

from autotune.trial.error_text import last_error, one_line, quoted_output

TEXTS = yaml.safe_load(Path(__file__).with_name("error_texts.yaml").read_text())
GRAPH, RICH, BAR = (TEXTS[name] for name in ("in a graph", "rich", "nothing"))


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_what_went_wrong_is_found(text: dict[str, str]) -> None:
    """The exception, wherever it was printed, without bars, boxes, frames, warnings and what comes at exit."""
    assert one_line(last_error(text["stderr"], text["stdout"])) == one_line(text["error"])


def test_an_error_that_was_caught_long_ago_is_not_the_last_one() -> None:
    """Training went on after it, as its progress bar shows; what stdout ends with counts."""
    bars = "".join(f"\r {n}%|▏         | {n}/300 [00:09<12:12,  2.48s/it]" for n in range(9))
    caught = TEXTS["a bar behind it"]["stderr"] + bars
    assert last_error(caught, TEXTS["logged"]["stdout"]) == "KeyError: 'dataset'"
    assert last_error(caught, "") == "KeyError: 'labels'"


def test_the_output_that_is_quoted_is_where_the_error_stands() -> None:
    """Without the bar on the other stream, and without lines that only decorate."""
    assert quoted_output(GRAPH["stderr"], GRAPH["stdout"]).splitlines()[-1].strip().startswith("ValueError: Dimension")
    assert quoted_output(RICH["stderr"], "epoch 1\n").splitlines()[0] == "Traceback (most recent call last):"
    assert "│" not in quoted_output(RICH["stderr"], "epoch 1\n")
    assert quoted_output(BAR["stderr"], "epoch 1\n") == "epoch 1\n"


@pytest.mark.parametrize("text", ["a:", "|", "%|", " ", "━", "1%|x/", "\x1b["])
def test_a_long_output_is_read_at_once(text: str) -> None:
    """No pattern runs away on what no program should write."""
    long = text * (32_000 // len(text))
    assert isinstance(last_error(long, long), str)
