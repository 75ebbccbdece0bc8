"""Trials forked from a zygote: like those of a fresh process, and given up where they cannot be."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autotune.clock import SystemClock
from autotune.errors import CommandError
from autotune.records import TrialPlan
from autotune.trial.folders import temporary_folder
from autotune.trial.launch import Guard, ProcessRunner, Runner, end_orphans
from autotune.trial.warm import MOST_ZYGOTES, ZygoteRunner
from tests.trial.conftest import SAME_ENVIRONMENT, STARTS_THREAD, Project, Trials, install
from tests.trial.runner_contract import Behaviour, RunnerContract
from tests.trial.test_guard import Search, gone
from tests.trial.test_launch import WORDS
from tests.until import until

NUMPY_TRAINER = Path(__file__).with_name("numpy_trainer.py")
SHOWS = Path(__file__).with_name("zygote_trainer.py")
REPORTS_ONE_STEP = """
import json, os, time
def step():
    with open(os.path.join(os.environ["AUTOTUNE_TRIAL_DIR"], f"steps.{os.getpid()}.0.jsonl"), "a") as file:
        if not file.tell():
            file.write(json.dumps({"v": 1, "clock": "monotonic", "start_s": time.monotonic()}) + "\\n")
        file.write(json.dumps({"k": "step", "t_s": time.monotonic()}) + "\\n")
