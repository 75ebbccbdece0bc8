"""Imports made before the fork: what a trainer then finds is what a fresh interpreter would have loaded."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from autotune.records import TraineeEvent
from autotune.trial.launch import Guard, ProcessRunner
from tests.soak.measurements import compared
from tests.trial.conftest import STARTS_THREAD, Project, install, site_packages

STANDARD = """
import sys
sys.stdout.write(f"{sorted(name for name in ('json', 'json.decoder', '_json', '_operator') if name in sys.modules)}\\n")
"""


def alike(project: Project, guard: Guard, script: str, *, is_warm: bool = True) -> str:
    """Check that the script prints the same in a fresh process, in one that is recorded, and warm; return it."""
    project.write("train.py", script)
    cold = project.run("train.py", runner=ProcessRunner(guard, project.clock))[1]
    for _ in range(2):
        ended, said, error = project.run("train.py")
        assert (ended.exit_code, said) == (0, cold), error
    assert project.forks == ((1, 0) if is_warm else (0, 1))
    return cold


@pytest.mark.services
@pytest.mark.parametrize("package", ["tensorflow", "keras", "torch", "transformers"])
def test_a_framework_is_the_same_warm_and_cold(package: str, tmp_path: Path) -> None:
    """Loaded modules, the modules of their objects, and a small computation are those of a fresh process."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed here; python -m tests.soak warm tests it elsewhere")
    assert compared(sys.executable, package, tmp_path).wrong == []


@pytest.mark.parametrize("first", ["", "import other\n"])
def test_a_module_comes_with_its_other_half(first: str, other: Project, guard: Guard) -> None:
    """Functions written in C name a module of their own, which libraries look up in ``sys.modules``."""
    install(other, "framework", "import operator, json\n")
    install(other, "other", "import json.decoder\n")
    said = alike(
        other,
        guard,
        f"{STANDARD}{first}import operator\n{STANDARD}"
        "print(sys.modules[operator.pos.__module__].__name__)\nimport json, framework, other\n"
        f"print(sys.modules[json.decoder.scanstring.__module__].__name__)\n{STANDARD}",
    )
    assert "\n_operator\n" in said
    assert "\n_json\n" in said


def test_what_a_pth_file_has_loaded_counts_as_loaded(other: Project, guard: Guard) -> None:
    """Parts of a package of the standard library are its own, also where the package itself is there from the start."""
    place = site_packages(Path(other.python).parents[1]) / "early.pth"
    place.write_text("import importlib, json\n")
    install(other, "framework", "import importlib.resources, json.tool\n")
    names = "('importlib', 'importlib.resources', 'json.tool', 'framework')"
    found = f"print([name in sys.modules for name in {names}])\n"
    said = alike(other, guard, f"import sys\n{found}import json.tool\n{found}import framework\n{found}")
    place.unlink()
    assert said.splitlines()[1].startswith("[True, ")
    assert said.splitlines()[1].endswith("True, False]")


def test_a_package_brings_its_standard_library_along(other: Project, guard: Guard) -> None:
    """Its own imports are loaded with it, and not before it."""
    install(other, "framework", "import wave, xml.dom.minidom\ndel wave, xml\n")
    found = "print(sorted({'wave', 'xml', 'xml.dom', 'xml.dom.minidom', 'runpy'} & set(sys.modules)))\n"
    said = alike(other, guard, f"import sys\n{found}import framework\n{found}")
    assert said == "[]\n['wave', 'xml', 'xml.dom', 'xml.dom.minidom']\n"


def test_a_trainer_started_by_its_module_is_warm_after_a_package_that_loads_runpy(other: Project, guard: Guard) -> None:
    """As each that starts processes does: runpy needs importlib.util, and holds nothing but importlib."""
    install(other, "framework", "import multiprocessing.spawn\n")
    other.write("train.py", "import framework\nprint('trained')\n")
    for _ in range(2):
        ended, said, error = other.run("-m", "train")
        assert (ended.exit_code, said) == (0, "trained\n"), error
    assert other.forks == (1, 0)


def test_a_package_that_is_only_looked_for_is_not_imported(other: Project, guard: Guard) -> None:
    """Libraries ask with find_spec what is installed: the answer is true, and the warm interpreter imports nothing."""
    install(other, "heavy", "print('imported heavy')\n")
    install(other, "framework", "import importlib.util\nHAS = importlib.util.find_spec('heavy') is not None\n")
    said = alike(
        other,
        guard,
        "import importlib.util, sys\nspec = importlib.util.find_spec('framework')\n"
        "import framework\nprint(framework.HAS, 'heavy' in sys.modules, framework.__file__ == spec.origin)\n",
    )
    assert said == "True False True\n"
    assert not any("heavy" in log.read_text() for log in other.folder.glob("runs/*/zygote.log"))


