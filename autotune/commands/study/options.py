"""Options that say which study is meant; light, since ``--help`` needs them."""

from collections.abc import Callable
from typing import Any

import click

from autotune.commands.parameters import config_if_any_option, json_option, state_dir_option, storage_option


def study_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say which study is meant, and how it is shown."""
    name = click.option("--study", metavar="NAME", help="Name of the study (default: the config's, or the only one).")
    for option in (storage_option, state_dir_option, json_option, name, config_if_any_option):
        function = option(function)
    return function
