"""The command line: the table of commands, ``--version``, shell completion, and what becomes of errors.

Exit codes: 0 done, 1 an expected error (message, place, remedy), 2 wrong usage, 3 a bug (a crash log is written
and its path printed), 130 interrupted, 143 ended by SIGTERM.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
import click.shell_completion

from autotune import __version__
from autotune.clock import SystemClock
from autotune.commands.invocation import Invocation
from autotune.commands.output import say
from autotune.commands.parameters import LazyGroup
from autotune.errors import AutotuneError
from autotune.process import expected
from autotune.trial.termination import end_by_force_with

if TYPE_CHECKING:
    from autotune.trial.instruments import Simulator

_COMMANDS = {
    "Commands": {
        "init": "find the knobs of a config, and add a section for autotune to it",
        "search": "find better values for the knobs of a config, and confirm them",
        "apply": "write the best values into the config",
        "revert": "undo the last apply",
        "status": "what is known so far",
        "diagnose": "say why a training is slow, and what each change gains",
    },
    "A closer look": {
        "profile": "how long the parts of a training step take, and its batches",
        "monitor": "what the GPUs do now, how steadily, and what that usually means",
        "run": "start real training with the values of the config",
    },
    "Records": {
        "report": "what is known as one HTML file, with pictures",
        "study": "list, show, export, import or delete studies",
    },
    "Machines": {
        "worker": "make this machine available to the searches of a shared study",
        "daemon": "the service that tunes while GPUs are idle, and watches what trains",
        "queue": "searches that wait for an idle machine",
    },
    "Shell": {"completion": "complete commands and options in a shell"},
}


def _say_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        say("\n".join(_version_lines()))
        context.exit()


def _version_lines() -> Iterator[str]:
    """Yield what a bug report needs, without a name, a path or a secret; GPUs without their driver, which may hang."""
    import platform
    import re
    from importlib.metadata import PackageNotFoundError, requires, version

    from autotune.frameworks import FRAMEWORKS
    from autotune.measure.host import text_of

    def versions(names: Iterable[str]) -> str:
        found = []
        for name in names:
            with suppress(PackageNotFoundError):
                found.append(f"{name} {version(name)}")
        return ", ".join(found)

    yield f"autotune {__version__}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()})"
    libc = " ".join(platform.libc_ver()).strip()
    yield f"{platform.system()} {platform.release()}, {platform.machine()}" + (f", {libc}" if libc else "")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, {memory_bytes / 2**30:.1f} GiB of memory"
    text = text_of(Path("/proc/driver/nvidia/version"))
    number = re.search(r"\b\d+\.\d+(?:\.\d+)?\b", text or "")
    gpus = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    driver = f"NVIDIA driver {number[0] if number else 'of unknown version'}, {gpus} GPU{'s' * (gpus != 1)}"
    yield f"GPU: {'no NVIDIA driver' if text is None else driver}"
    needed: dict[str, None] = {}  # one that depends on the version of Python is named for each
    with suppress(PackageNotFoundError):  # run from a checkout
        wanted = [one for one in requires("autotune") or () if "extra ==" not in one]
        needed = dict.fromkeys(re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in wanted)
    yield f"needs: {versions(needed) or 'not installed as a package'}"
    frameworks = (name for row in FRAMEWORKS for name in (*row.distributions, *row.built_on_it))
    yield f"frameworks beside it: {versions(frameworks) or 'none'}"


@click.group(
    cls=LazyGroup,
    package="autotune.commands",
    table=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Print the versions that a bug report needs, and exit.",
)
def command_line() -> None:
    """Finds the config values that make training fast, measures that they do, and writes them into your YAML.

    \b
    Start with these two:
      autotune init --config config.yaml -- python train.py --config config.yaml
      autotune search --config config.yaml --budget 30m
    """  # noqa: D301 -- click's own mark for "do not rewrap"


@command_line.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Prints a script that makes a shell complete autotune's commands and options.

    \b
    bash:  autotune completion bash > ~/.local/share/bash-completion/completions/autotune
    zsh:   autotune completion zsh > ~/.zfunc/_autotune     (a folder of fpath, before compinit)
    fish:  autotune completion fish > ~/.config/fish/completions/autotune.fish
    """  # noqa: D301 -- click's own mark for "do not rewrap"
    maker = click.shell_completion.get_completion_class(shell)
    assert maker is not None, "click knows these shells"
    say(maker(context.find_root().command, {}, "autotune", "_AUTOTUNE_COMPLETE").source())
    return 0


def run(arguments: Sequence[str], *, started_s: float | None = None, simulator: "Simulator | None" = None) -> int:
    """Runs one command.

    Args:
        arguments: What was typed after ``autotune``.
        started_s: When the process started, on the monotonic clock; None takes now.
        simulator: Runs the trials of a search in virtual time, on its own clock; None starts processes.

    Returns:
        The exit code.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 -- for the whole process
        getattr(sys, name).reconfigure(errors="backslashreplace")  # a path may hold what this locale cannot print
    clock = simulator.clock if simulator else SystemClock()
    call = Invocation(arguments, clock.now_s() if started_s is None else started_s, clock, simulator)
    end_by_force_with(call.interrupted)
    try:
        code = _run(arguments, call)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:  # while an error was said
        return call.interrupted(interrupt)
    except BrokenPipeError:
        # Whoever read our output has gone (`| head`); the interpreter must not complain at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def interrupted(arguments: Sequence[str], interrupt: KeyboardInterrupt) -> int:
    """Says that the process was interrupted before, or after, a command ran; returns the exit code."""
    clock = SystemClock()
    return Invocation(arguments, clock.now_s(), clock).interrupted(interrupt)


def _run(arguments: Sequence[str], call: Invocation) -> int:
    try:
        return int(command_line.main(args=list(arguments), prog_name="autotune", standalone_mode=False, obj=call) or 0)
    except click.exceptions.Abort as error:  # click makes this of ^C
        return call.interrupted(error.__cause__)
    except click.ClickException as error:
        call.misused(error)
        return error.exit_code
    except AutotuneError as error:
        call.fail(error)
        return 1
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 -- the top of the process: a bug becomes a crash log
        if trouble := expected(error):
            call.fail(trouble)
            return 1
        bug = AutotuneError(
            f"this is a bug: {type(error).__name__}: {error}",
            remedy=f"A crash log was written to {_crash_log(arguments, call)}; please report it.",
        )
        call.fail(bug)
        return 3


def _crash_log(arguments: Sequence[str], call: Invocation) -> str:
    from autotune.config.secrets import masked

    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", prefix="autotune-crash-", suffix=".log", delete=False
    ) as file:
        file.write(f"autotune {__version__}, Python {sys.version}, {datetime.now(UTC).isoformat()}\n")
        file.write(f"arguments: {list(masked(arguments))!r}\n\n{call.unsecret(traceback.format_exc())}")
        return file.name