def test_a_package_that_is_loaded_by_hand_makes_no_second_copy(other: Project, guard: Guard) -> None:
    """A module executed without an import would stand beside the one from before the fork: the trial starts afresh."""
    install(other, "framework", "print('imported')\n")
    install(other, "user", "import framework\n")
    said = alike(
        other,
        guard,
        "import importlib.util, sys\nspec = importlib.util.find_spec('framework')\n"
        "sys.modules['framework'] = module = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(module)\n"
        "import user\nprint(user.framework is module)\ndel sys.modules['framework']\nimport framework\n",
        is_warm=False,
    )
    assert said == "imported\nTrue\nimported\n"
    assert "loads framework without importing it" in other.remarks[0]


ALIAS = "import sys, science_core\nsys.modules['_core'] = science_core\n"


def test_a_second_name_of_an_installed_module_is_not_the_trainers_own(other: Project, guard: Guard) -> None:
    """Modules that Cython made put themselves into ``sys.modules`` by a name that no import finds."""
    install(other, "science_core", "")
    install(other, "science", ALIAS)
    said = alike(
        other, guard, "import science, sys\nprint('_core' in sys.modules)\nimport _core\nprint(_core.__name__)\n"
    )
    assert said == "True\nscience_core\n"


def test_a_module_of_the_trainers_own_wins_over_a_second_name(other: Project, guard: Guard) -> None:
    """If the trainer imports a module of that name, it gets its own."""
    install(other, "science_core", "")
    install(other, "science", ALIAS)
    other.write("_core.py", "")
    alike(other, guard, "import _core\nprint(_core.__file__)\nimport science\n", is_warm=False)


WRITES = """
import importlib.util, os, sys, tempfile
path = os.path.join(tempfile.mkdtemp(), "made_up.py")
with open(path, "w"):
    pass
spec = importlib.util.spec_from_file_location("made_up", path)
sys.modules["made_up"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


def test_a_package_that_writes_a_module_of_its_own_is_warm(other: Project, guard: Guard) -> None:
    """PyTorch does, in the place for temporary files: that is none of the trainer's."""
    install(other, "writes", WRITES)
    assert alike(other, guard, "import sys, writes\nprint('made_up' in sys.modules)\n") == "True\n"


LAZY = """
def __getattr__(name):
    if name != "Thing":
        raise AttributeError(name)
    import framework_part
    globals()["Thing"] = framework_part.Thing
    return framework_part.Thing
"""


def test_what_is_loaded_late_is_not_there_before(other: Project, guard: Guard) -> None:
    """An attribute that a later import sets, or replaces, is as it was until the trainer comes to that import."""
    install(other, "framework", f"def train(): pass\n{LAZY}")
    install(other, "framework_part", "class Thing: pass\n")
    install(other, "patches", "import framework\ndef train(): pass\nframework.train = train\n")
    said = alike(
        other,
        guard,
        "import framework, sys\n"
        "def show(): print('Thing' in vars(framework), 'framework_part' in sys.modules, framework.train.__module__)\n"
        "show()\nframework.Thing\nshow()\nimport patches\nshow()\n",
    )
    assert said.splitlines() == ["False False framework", "True True framework", "True True patches"]


def test_a_part_of_a_package_that_starts_a_thread_is_left_out_alone(other: Project) -> None:
    """Modules of the package that were imported before it stay warm."""
    install(other, "big/__init__", "print('imported big')\n")
    install(other, "big/threads", STARTS_THREAD)
    other.write("train.py", "import big, big.threads, threading\nprint(threading.active_count())\n")
    assert other.said() == ["imported big\n2\n", "2\n"]
    assert ["importing big.threads starts threads" in remark for remark in other.remarks] == [True]


def test_what_a_part_of_a_package_sets_is_set_for_the_next(other: Project, guard: Guard) -> None:
    """A variable that an import sets is no difference between trials, whichever module of a package sets it."""
    install(other, "wide/__init__", "")
    install(other, "wide/sets", "import os\nos.environ['WIDE_CACHE'] = '/cache'\n")
    install(other, "wide/uses", "import wide_locks\n")
    install(other, "wide_locks", "")
    alike(other, guard, "import os, wide, wide.sets, wide.uses\nprint(os.environ['WIDE_CACHE'])\n")


def test_a_framework_that_another_package_brings_is_observed(other: Project) -> None:
    """The observer acts on a framework that the trainer never imports itself, warm as cold."""
    install(other, "torch", "")  # without anything to observe in it, which is reported
    install(other, "library", "import torch\n")
    other.write("train.py", "import library\n")
    notes: list[list[str]] = []

    def watch(events: list[TraineeEvent]) -> None:
        notes[-1] += [event.text.partition(" cannot be observed")[0] for event in events if event.text]

    for _ in range(2):
        notes.append([])
        other.run("train.py", watch=watch)
    assert "torch:autograd.backward" in notes[0]
    assert notes[1] == notes[0]
