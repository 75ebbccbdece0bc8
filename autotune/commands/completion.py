"""``autotune completion``: completion of commands and options in a shell."""

import click
from click.shell_completion import get_completion_class

from autotune.commands.output import say


@click.command(name="completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> int:
    """Prints a script that makes a shell complete autotune's commands and options.

    \b
    bash:  autotune completion bash > ~/.local/share/bash-completion/completions/autotune
    zsh:   autotune completion zsh > ~/.zfunc/_autotune     (a folder of fpath, before compinit)
    fish:  autotune completion fish > ~/.config/fish/completions/autotune.fish
    """  # noqa: D301 -- click's own mark for "do not rewrap"
    maker = get_completion_class(shell)
    assert maker is not None, "click knows these shells"
    say(maker(context.find_root().command, {}, "autotune", "_AUTOTUNE_COMPLETE").source())
    return 0