"""


def below(guard: Guard) -> list[psutil.Process]:
    """Return the descendants of the guard."""
    return [p for p in psutil.Process(guard.pid).children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


class TestZygoteRunner(RunnerContract):
    """A fork of an interpreter that has imported NumPy keeps the contract."""

    clock = SystemClock()
    runner: ZygoteRunner

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def warm(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """Have a zygote for all of these tests."""
        with Guard() as guard:
            cls.runner = ZygoteRunner(guard, cls.clock)
            for _ in range(2):
                plan = cls().plan(Behaviour.ENDS_WELL, tmp_path_factory.mktemp("first"))
                assert cls.runner.run(plan, lambda _: None, cls.clock.now_s() + 60.0).exit_code == 0
            assert cls.runner.warm_starts == 1
            yield

    @contextmanager
    def opened(self) -> Iterator[Runner]:
        """See `RunnerContract.opened`."""
        yield self.runner
        assert self.runner.fallbacks == 0

    def plan(self, behaviour: Behaviour, folder: Path) -> TrialPlan:
        """See `RunnerContract.plan`."""
        return TrialPlan(
            trial_id="contract",
            folder=folder / "run",
            argv=(sys.executable, str(NUMPY_TRAINER), *WORDS[behaviour]),
            cwd=Path(__file__).parent,
            env=SAME_ENVIRONMENT,
            config_text="",
        )


@pytest.fixture
def project(tmp_path: Path, zygotes: ZygoteRunner, remarks: list[str]) -> Project:
    """A trainer that imports NumPy, in a folder with a hostile name, with the interpreter of the tests."""
    hostile = tmp_path / 'it\'s a\n"project" ü'
    (hostile / "package").mkdir(parents=True)
    for name in ("shows.py", "package/__init__.py", "package/shows.py", "package/__main__.py"):
        (hostile / name).write_text("" if name.endswith("__init__.py") else SHOWS.read_text())
    (hostile / "link.py").symlink_to("package/shows.py")
    return Project(hostile, sys.executable, zygotes, remarks)


FEW_WAYS = [("shows.py",), ("-m", "package.shows", "fails")]
WAYS = [
    *FEW_WAYS,
    ("./shows.py", "fails"),
    ("package/../shows.py", "exits", "0"),
    ("shows.py", "exits", "3"),
    ("shows.py", "exits with words"),
    ("shows.py", "exits at once"),
    ("shows.py", "is interrupted"),
    ("shows.py", "kills itself"),
    ("shows.py", "has a hook"),
    ("shows.py", "has a last word"),
    ("shows.py", "leaves a thread"),
    ("shows.py", "spawns"),
    ("link.py", "fails"),
    ("-m", "package"),
    ("-m", "package.shows", "is interrupted"),
    ("-m", "package.shows", "spawns"),
    ("-m", "shows", "--flag", "two words", "ü"),
    ("-m", "no.such.module"),
    ("syntax.py",),
    ("latin.py",),
]


@pytest.mark.parametrize(
    ("options", "ways"),
    [
        ((), FEW_WAYS),
        pytest.param((), WAYS, marks=pytest.mark.services),
        pytest.param(("-O", "-u", "-Wdefault", "-X", "utf8"), WAYS, marks=pytest.mark.services),
    ],
    ids=["few", "all", "all with options"],
)
def test_a_warm_trial_sees_and_says_what_a_fresh_one_does(
    options: tuple[str, ...], ways: list[tuple[str, ...]], project: Project, guard: Guard
) -> None:
    """Words, paths, environment, streams, descriptors, endings and tracebacks are those of a fresh process."""
    project.write("syntax.py", "import numpy\n\nx = = 1\n")
    (project.folder / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n")
    fresh = ProcessRunner(guard, project.clock)
    for words in ways:
        before = project.runner.warm_starts
        # Each command shows its imports first; those that differ in arguments alone are one.
        (expected, *said), *warm = (
            project.run(*options, *words, runner=runner, env={"A": "b=ü\n"})
            for runner in (fresh, project.runner, project.runner)
        )
        for found, *says in warm:
            assert says == said, words
            assert (found.exit_code, found.stop) == (expected.exit_code, expected.stop), words
        assert project.runner.fallbacks == 0, (words, project.remarks)
        assert project.runner.warm_starts > before or words[-1] in ("no.such.module", "syntax.py", "latin.py"), words


def test_random_numbers_differ_from_trial_to_trial(project: Project) -> None:
    """Generators that a fresh process seeds by itself are not copies of one another."""
    project.write("train.py", "import random, numpy\nprint(random.random(), numpy.random.rand())\n")
    assert len({text for pair in project.said(times=3) for text in pair.split()}) == 6


def test_random_numbers_of_pytorch_differ_from_trial_to_trial(project: Project) -> None:
    """Its global generator gets a seed at its import, which comes before the fork."""
    pytest.importorskip("torch")
    project.write("train.py", "import torch\nprint(torch.rand(1, dtype=torch.float64).item())\n")
    assert len(set(project.said(times=3))) == 3
    assert project.runner.warm_starts > 0


def test_another_environment_is_served_without_autotune_on_its_path(other: Project) -> None:
    """The interpreter of the command imports its own packages once, and nothing of ours."""
    install(other, "framework", "print('imported')\nimport email\n")
    other.write(
        "train.py",
        "import sys, importlib.util\nprint(sorted(m for m in ('framework', 'email') if m in sys.modules))\n"
        "print(importlib.util.find_spec('autotune'), any(name.startswith('autotune') for name in sys.modules))\n"
        "import framework\nprint(framework.__file__.startswith(sys.prefix), framework.__spec__.name)\n",
    )
    assert [said.splitlines() for said in other.said()] == [
        ["[]", "None False", "imported", "True framework"],
        ["[]", "None False", "True framework"],
    ]
    assert other.forks == (1, 0)


STARTS_LATE = """
import os, threading
os.register_at_fork(after_in_parent=threading.Thread(target=threading.Event().wait, daemon=True).start)
"""


def test_what_is_imported_before_a_package_that_starts_a_thread_is_warm(other: Project, guard: Guard) -> None:
    """From that package on each trial imports by itself, and the user is told."""
    install(other, "threads", STARTS_THREAD)
    install(other, "good", "print('imported good')\n")
    install(other, "late", "print('imported late')\n")
    other.write("train.py", "import good, threads, late\nimport threading\nprint(threading.active_count())\n")
    assert other.said() == ["imported good\nimported late\n2\n", "imported late\n2\n"]
    assert other.forks == (1, 0)
    (remark,) = other.remarks
    assert remark == (
        "importing threads starts threads, so each trial imports it and the modules after threads separately"
    )
    assert len(below(guard)) == 1


@pytest.mark.parametrize("package", [STARTS_THREAD, STARTS_LATE], ids=["at once", "when it is forked"])
def test_where_the_first_package_starts_a_thread_there_are_no_forks(package: str, other: Project, guard: Guard) -> None:
    """Nothing is left to import beforehand, and a thread may hang its forks."""
    install(other, "threads", package)
    other.write("train.py", "import threads\nprint('trained')\n")
    assert other.said() == ["trained\n"] * 2
    assert other.forks == (0, 0)
    assert other.remarks == ["importing threads starts threads, so each trial imports it separately"]
    assert below(guard) == []


def test_a_package_that_ends_the_interpreter_turns_warm_starts_off(other: Project, guard: Guard) -> None:
    """An import that works for the trainer alone costs the warm starts, and no trial."""
    install(other, "harsh", "import os, sys\nif not hasattr(sys, 'set_up'): os._exit(3)\n")
    other.write("train.py", "import sys\nsys.set_up = True\nimport harsh\nprint('trained')\n")
    assert other.said() == ["trained\n"] * 2
    assert other.runner.warm_starts == 0
    (remark,) = other.remarks
    assert remark.startswith("warm starts are off: the warm interpreter could not be started (it exited)")
    assert below(guard) == []


def test_a_package_that_cannot_be_imported_beforehand_is_skipped(other: Project) -> None:
    """One that needs what the trainer sets up first is left to the trainer."""
    install(other, "needy", "import sys\nif not hasattr(sys, 'set_up'): raise SystemExit('not set up')\n")
    other.write("train.py", "import sys\nsys.set_up = True\nimport needy\nprint('trained')\n")
    assert other.said() == ["trained\n"] * 2
    assert other.runner.fallbacks == 0


def test_each_fork_looks_up_its_own_place_for_temporary_files(other: Project) -> None:
    """Though an import had looked it up before; what the import made of it is one that outlives the trials."""
    install(other, "early", "import tempfile\nplace = tempfile.gettempdir()\n")
    other.write("train.py", "import early, tempfile\nprint(tempfile.gettempdir())\nprint(early.place)\n")
    said = []
    for number in range(3):
        folder = temporary_folder(other.folder / "runs" / str(other.trials + 1))
        said.append(other.run("train.py", env={"TMPDIR": str(folder)})[1].splitlines())
        assert said[number][0] == str(folder)
        shutil.rmtree(folder)
    assert other.forks == (2, 0)
    assert said[1][1] == said[2][1]
    assert os.path.realpath(said[1][1]) == os.path.realpath(tempfile.gettempdir())


SETS_CACHE = """
import os, tempfile
place = os.environ.setdefault('FRAMEWORK_CACHE', os.path.abspath(os.path.join(tempfile.gettempdir(), 'framework')))
"""


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_a_variable_below_the_place_for_temporary_files_is_no_difference(
    is_elsewhere: bool, other: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that an import sets to a folder for temporary files names the trial's own, warm as cold."""
    monkeypatch.setenv("DATA", os.path.join(tempfile.gettempdir(), "data"))  # and is no trial's
    install(other, "framework", SETS_CACHE)
    install(other, "later", "")
    other.write(
        "train.py",
        "import framework\nimport later\nimport os\nprint(os.environ['FRAMEWORK_CACHE'], os.environ['DATA'])\n",
    )
    for number in (1, 2):
        own = temporary_folder(other.folder / "runs" / str(number))
        folder = tmp_path / f"elsewhere {number}" if is_elsewhere else own
        if is_elsewhere:
            folder.mkdir()
        said = other.run("train.py", env={"TMPDIR": str(folder)})[1]
        assert said == f"{folder}/framework {tempfile.gettempdir()}/data\n"
        shutil.rmtree(folder)
    assert (other.forks, other.remarks) == ((1, 0), [])


