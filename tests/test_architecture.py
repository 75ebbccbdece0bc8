"""Import rules that keep the stages apart, read from the source itself."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune

PACKAGE = Path(autotune.__file__).parent

WORDS = {
    "errors",
    "limits",
    "records",
    "events",
    "results",
    "metrics",
    "clock",
    "durations",
    "environment",
    "files",
    "score",
    "stage_times",
    "statistics",
}
MAY_IMPORT = {
    "cli": {"commands", "report", "settings", "process"},
    "__main__": {"cli", "process"},
    "__init__": {"settings", "search", "problem", "sampler"},
    "commands": {
        "daemon",
        "diagnose",
        "search",
        "problem",
        "study",
        "trial",
        "process",
        "gpu",
        "measure",
        "protect",
        "folders",
        "monitor",
        "profile",
        "report",
        "submission",
    }
    | {"settings", "space"},
    "profile": {"problem", "study", "trial", "process", "gpu", "measure", "protect", "folders", "settings", "space"},
    "diagnose": {"search", "problem", "study", "trial", "process", "gpu", "measure", "folders", "settings", "space"},
    "submission": {"study", "process", "settings"},
    "daemon": {"study", "process", "gpu", "measure", "folders", "settings", "report"},
    "search": {"problem", "sampler", "study", "trial", "process", "gpu", "measure", "protect", "folders"}
    | {"settings", "space"},
    "problem": {"study", "trial", "process", "gpu", "measure", "folders", "settings", "space"},
    "study": {"sampler", "measure", "settings", "space", "gpu"},
    "sampler": {"space"},
    "trial": {"process", "gpu", "measure", "folders", "settings", "space"},
    "protect": {"process", "folders", "settings", "trial"},
    "process": {"folders"},
    "gpu": {"process", "measure"},
    "measure": {"process"},
    "folders": set(),
    "settings": {"folders"},
    "space": set(),
    "report": {"settings", "diagnose", "profile"},
    "monitor": {"gpu", "measure", "process", "folders", "report"},
    "testing": {"process", "folders", "measure", "study"},
    "trainee": set(),
    "tf": {"trainee", "stage_times"},
    "workloads": {"tf", "trainee"},
    **{word: set[str]() for word in WORDS},
}
GUEST = {"trainee", "tf", "workloads"}
ONLY_IN = {
    "optuna": {"sampler/optuna_sampler.py", "sampler/other_samplers.py", "study/", "testing/storage_contract.py"},
    "sqlalchemy": {"study/storage/"},
    "psycopg": {"study/storage/"},
    "matplotlib": {"report/drawing.py"},
    "pynvml": {"gpu/driver.py"},
    "psutil": {"measure/host.py", "process/"},
    "subprocess": {"process/", "folders/deletion.py"},
    "signal": {"process/", "trial/outcome.py"},
    "yaml": {"settings/"},
    "ruamel": {"settings/"},
    "starlette": {"daemon/web/"},
    "uvicorn": {"daemon/web/"},
    "prometheus_client": {"daemon/web/"},
    "rich": {"report/", "commands/", "monitor/"},
    "click": {"cli.py", "commands/"},
    "time": {
        "clock.py",
        "measure/host.py",
        "process/guard_process.py",
        "process/zygote_forkable.py",
        "process/zygote_imports.py",
        "process/zygote_process.py",
        "diagnose/static/framework_child.py",  # runs in the trainer's interpreter
    },
}


PRINTING = {
    "print": {"commands/printing.py"},
    "Console": {"report/console.py"},
    "SafeConsole": {"report/console.py"},
    "echo": set(),
    "secho": set(),
    "prompt": set(),
    "confirm": {"commands/printing.py"},
    "write": set(),
    "writelines": set(),
}
"""Calls that put text on a terminal, and the modules that may make them; all passes one filter there."""
WRITING_FILES = {"cli.py"}
"""Modules that write into files of their own."""


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _stage_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


@pytest.mark.parametrize("module", _modules(), ids=lambda module: str(module.relative_to(PACKAGE)))
def test_stages_import_only_what_they_may(module: Path) -> None:
    """A stage imports its own modules, the words, and the stages it stands on; nothing else of autotune."""
    stage = _stage_of(module)
    own = {name.split(".")[1] for name in _imports(module) if name.startswith("autotune.")}
    words = set() if stage in GUEST else WORDS
    assert own - {stage} - words - MAY_IMPORT[stage] == set()


def test_no_module_needs_itself() -> None:
    """Imports have no circle, whatever its length; one made inside a function counts too."""
    names = {
        ".".join(("autotune", *module.relative_to(PACKAGE).with_suffix("").parts)): module for module in _modules()
    }
    needed = {
        name: {other for other in _imports(module) if other in names and not other.endswith("__init__")}
        for name, module in names.items()
    }
    done: set[str] = set()

    def follow(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for other in sorted(needed[name]):
                follow(other, (*way, name))
            done.add(name)

    for name in names:
        follow(name, ())


@pytest.mark.parametrize(
    "module", [m for m in _modules() if _stage_of(m) not in GUEST], ids=lambda module: str(module.relative_to(PACKAGE))
)
def test_outside_things_have_one_home(module: Path) -> None:
    """Each outside library is touched in the module that is its edge, and nowhere else in host code."""
    place = module.relative_to(PACKAGE).as_posix()
    strays = {
        name
        for name in _imports(module)
        for outside, homes in ONLY_IN.items()
        if name.split(".")[0] == outside and not any(place.startswith(home) for home in homes)
    }
    assert strays == set()


@pytest.mark.parametrize(
    "module",
    [m for m in _modules() if _stage_of(m) in ("cli", "__main__", "commands", "report", "monitor")],
    ids=lambda module: str(module.relative_to(PACKAGE)),
)
def test_all_that_is_printed_goes_through_one_door(module: Path) -> None:
    """One module prints, makes consoles and writes to the standard streams: text from outside cannot slip through."""
    place = module.relative_to(PACKAGE).as_posix()
    calls = [node.func for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    names = {call.id for call in calls if isinstance(call, ast.Name)}
    names |= {call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr != "print"}  # of a console
    strays = {name for name in names & PRINTING.keys() if place not in PRINTING[name]}
    assert strays - ({"write"} if place in WRITING_FILES else set()) == set()


@pytest.mark.parametrize("module", [m for m in _modules() if _stage_of(m) == "trainee"], ids=lambda module: module.name)
def test_trainee_needs_the_standard_library_only(module: Path) -> None:
    """Code that runs inside the user's training process imports nothing that has to be installed."""
    outside = {name.split(".")[0] for name in _imports(module)} - set(sys.stdlib_module_names)
    assert outside <= {"autotune"}


def test_the_public_face_is_what_it_says() -> None:
    """``__all__`` is sorted and complete, and each of its names is there."""
    assert autotune.__all__ == sorted(autotune.__all__)
    assert set(autotune._HOMES) | {"__version__"} == set(autotune.__all__)
    for name in autotune.__all__:
        assert getattr(autotune, name) is not None


def test_importing_the_package_and_asking_for_help_stays_light() -> None:
    """Help loads neither numpy nor optuna nor the YAML parsers nor rich, and certainly not TensorFlow."""
    heavy = "{'numpy', 'optuna', 'yaml', 'ruamel', 'msgspec', 'rich', 'tensorflow', 'psutil'}"
    script = (
        "import sys; from autotune.cli import run; code = run(['--help']); "
        f"print(code, sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_the_daemon_stays_small() -> None:
    """A process that runs for weeks beside trainings has loaded nothing that it does not need: 27 MiB, not 150."""
    heavy = ("numpy", "optuna", "rich", "ruamel", "msgspec", "scipy", "yaml")
    code = f"import sys, autotune.daemon.service; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
