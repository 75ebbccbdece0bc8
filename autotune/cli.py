"""Command line: table of commands, ``--version``, completion, and error handling.

Exit codes: 0 done, 1 expected error, 2 wrong usage, 3 bug (writes a crash log), 130 interrupted, 143 SIGTERM.
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
        "init": "find a config's knobs and add an autotune section",
        "search": "find better values for a config and confirm them",
        "apply": "write the best values into the config",
        "revert": "undo the last apply",
        "status": "show the current answer",
        "diagnose": "explain why training is slow and what helps",
    },
    "Training": {
        "profile": "time the parts of a training step and its batches",
        "monitor": "watch the GPUs' utilization and its usual meaning",
        "run": "start real training with the config's values",
    },
    "Records": {
        "report": "write an HTML report, with plots",
        "study": "list, show, export, import or delete studies",
    },
    "Machines": {
        "worker": "run trials for the searches of a shared study",
        "daemon": "tune while GPUs are idle and watch trainings",
        "queue": "manage searches that wait for an idle machine",
    },
    "Shell": {"completion": "print a completion script for a shell"},
}


def _print_version(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
    if is_wanted and not context.resilient_parsing:
        say("\n".join(_version_lines()))
        context.exit()


def _version_lines() -> Iterator[str]:
    """Yield what a bug report needs, without secrets, and without the GPU driver, which may hang."""
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
    needed: dict[str, None] = {}  # a package may be listed once per version of Python
    with suppress(PackageNotFoundError):  # run from a checkout
        wanted = [one for one in requires("autotune-training") or () if "extra ==" not in one]
        needed = dict.fromkeys(re.split(r"[^\w.-]", one, maxsplit=1)[0] for one in wanted)
    yield f"dependencies: {versions(needed) or 'not installed as a package'}"
    frameworks = (name for row in FRAMEWORKS for name in (*row.distributions, *row.built_on_it))
    yield f"frameworks: {versions(frameworks) or 'none'}"


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
    callback=_print_version,
    help="Print the versions for a bug report and exit.",
)
def command_line() -> None:
    """Find config values that make training fast, confirm them, and write them into your config.

    \b
    Start with:
      autotune init --config config.yaml -- python train.py --config config.yaml
      autotune search --config config.yaml --budget 30m
    """  # noqa: D301 -- click's own mark for "do not rewrap"


@command_line.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print a script that completes autotune's commands and options.

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
    """Run one command; return the exit code.

    Args:
        started_s: Monotonic start of the process; by default now.
        simulator: Runs trials in virtual time, on its clock.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 -- open until the process ends
        getattr(sys, name).reconfigure(errors="backslashreplace")  # the locale may lack characters of a path
    clock = simulator.clock if simulator else SystemClock()
    call = Invocation(arguments, clock.now_s() if started_s is None else started_s, clock, simulator)
    end_by_force_with(call.interrupted)
    try:
        code = _run(arguments, call)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:  # while an error was printed
        return call.interrupted(interrupt)
    except BrokenPipeError:
        # The reader of our output is gone (`| head`). Without this, the interpreter complains at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def interrupted(arguments: Sequence[str], interrupt: KeyboardInterrupt) -> int:
    """Report an interrupt outside of a command; return the exit code."""
    clock = SystemClock()
    return Invocation(arguments, clock.now_s(), clock).interrupted(interrupt)


def _run(arguments: Sequence[str], call: Invocation) -> int:
    try:
        return int(command_line.main(args=list(arguments), prog_name="autotune", standalone_mode=False, obj=call) or 0)
    except click.exceptions.Abort as error:  # click's translation of ^C
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
            remedy=f"Please report it with the crash log {_crash_log(arguments, call)}.",
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
