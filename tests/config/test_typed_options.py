"""Commands that are shown can be typed as they stand."""

import shlex
from pathlib import Path

import pytest

from autotune.config.command_line import TypedOptions

TYPED = TypedOptions(config=Path("my config.yaml"), state_dir=Path("/mnt/state"), storage="sqlite:it's.db")


@pytest.mark.parametrize("verb", ["init", "search", "apply", "revert", "status", "run"])
def test_a_command_has_no_option_that_it_does_not_take(verb: str) -> None:
    """Each command takes all that is shown for it."""
    from importlib import import_module

    command = import_module(f"autotune.commands.{verb}").command
    taken = {option for parameter in command.params for option in parameter.opts}
    shown = {word for word in shlex.split(TYPED.command(verb)) if word.startswith("--")}
    assert shown == taken & {"--config", "--state-dir", "--storage"}