LOCKS = """
import os, threading
lock = threading.Lock()
os.register_at_fork(before=lock.acquire, after_in_parent=lock.release)  # and never in the child
"""


def test_a_fork_that_hangs_is_made_again_and_there_are_no_more(other: Project, guard: Guard, monkeypatch) -> None:
    """The trial is made by a fresh process in the same call, and it is said."""
    monkeypatch.setattr("autotune.trial.warm.SILENCE_S", 1.0)
    install(other, "locks", LOCKS)
    other.write("train.py", REPORTS_ONE_STEP + "import locks\nwith locks.lock: step()\nprint('trained')\n")
    for fallbacks in (0, 1, 1):
        ended, said, _ = other.run("train.py")
        assert (ended.exit_code, ended.stop, said) == (0, None, "trained\n")
        assert other.runner.fallbacks == fallbacks
        assert len(list((other.folder / "runs" / str(other.trials)).glob("steps.*"))) == 1
    (remark,) = other.remarks
    assert remark.startswith("warm starts are off: a trial showed no activity for 1 s after its fork")
    assert below(guard) == []


READS_ENVIRONMENT = "import os\nSEEN = os.environ.get('FRAMEWORK_MODE')\nos.environ['FRAMEWORK_LOADED'] = '1'\n"


def test_what_the_trainer_sets_before_an_import_counts(other: Project) -> None:
    """A variable that is set by the script itself is set for the import beforehand too, and so is what that sets."""
    install(other, "framework", READS_ENVIRONMENT)
    other.write(
        "train.py",
        "import argparse, os\nos.environ['FRAMEWORK_MODE'] = 'slow'\n"
        "os.environ['LOGS'] = os.environ['AUTOTUNE_TRIAL_DIR'] + '/logs'\n"
        "print('FRAMEWORK_LOADED' in os.environ)\nimport framework\n"
        "print(framework.SEEN, os.environ['FRAMEWORK_LOADED'])\n",
    )
    assert other.said() == ["False\nslow 1\n"] * 2
    assert other.forks == (1, 0)


