"""Conversion of a command's flags into a config, and back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config.command import fill_command
from autotune.config.document import Document
from autotune.config.flags import flags_config, read_flags
from autotune.config.outputs import find_outputs
from autotune.config.sources import Script, find_script

KNOWN = {"batch_size", "use_xla", "num_workers", "cache", "static_shapes", "prefetch"}


def read(*words: str, script: Script | None = None):
    """Return the flags found, and the command filled from the config made of them."""
    flags = read_flags(words, KNOWN.__contains__, script)
    document = Document(flags_config(flags))
    return flags, document, fill(flags, document)


def fill(flags, config: Document | str):
    """Return the command filled from a config."""
    document = Document(config) if isinstance(config, str) else config
    return fill_command(flags.command or ("x",), config=Path("c"), python="p", trial_config=document, where="here")


def test_the_styles_of_flags():
    """The styles of nanoGPT and absl (--key=value), and argparse (--key value); dashes, text and numbers."""
    words = ("python", "train.py", "config/gpt.py", "--batch_size=16", "--lr", "3e-4", "--compile=False")
    flags, document, filled = read(*words, "--out-dir=out", "--num-workers", "4", "--tag=", "--name=it's {x}")
    numbers = {"batch_size": 16, "lr": 3e-4, "compile": False, "num_workers": 4}
    assert document.data == numbers | {"out_dir": "out", "tag": "", "name": "it's {x}"}
    assert flags.command[3:7] == ("--batch_size={batch_size}", "--lr", "{lr}", "--compile={compile}")
    assert filled == (*words, "--out-dir=out", "--num-workers", "4", "--tag=", "--name=it's {x}")


ARGPARSE = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--num-workers", type=int, default=4, help="of the loader")
parser.add_argument("-b", "--batch-size", default=16, type=int)
parser.add_argument("--use_xla", action="store_true")
parser.add_argument("--cache", default=CACHE)
parser.add_argument("--seed", default=1)
parser.add_argument("--static-shapes", action="store_true", default=True)
parser.add_argument("--prefetch", type=int, default=2)
parser.set_defaults(prefetch=None)
"""
TYRO = """
import tyro
from dataclasses import dataclass

@dataclass
class Args:
    num_workers: int = 4
    seed: int = 1
    lr: float = 0.1
"""


def test_a_flag_that_is_not_typed_is_added_where_its_value_is_not_the_trainers_own():
    """The source declares it; what it leaves to the trainer, or gives no knob's name, stays as it is."""
    flags, document, filled = read("train.py", "-b", "8", script=Script(text=ARGPARSE))
    assert filled == ("train.py", "-b", "8")
    assert document.data == {"batch_size": 8, "num_workers": 4, "use_xla": False}
    assert flags.declared == {"num_workers", "use_xla"}
    turned = fill(flags, "batch_size: 8\nnum_workers: 2\nuse_xla: true\n")
    assert turned == ("train.py", "-b", "8", "--num-workers=2", "--use_xla")
    assert "num_workers: 4  # 4 is the trainer's default\n" in flags_config(flags)


def test_an_output_that_is_not_typed_is_a_key_that_trials_redirect():
    """Where the source declares it: else each trial would write into the project. What is read is none."""
    text = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", type=str, default="./checkpoints/")
parser.add_argument("--outf", default="cls")
parser.add_argument("--out_dir", default="runs/one")
parser.add_argument("--resume_checkpoint_dir", default="old/ckpt")
parser.add_argument("--data_root", default="./data")
"""
    flags, document, filled = read("train.py", script=Script(text=text))
    assert filled == ("train.py",)
    assert document.data == {"checkpoints": "./checkpoints/", "outf": "cls", "out_dir": "runs/one"}
    outputs = find_outputs(document, [], [], "here", "autotune")
    assert outputs.redirected == ("checkpoints", "outf", "out_dir")
    assert fill(flags, "checkpoints: /trial/ckpt\noutf: cls\nout_dir: runs/one\n") == (
        "train.py",
        "--checkpoints=/trial/ckpt",
    )


def test_the_fields_of_a_dataclass_are_flags_where_they_are_made_into_such():
    """By tyro, or by Transformers' parser; elsewhere they are no matter of the command line."""
    assert read("train.py", script=Script(text=TYRO))[1].data == {"num_workers": 4}
    assert read("train.py", "--lr=1", script=Script(text=TYRO.replace("tyro", "json")))[1].data == {"lr": 1}
    text = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    assert set(Script(text=text).defaults) == {"--dataloader_num_workers", "--per_device_train_batch_size"}


