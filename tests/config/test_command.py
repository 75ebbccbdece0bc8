"""Command line of the trainer: split once, filled in token by token, never run through a shell."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.config.command import fill_command, ranks_on_node, resolve_executable, split_command
from autotune.config.document import Document
from autotune.config.sources import find_script, own_words
from autotune.errors import CommandError, ConfigError

CONFIG = Document("data: {batch_size: 16}\noptim: {lr: 1.0e-04, name: 'my adam'}\nxla: True\nlayers: [8]\n")


def fill(*tokens):
    """Fill in the placeholders with a fixed config and interpreter."""
    return fill_command(
        tokens, config=Path("/a trial/c.yaml"), python="/venv/bin/python", trial_config=CONFIG, where="config.yaml:3"
    )


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("python train.py --config {config}", ("python", "train.py", "--config", "{config}")),
        ("'my trainer' \"a 'b'\" c\\ d ''", ("my trainer", "a 'b'", "c d", "")),
        ("python t.py \\\n  --config {config}\n", ("python", "t.py", "--config", "{config}")),
        ("t '$HOME' 'a|b' \\; x=[1,2] --a=~b a#b", ("t", "$HOME", "a|b", ";", "x=[1,2]", "--a=~b", "a#b")),
    ],
)
def test_split_as_a_shell_does(text, tokens):
    """Quotes and continued lines mean what they mean in a shell."""
    assert split_command(text, "here") == tokens


@given(st.lists(st.text(st.characters(blacklist_characters="\n\r"), max_size=8), min_size=1, max_size=4))
def test_what_was_quoted_comes_back(tokens):
    """Any text that a shell's quoting protects arrives as it is."""
    assert split_command(shlex.join(["t", *tokens]), "here") == ("t", *tokens)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a {config} | tee log", r"\|"),
        ("cd x && a {config}", "&&"),
        ("a {config} > log", ">"),
        ("a $HOME", r"\$HOME"),
        ('a "$HOME/x"', r"\$HOME"),
        ("a `pwd`", "`pwd`"),
        ("a ~/x", "~/x"),
        ("a\nb", "second line"),
        ("CUDA_VISIBLE_DEVICES=0 python t.py {config}", "CUDA_VISIBLE_DEVICES"),
        ("a 'b", "No closing|no closing"),
        ("  ", "empty"),
    ],
)
def test_shell_syntax_is_refused(text, named):
    """No shell runs the command, so syntax that needs a shell is refused by name."""
    with pytest.raises(ConfigError, match=named) as caught:
        split_command(text, "config.yaml:3")
    assert caught.value.where == "config.yaml:3"
    assert caught.value.remedy


def test_placeholders():
    """Config, interpreter and values stay inside their token, spaces and all; values are as the config writes them."""
    filled = fill("{python}", "-c{config}", "--lr={optim.lr}", "{optim.name}", "{xla}", "{layers.0}", "{{x}}")
    assert filled == ("/venv/bin/python", "-c/a trial/c.yaml", "--lr=1.0e-04", "my adam", "True", "8", "{x}")


@pytest.mark.parametrize(
    ("token", "why", "remedy"),
    [
        ("{batch_size}", "{batch_size}", "Did you mean {data.batch_size}?"),
        ("{confg}", "{confg}", "Did you mean {config}?"),
        ("{data}", "mapping", "{config}, {python}"),
        ('{"a": 1}', "no such key", "{{ and }}"),
        ("{", "single {", "{{ and }}"),
        ("a}", "single }", "{{ and }}"),
        ("{}", "single {}", "{{ and }}"),
    ],
)
def test_unknown_placeholders_are_named(token, why, remedy):
    """With the closest key, the known names, and how to write a brace."""
    with pytest.raises(ConfigError) as caught:
        fill("t", token)
    assert why in caught.value.message
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("tokens", [("python", "train.py"), ("{python}", "{{config}}")])
def test_a_command_that_never_sees_the_config_is_refused(tokens):
    """Every trial would be the same."""
    with pytest.raises(ConfigError, match="no tuned value would reach"):
        fill(*tokens)


def test_the_program_is_looked_up(tmp_path):
    """On the PATH, or from the working directory; a program that cannot be started is an error before any trial."""
    assert resolve_executable("sh", tmp_path).name == "sh"
    script = tmp_path / "train me.sh"
    script.write_text("#!/bin/sh\n")
    with pytest.raises(CommandError, match="is not executable") as caught:
        resolve_executable("./train me.sh", tmp_path)
    assert caught.value.remedy == "Make it executable (chmod +x './train me.sh')."
    script.chmod(0o755)
    assert resolve_executable("./train me.sh", tmp_path) == tmp_path / "train me.sh"
    assert resolve_executable("train me.sh", Path("/"), str(tmp_path)) == script
    refused = {"./nothing": "does not exist", "no-such": "PATH: no-such", f"{tmp_path}/.": "is not executable"}
    for program, why in refused.items():
        with pytest.raises(CommandError, match=why):
            resolve_executable(program, tmp_path)