def test_a_trainer_that_sets_it_otherwise_gets_a_fresh_process(other: Project) -> None:
    """No trial sees what was imported under another value, and the user is told which variable it was."""
    install(other, "framework", READS_ENVIRONMENT)
    other.write(
        "train.py",
        "import os, sys\nos.environ['FRAMEWORK_MODE'] = sys.argv[1]\nimport framework\nprint(framework.SEEN)\n",
    )
    modes = ["slow", "slow", "fast", "slow"]
    assert [other.run("train.py", mode)[1].strip() for mode in modes] == modes
    assert other.forks == (2, 1)
    assert ["FRAMEWORK_MODE differs from the first trial" in remark for remark in other.remarks] == [True]


@pytest.mark.parametrize(
    ("package", "variable"),
    [("framework", "CUBLAS_WORKSPACE_CONFIG"), ("framework", "PYTHONHASHSEED"), ("pkg_resources", "DEVICES")],
)
def test_what_no_import_reads_may_be_set_otherwise(package: str, variable: str, other: Project) -> None:
    """As trainers do that seed everything: cuBLAS reads its variable later, Python its own when it starts.

    Packaging tools read none: who looks for versions imports them on the way, before or after a trainer sets things.
    """
    install(other, package, "")
    other.write(
        "train.py",
        f"import os, sys\nos.environ['{variable}'] = sys.argv[1]\nimport {package}\nprint(os.environ['{variable}'])\n",
    )
    assert [other.run("train.py", value)[1] for value in "12"] == ["1\n", "2\n"]
    assert other.forks == (1, 0)