def test_switches_are_left_out_where_they_are_off():
    """That is their opposite in every style; --no-cache says that cache is off, --normalize is a word of its own."""
    words = ("t.py", "--use_xla", "--no-cache", "--normalize", "--batch_size=1")
    flags, document, filled = read(*words)
    assert filled == words
    assert document.data == {"use_xla": True, "cache": False, "normalize": True, "batch_size": 1}
    assert fill(flags, "use_xla: false\ncache: true\nnormalize: false\nbatch_size: 2\n") == ("t.py", "--batch_size=2")


def test_a_switch_of_absl_has_a_word_for_on_and_one_for_off():
    """A typed --nouse_xla may be the trainer's default, so that leaving it out would change nothing."""
    flags, document, filled = read("t.py", "--nouse_xla")
    assert (filled, document.data) == (("t.py", "--nouse_xla"), {"use_xla": False})
    assert fill(flags, "use_xla: true\n") == ("t.py", "--use_xla")


@pytest.mark.parametrize(
    ("words", "left", "keys"),
    [
        (
            ("python", "-u", "t.py", "-v", "-b8", "--a=1"),
            {"-u": "launcher", "-v": "long name", "-b8": "long name"},
            {"a"},
        ),
        (("torchrun", "--nproc_per_node=2", "t.py", "--a=1"), {"--nproc_per_node=2": "launcher"}, {"a"}),
        (("t.py", "--sizes", "3", "4", "--a=1"), {"--sizes": "several"}, {"a"}),
        (("t.py", "--opt", "x", "--opt", "y", "--a=1"), {"--opt": "more than once"}, {"a"}),
        (("t.py", "--a", "-1", "cifar", "--", "--b=2"), {}, {"a"}),
        (("t.py", "--config=x.py", "--a=1"), {"--config=x.py": "reserved"}, {"a"}),
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


HYDRA = "import hydra\n\n@hydra.main(config_path='conf', config_name='config')\ndef main(cfg): ...\n"


def script(folder: Path, text: str) -> Script:
    """Return a script with this text."""
    path = folder / "train.py"
    path.write_text(text)
    return find_script(("python", "train.py"), folder)


@pytest.mark.parametrize("text", ["", HYDRA, "from omegaconf import OmegaConf\nprint(OmegaConf.from_cli())\n"])
def test_overrides_are_values(tmp_path: Path, text: str):
    """The overrides of Hydra, and like words of other trainers: each is put back with its own sign."""
    words = ("python", "train.py", "data.batch_size=64", "+trainer.limit_train_batches=50", "++lr=1e-3", "seed=1")
    flags, document, filled = read(*words, "trainer.tag=it is", script=script(tmp_path, text))
    trainer = {"trainer.limit_train_batches": 50, "trainer.tag": "it is"}
    assert document.data == {"data.batch_size": 64, "lr": 1e-3, "seed": 1} | trainer
    limit = "+trainer.limit_train_batches={trainer.limit_train_batches}"
    assert flags.command[2:4] == ("data.batch_size={data.batch_size}", limit)
    assert filled == (*words, "trainer.tag=it is")


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("trainer=cpu", "group"),
        ("experiment/data=a", "group"),
        ("data.sizes=[1,2]", "list"),
        ("data.root=${oc.env:HOME}", "other values"),
        ("hydra.run.dir=out", "belongs to Hydra"),
        ("hydra/launcher=joblib", "group"),
        ("--config-name=train", "belongs to Hydra"),
        ("python=3", "reserved"),
    ],
)
def test_words_for_hydra_itself_stay(tmp_path: Path, word: str, why: str):
    """Choices of groups, lists, references and what is for Hydra: no values, and said so."""
    flags, document, filled = read("train.py", "data.batch_size=1", word, script=script(tmp_path, HYDRA))
    assert document.data == {"data.batch_size": 1}
    assert why in flags.left[word]
    assert filled == ("train.py", "data.batch_size=1", word)