@pytest.mark.parametrize("word", ["a\0b", "\ud800", "--x=\udfff"])
def test_a_word_that_no_program_can_be_given(word):
    """A zero byte ends an argument, and half a surrogate pair is no character."""
    with pytest.raises(ConfigError, match="cannot be an argument") as caught:
        fill("t", "{config}", word)
    assert caught.value.where == "config.yaml:3"


@pytest.mark.parametrize(
    ("token", "filled"),
    [
        ("{xla?--xla}", ("--xla",)),
        ("{!xla?--noxla}", ()),
        ("{layers.1?--deep}", ()),
        ("{!layers.1?--no-deep}", ("--no-deep",)),
        ("a{layers.1?b}", ("a",)),
        ("{xla?}", ()),
    ],
)
def test_a_switch_is_there_or_not(token, filled):
    """Flags without a value are said or left out; a token that is left empty by that goes, others stay."""
    config = Document("xla: True\nlayers: [8, false]\n")
    command = ("t", "", token)
    assert fill_command(command, config=Path("c"), python="p", trial_config=config, where="here") == ("t", "", *filled)


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (("python", "-u", "train.py", "--a"), ("--a",)),
        (("torchrun", "--nproc_per_node=2", "sub/train.py", "a=1"), ("a=1",)),
        (("python", "-m", "pkg.train", "a=1"), ("a=1",)),
        (("./train", "a=1"), ("a=1",)),
        ((), ()),
    ],
)
def test_own_words_stand_behind_the_script(words: tuple[str, ...], own: tuple[str, ...]):
    """Words in front of it are for the launcher."""
    assert words[own_words(words) :] == own


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("train.py", ("python", "train.py")),
        ("pkg/train.py", ("python", "-m", "pkg.train")),
        ("pkg/__main__.py", ("torchrun", "-m", "pkg")),
        ("src/pkg/train.py", ("python", "-m", "pkg.train")),
    ],
)
def test_scripts_and_modules_are_found(tmp_path: Path, file: str, words: tuple[str, ...]):
    """As the interpreter would find them from the folder of the command."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("from hydra.utils import instantiate as make\nimport a.b\nimport c.d as e\n")
    script = find_script(words, tmp_path)
    assert script.path == path
    assert script.imported == {"make": "hydra.utils.instantiate", "a": "a", "e": "c.d"}
    assert script.imports("hydra")
    assert not script.imports("instantiate")


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("bash", "run.sh"), "train.py"),
        (("./run.sh", "config.yaml"), "train.py"),
        (("sh", "-c", "exec python train.py --config $0", "config.yaml"), "train.py"),
        (("/bin/bash", "-ec", "echo hi\npython train.py"), "train.py"),
        (("make", "-s", "train"), "train.py"),
        (("make", "lint"), None),
        (("python", "-m", "torch.distributed.run", "--nproc_per_node", "2", "train.py"), "train.py"),
    ],
)
def test_what_a_shell_script_or_a_makefile_starts_is_found(
    tmp_path: Path, words: tuple[str, ...], found: str | None
) -> None:
    """The first Python script of its lines; comments, variables and other targets are no matter."""
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "run.sh").write_text('set -e\n# python other.py\nexec "$PYTHON" \\\n  train.py --config "$1"\n')
    (tmp_path / "Makefile").write_text("lint:\n\truff check\n\ntrain: data\n\t@echo hi\n\t$(PY) train.py -e 1\n")
    path = find_script(words, tmp_path).path
    assert (path.name if path else None) == found


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --standalone --nproc-per-node 4 train.py {config}", 4),
        ("python -m torch.distributed.run --nproc_per_node=2 train.py {config}", 2),
        ("torchrun --nproc-per-node gpu train.py {config}", 1),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py {config}", 4),
        ("deepspeed --num_gpus 2 train.py {config}", 2),
        ("deepspeed --num_accelerators 2 train.py {config}", 2),
        ("srun --nodes 2 --ntasks-per-node 3 python train.py {config}", 3),
        ("python train.py --num_processes 8 {config}", 1),  # the trainer's own
        ("", 1),
    ],
)
def test_a_launcher_says_how_many_ranks_a_node_has(command: str, ranks: int) -> None:
    """Each has workers of its own; where it does not say, one."""
    assert ranks_on_node(command.split()) == ranks