def test_a_variable_that_is_read_late_may_differ(other: Project, guard: Guard) -> None:
    """XLA's flags belong to the trial, not to the import; another variable of the plan means another interpreter."""
    install(other, "framework", READS_ENVIRONMENT)
    other.write("train.py", "import os, framework\nprint(os.environ['XLA_FLAGS'], framework.SEEN)\n")
    assert [other.run("train.py", env={"XLA_FLAGS": flags})[1] for flags in "ab"] == ["a None\n", "b None\n"]
    assert other.runner.warm_starts == 1
    for mode in ("one", "two", "three"):
        assert other.run("train.py", env={"XLA_FLAGS": "d", "FRAMEWORK_MODE": mode})[1] == f"d {mode}\n"
    assert other.runner.warm_starts == 1
    assert len(below(guard)) <= MOST_ZYGOTES


def test_a_module_of_the_trainers_own_goes_first(other: Project) -> None:
    """A file beside the script hides the standard library's module of that name, as it always does."""
    install(other, "framework", "import email\n")
    other.write("train.py", "import framework, email as it\nprint(getattr(it, 'NAME', it.__name__))\n")
    assert other.said() == ["email\n"] * 2
    other.write("email.py", "NAME = 'own'\n")
    assert other.said(times=1) == ["own\n"]
    assert other.forks == (1, 1)


def test_a_package_that_needs_a_module_of_the_trainers_own_is_the_trials_to_import(other: Project) -> None:
    """An own module of the name of an installed package is the trainer's to import, and what imports it is, too."""
    install(other, "datasets", "NAME = 'installed'\n")
    install(other, "good", "import sys\nprint('imported good')\n")
    install(other, "needs", "import datasets, part_of_needs\nNAME = datasets.NAME\n")
    install(other, "part_of_needs", "print('imported part')\n")
    other.write("datasets.py", "NAME = 'own'\n")
    other.write("train.py", "import good, needs, datasets\nprint(datasets.NAME, needs.NAME)\n")
    assert other.said() == ["imported good\nimported part\nown own\n", "imported part\nown own\n"]
    assert other.forks == (1, 0)
    (remark,) = other.remarks
    assert "importing needs needs one of the trainer's modules" in remark


def test_what_a_wrapper_around_the_interpreter_sets_stays(other: Project) -> None:
    """A script in the interpreter's place may set variables; so does Python itself in the C locale."""
    wrapper = other.folder / "bin" / "python"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexport WRAPPED=yes\nunset UNWANTED\nexec {other.python} "$@"\n')
    wrapper.chmod(0o700)
    install(other, "framework", "")
    other.write(
        "train.py",
        "import os, framework\nnames = ('LC_CTYPE', 'WRAPPED', 'UNWANTED')\n"
        "print([(name, os.environ[name]) for name in names if name in os.environ])\n",
    )
    env = {"UNWANTED": "1", "LC_ALL": "", "LANG": "C", "LC_CTYPE": ""}
    said = other.said(argv=("bin/python", "train.py"), env=env)
    assert said == ["[('LC_CTYPE', 'C.UTF-8'), ('WRAPPED', 'yes')]\n"] * 2
    assert other.runner.warm_starts == 1


@pytest.fixture
def warm(other: Project, guard: Guard) -> psutil.Process:
    """The zygote of a trainer that imports one package, which says so."""
    install(other, "framework", "print('imported')\n")
    other.write("train.py", "import framework\nprint('trained')\n")
    assert other.said() == ["imported\ntrained\n", "trained\n"]
    until(lambda: len(below(guard)) == 1)  # the trials' own are about to be gone
    (zygote,) = below(guard)
    return zygote


def test_a_killed_zygote_costs_warm_starts_and_no_trial(other: Project, warm: psutil.Process) -> None:
    """Whoever killed it may do so again."""
    warm.kill()
    assert gone(warm.pid)
    assert other.said(times=1) == ["imported\ntrained\n"]
    assert other.runner.fallbacks == 1
    assert other.remarks[0].startswith("warm starts are off: a trial could not be forked (the zygote exited)")


