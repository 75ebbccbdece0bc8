"""Conversion of a command's flags into a config, and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.settings.command import fill_command
from autotune.settings.flags import flags_config, read_flags
from autotune.settings.text.document import Document

KNOWN = {"batch_size", "use_xla", "num_workers", "cache"}


def read(*words: str):
    """Return the flags found, and the command filled from the config made of them."""
    flags = read_flags(words, KNOWN.__contains__)
    document = Document.parse(flags_config(flags.values))
    filled = fill_command(
        flags.command or ("x",), config=Path("c"), python="python", trial_config=document, where="here"
    )
    return flags, document, filled


def test_the_styles_of_flags():
    """The styles of nanoGPT and absl (--key=value), and argparse (--key value); dashes, text and numbers."""
    words = ("python", "train.py", "config/gpt.py", "--batch_size=16", "--lr", "3e-4", "--compile=False")
    flags, document, filled = read(*words, "--out-dir=out", "--num-workers", "4", "--tag=", "--name=it's {x}")
    assert document.data == {
        "batch_size": 16,
        "lr": 3e-4,
        "compile": False,
        "out_dir": "out",
        "num_workers": 4,
        "tag": "",
        "name": "it's {x}",
    }
    assert flags.command[3:7] == ("--batch_size={batch_size}", "--lr", "{lr}", "--compile={compile}")
    assert filled == (*words, "--out-dir=out", "--num-workers", "4", "--tag=", "--name=it's {x}")


def test_switches_are_left_out_where_they_are_off():
    """That is their opposite in every style; --no-cache says that cache is off, --normalize is a word of its own."""
    words = ("t.py", "--use_xla", "--no-cache", "--normalize", "--batch_size=1")
    flags, document, filled = read(*words)
    assert filled == words
    assert document.data == {"use_xla": True, "cache": False, "normalize": True, "batch_size": 1}
    other = Document.parse("use_xla: false\ncache: true\nnormalize: false\nbatch_size: 2\n")
    turned = fill_command(flags.command, config=Path("c"), python="p", trial_config=other, where="here")
    assert turned == ("t.py", "--batch_size=2")


def test_a_switch_of_absl_has_a_word_for_on_and_one_for_off():
    """A typed --nouse_xla may be the trainer's default, so that leaving it out would change nothing."""
    flags, document, filled = read("t.py", "--nouse_xla")
    assert (filled, document.data) == (("t.py", "--nouse_xla"), {"use_xla": False})
    on = Document.parse("use_xla: true\n")
    turned = fill_command(flags.command, config=Path("c"), python="p", trial_config=on, where="here")
    assert turned == ("t.py", "--use_xla")


@pytest.mark.parametrize(
    ("words", "left", "keys"),
    [
        (("python", "-u", "t.py", "-v", "-b", "8", "--a=1"), {"-u": "starts", "-v": "short", "-b": "short"}, {"a"}),
        (("torchrun", "--nproc_per_node=2", "t.py", "--a=1"), {"--nproc_per_node=2": "starts"}, {"a"}),
        (("python", "-m", "pkg.train", "--a=1"), {"-m": "starts"}, {"a"}),
        (("t.py", "--sizes", "3", "4", "--a=1"), {"--sizes": "several"}, {"a"}),
        (("t.py", "--opt", "x", "--opt", "y", "--a=1"), {"--opt": "more than once"}, {"a"}),
        (("t.py", "--a", "-1", "cifar", "--", "--b=2"), {}, {"a"}),
        (("t.py", "--a.b=1", "--a=2"), {}, {"a.b", "a"}),
        (("t.py", "--config=x.py", "--a=1"), {"--config=x.py": "something else"}, {"a"}),
        (("t.py", "--python", "3", "--a=1", "--autotune"), {"--python": "else", "--autotune": "else"}, {"a"}),
        (("t.py", "--no-cache", "--nocache"), {}, {"cache", "nocache"}),
    ],
)
def test_what_is_left_alone_is_said(words, left, keys):
    """Short flags, lists, repeated ones, those of the launcher, and what comes behind a --."""
    flags, _, filled = read(*words)
    assert filled == words
    assert set(flags.values) == keys
    assert flags.left.keys() == left.keys()
    assert all(why in flags.left[flag] for flag, why in left.items())


_WORD = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=12)


@given(st.lists(st.one_of(_WORD, _WORD.map("--key={}".format), _WORD.map("--{}".format)), max_size=6))
def test_the_command_says_what_it_said(words):
    """Any typed command is the same again when filled in from the config that was made of it."""
    _, _, filled = read("python", "t.py", "--first=1", *words)
    assert filled == ("python", "t.py", "--first=1", *words)


@given(st.floats() | st.integers() | st.booleans() | _WORD)
def test_values_keep_their_text(value):
    """A number is passed on digit by digit, a word letter by letter, though YAML has its own ideas of both."""
    flags, document, _ = read("t.py", f"--key={value}")
    assert document.leaf("key").text == str(value)
    assert list(flags.values) == ["key"]
