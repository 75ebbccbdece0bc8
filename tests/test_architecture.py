"""What the contracts in pyproject.toml cannot say: the public face, the one door for text, light imports."""

import ast
import subprocess
import sys
from pathlib import Path

import autotune

PACKAGE = Path(autotune.__file__).parent

PRINTING = {
    "print": {"commands/output.py"},
    "Console": {"report/console.py"},
    "SafeConsole": {"report/console.py"},
    "echo": set(),
    "secho": set(),
    "prompt": set(),
    "confirm": {"commands/output.py"},
    "write": set(),
    "writelines": set(),
}
"""Calls that put text on a terminal, and the modules that may make them; all passes one filter there."""
WRITING_FILES = {"cli.py"}
"""Modules that write into files of their own."""


def test_all_that_is_printed_goes_through_one_door() -> None:
    """One module prints, makes consoles and writes to the standard streams: text from outside cannot slip through."""
    modules = [PACKAGE / "cli.py", *(PACKAGE / "commands").rglob("*.py"), *(PACKAGE / "report").rglob("*.py")]
    strays = set()
    for module in modules:
        place = module.relative_to(PACKAGE).as_posix()
        calls = [node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        names |= {call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr != "print"}
        names -= {"write"} if place in WRITING_FILES else set()
        strays |= {(place, name) for name in names & PRINTING.keys() if place not in PRINTING[name]}
    assert strays == set()


def test_the_public_face_is_what_it_says() -> None:
    """``__all__`` is sorted and complete, and each of its names is there."""
    assert autotune.__all__ == sorted(autotune.__all__)
    assert set(autotune._HOMES) | {"__version__"} == set(autotune.__all__)
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None


def test_importing_the_package_and_asking_for_help_stays_light() -> None:
    """Help loads neither numpy nor optuna nor the YAML parsers nor rich, and certainly not TensorFlow."""
    heavy = "{'numpy', 'optuna', 'yaml', 'ruamel', 'msgspec', 'rich', 'tensorflow', 'psutil', 'jinja2'}"
    script = (
        "import sys; from autotune.cli import run; code = run(['--help']); "
        f"print(code, sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_help_of_each_command_stays_light() -> None:
    """What a command does is loaded when it does it: the module that has its options loads nothing that takes time."""
    script = """
import sys, click
from autotune.cli import command_line
def load(command, context):
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        load(command.get_command(context, name), context)
load(command_line, click.Context(command_line))
print(sorted({'numpy', 'optuna', 'ruamel', 'tensorflow', 'jinja2'} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_who_reads_a_study_waits_for_no_import() -> None:
    """Half of the time of ``status`` and ``apply`` would be those of NumPy and Optuna, and neither calculates."""
    modules = "autotune.report.answer, autotune.report.live, autotune.search.answer, autotune.commands.apply_answer"
    code = f"import sys, {modules}; print([name for name in ('numpy', 'optuna') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_daemon_stays_small() -> None:
    """A process that runs for weeks beside trainings has loaded nothing that it does not need: 27 MiB, not 150."""
    heavy = ("numpy", "optuna", "rich", "ruamel", "scipy", "yaml")
    code = f"import sys, autotune.daemon.service; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