def test_a_killed_guard_takes_its_zygotes_along(other: Project, guard: Guard, warm: psutil.Process) -> None:
    """The next trial has a new guard and a new zygote, and nothing of the old ones is left."""
    os.kill(guard.pid, signal.SIGKILL)
    os.waitid(os.P_PID, guard.pid, os.WEXITED | os.WNOWAIT)  # a guard that is about to die would lose the next trial
    assert gone(warm.pid)
    assert other.said(times=1) == ["trained\n"]
    assert other.runner.fallbacks == 0


def test_orphan_cleanup_finds_a_zygote(other: Project, warm: psutil.Process) -> None:
    """It carries the study in its environment, and is not spared for having no trial."""
    assert end_orphans(other.folder / "runs", SystemClock()).killed == (warm.pid,)


def test_a_stop_spares_nothing_but_the_zygote(trials: Trials, zygotes: ZygoteRunner, guard: Guard) -> None:
    """A daemon that ignores SIGTERM ends too; only the warm interpreter is there when the trial is over."""
    zygotes.run(trials.plan(argv=(sys.executable, str(NUMPY_TRAINER), "trains", "1")), lambda _: None, trials.soon())
    plan = trials.plan(argv=(sys.executable, str(NUMPY_TRAINER), "leaves", "daemon"))
    ended = zygotes.run(plan, trials.when_ready, trials.soon())
    assert ended.left_pids == ()
    until(lambda: len(below(guard)) == 1)
    assert (zygotes.warm_starts, zygotes.fallbacks) == (1, 0)


def test_the_usage_of_a_trial_is_its_own(other: Project) -> None:
    """The zygote's own usage counts for no trial."""
    install(other, "burns", "import time\nwhile time.process_time() < 0.3: pass\n")
    other.write("train.py", "import burns\n")
    _, used = (other.run("train.py")[0] for _ in range(2))
    assert used.cpu_s < 0.3


def test_what_cannot_be_started_is_said_as_always(trials: Trials, zygotes: ZygoteRunner) -> None:
    """A missing script or directory, or another program, is an error of the command."""
    with pytest.raises(CommandError, match="cannot be entered"):
        zygotes.run(trials.plan("silent", cwd=trials.study / "gone"), lambda _: None, trials.soon())
    ended = zygotes.run(trials.plan(argv=(sys.executable, "absent.py")), lambda _: None, trials.soon())
    assert (ended.exit_code, "can't open file" in ended.stderr_tail) == (2, True)
    assert zygotes.run(trials.plan(argv=("/bin/sh", "-c", "exit 7")), lambda _: None, trials.soon()).exit_code == 7


def test_a_killed_search_leaves_no_zygote(trials: Trials) -> None:
    """Trial and zygote end with the guard, and that with the search."""
    search = Search(trials, "--warm", "leaves", "daemon")
    try:
        members = psutil.Process(search.guard).children(recursive=True)
        assert len(members) >= 3  # zygote, trial, daemon
        search.process.kill()
        assert gone(search.guard)
        until(lambda: not any(member.is_running() and member.status() != "zombie" for member in members))
    finally:
        search.close()


def test_a_trial_that_has_made_steps_is_never_begun_again(other: Project) -> None:
    """Even if the trainer then writes the file by which a trial gives up: its steps would count twice."""
    install(other, "reports", REPORTS_ONE_STEP)
    other.write(
        "train.py",
        "import os, time, reports\n"
        "for _ in range(20):\n    reports.step()\n    time.sleep(0.02)\n"
        "open(os.path.join(os.environ['AUTOTUNE_TRIAL_DIR'], 'unfit.txt'), 'w').close()\nprint('once')\n",
    )
    assert other.said() == ["once\n"] * 2
    assert other.forks == (1, 0)