@pytest.mark.parametrize(
    ("text", "typed", "off"),
    [
        ("import click\n@click.option('--cache/--no-cache', default=True)\n", "--cache", "--no-cache"),
        ("import typer\n", "--cache", "--no-cache"),
        ("import fire\n", "--cache", "--nocache"),
        ("import click\n@click.option('--cache', is_flag=True)\n", "--cache", None),
    ],
)
def test_a_switch_is_turned_off_with_the_trainers_own_word(tmp_path: Path, text: str, typed: str, off: str | None):
    """If it may be on by itself, leaving it out would change nothing; other trainers know no such word."""
    flags, _, filled = read("t.py", typed, script=script(tmp_path, text))
    assert filled == ("t.py", typed)
    assert fill(flags, "cache: false\n") == (("t.py", off) if off else ("t.py",))
    if off:
        flags, document, filled = read("t.py", off, script=script(tmp_path, text))
        assert (filled, document.data) == (("t.py", off), {"cache": False})
        assert fill(flags, "cache: true\n") == ("t.py", typed)


OPTIONS = """
import argparse, click
parser.add_argument('-b', '--batch-size', default=256, type=int, help='(of all GPUs)')
parser.add_argument("--workers", "-j", choices=sorted(names()), action="store")
parser.add_argument('-lr', '--learning-rate', type=lambda text: float(text))
parser.add_argument('-v', '--verbose', action='store_true')
parser.add_argument('-s', '--sizes', nargs='+')
parser.add_argument('-q', type=int, help="the batch size for the dataloader")
parser.add_argument('-t', type=int, help="batch size for testing")
parser.add_argument('-w', type=int, help="number of data loading workers (default: 4)")
parser.add_argument('-p', '--print-freq'); other.add_argument('-p', '--port')
click.option("-n", "--num-layers", is_flag=False)
"""


def test_short_flags_get_the_long_names_that_the_trainers_source_tells(tmp_path: Path):
    """As they were typed, apart or in one word; the values go back into their places."""
    words = ("python", "train.py", "data", "-b", "256", "-j4", "-lr", "1e-1", "-n", "2", "--epochs", "3", "-t", "5")
    flags, document, filled = read(*words, script=script(tmp_path, OPTIONS))
    rest = {"num_layers": 2, "epochs": 3, "t": 5}
    assert document.data == {"batch_size": 256, "workers": 4, "learning_rate": 1e-1} | rest
    assert flags.command[3:6] == ("-b", "{batch_size}", "-j{workers}")
    assert filled == words
    assert not flags.left
    by_help = read("t.py", "-q", "8", "-w", "2", script=script(tmp_path, OPTIONS))[1].data
    assert by_help == {"batch_size": 8, "num_workers": 2}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        *((("-v",), "long name"), (("-s", "1", "2"), "long name"), (("-bnone",), "long name"), (("-b",), "no value")),
        (("-b", "8", "--batch_size=16"), "more than once"),
    ],
    ids=str,
)
def test_short_flags_whose_meaning_is_not_certain_stay(tmp_path: Path, words: tuple[str, ...], why: str):
    """Switches, lists, those without a long name or with two, and those that are typed twice."""
    flags, _, filled = read("train.py", "--a=1", *words, script=script(tmp_path, OPTIONS))
    assert filled == ("train.py", "--a=1", *words)
    assert [key for key in flags.values if key not in flags.declared] == ["a"]
    assert ("batch_size" in flags.declared) is (words[0] in ("-v", "-s"))
    assert why in flags.left[words[0]]
