"""Training command as typed behind ``--``."""

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from autotune.config.command import TypedOptions, read_typed, typed_tokens
from autotune.errors import ConfigError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Config with an awkward name."""
    folder = tmp_path / 'it\'s a "folder"\n'
    folder.mkdir()
    path = folder / "con fig.yaml"
    path.write_text("a: 1\n")
    return path


def test_the_configs_own_path_becomes_its_placeholder(config: Path) -> None:
    """However it was written: alone, behind an equals sign, relative to where the command was typed."""
    typed = read_typed(["python", "t.py", str(config), f"--config={config}", "-c", "con fig.yaml", "./con fig.yaml"])
    tokens = typed.tokens(config, config.parent)
    assert tokens == ("python", "t.py", "{config}", "--config={config}", "-c", "{config}", "{config}")


def test_braces_that_are_no_placeholders_are_literal(config: Path) -> None:
    """JSON passes through; what looks like a placeholder stays one, so that a slip in it is found."""
    typed = read_typed(["t", '{"a": {}}', "{config}", "--x={confg}", "{python}", "{a?--on}{!a?--off}", "}"])
    kept = ("{config}", "--x={confg}", "{python}", "{a?--on}{!a?--off}")
    assert typed.tokens(config, config.parent) == ("t", '{{"a": {{}}}}', *kept, "}}")


def test_variables_in_front(config: Path) -> None:
    """They become part of the section; a value keeps its blanks and equals signs."""
    typed = read_typed(["TOKENIZERS_PARALLELISM=false", "FLAGS=--a=b c", "python", "X=1"])
    assert typed.env == {"TOKENIZERS_PARALLELISM": "false", "FLAGS": "--a=b c"}
    assert typed.words == ("python", "X=1")


def test_a_whole_command_in_quotes() -> None:
    """One word with blanks is split as a shell does."""
    assert read_typed(["python 'my train.py' {config}"]).words == ("python", "my train.py", "{config}")


def test_for_this_time_only(config: Path) -> None:
    """No variable may be set in front where nothing is written down; no command is none."""
    assert typed_tokens(["t", "con fig.yaml"], config, config.parent) == ("t", "{config}")
    assert typed_tokens([], config, config.parent) is None
    with pytest.raises(ConfigError, match="sets MODE first") as caught:
        typed_tokens(["MODE=a", "t", "con fig.yaml"], config, config.parent)
    assert "MODE=... autotune" in str(caught.value.remedy)


@pytest.mark.parametrize("verb", ["init", "search", "apply", "revert", "status", "run"])
def test_a_command_that_is_shown_can_be_typed_as_it_stands(verb: str) -> None:
    """It has all options that were typed and that the command takes, and no other."""
    typed = TypedOptions(config=Path("my config.yaml"), state_dir=Path("/mnt/state"), storage="sqlite:it's.db")
    command = import_module(f"autotune.commands.{verb}").command
    taken = {option for parameter in command.params for option in parameter.opts}
    shown = {word for word in shlex.split(typed.command(verb)) if word.startswith("--")}
    assert shown == taken & {"--config", "--state-dir", "--storage"}


@pytest.mark.parametrize("words", [["A=1"], []])
def test_a_command_without_a_program_is_refused(words: list[str]) -> None:
    """Variables alone are none."""
    with pytest.raises(ConfigError, match="empty") as caught:
        read_typed(words)
    assert caught.value.remedy
