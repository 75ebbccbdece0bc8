"""``autotune study``: studies are listed, shown, exported, imported and deleted, as their user types it."""

import json
import os
import shutil
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from autotune.clock import VirtualClock
from autotune.commands.studies import Studies
from autotune.errors import StudyBusy
from autotune.records import Purpose, Scalar
from autotune.search.hardware import this_machine
from autotune.search.problem import Problem, open_problem
from autotune.study.claims import Owner
from autotune.study.members import Member, MemberPhase, Role
from autotune.study.record import StudyRecord
from autotune.study.storage.lock import sole_search
from autotune.study.travel import MANIFEST, read_export
from tests.command_line import CommandLine
from tests.runs import MakeTrial
from tests.study.storages import fill

CHOICES: dict[str, tuple[Scalar, ...]] = {"data.batch_size": (4, 16, 64), "data.num_workers": (1, 2)}
TODAY = {"data.batch_size": 4, "data.num_workers": 1}


@pytest.fixture
def autotune(project: Path) -> CommandLine:
    """Command line in the project."""
    return CommandLine(project)


@pytest.fixture
def study(project: Path, make_trial: MakeTrial) -> str:
    """Make a study of the project's config; return its name."""
    problem = open_problem(project / "config.yaml", command=None, state_dir=None)
    problem.state.create()
    trials = [
        make_trial(TODAY, 60.0, purpose=Purpose.BASELINE, conditions=problem.conditions),
        make_trial({**TODAY, "data.batch_size": 64}, 70.0, conditions=problem.conditions),
    ]
    fill(problem.storage, trials, choices=CHOICES, name=problem.study)
    return problem.study


def trials_of(autotune: CommandLine, *where: str) -> dict[str, int]:
    """Return the numbers of trials of the studies that are listed."""
    return {one["study"]: one["trials"] for one in autotune("study", "list", *where, "--json").document["studies"]}


def test_a_study_goes_to_another_checkout_and_back(
    project: Path, autotune: CommandLine, study: str, tmp_path: Path
) -> None:
    """Exported here and imported there for the same config, it is the study that is found there, with its trials."""
    file = tmp_path / "my study.journal"
    out = autotune("study", "export", str(file), "--config", "config.yaml")
    assert (out.returncode, out.stdout) == (0, f"Exported 2 trials of study {study} to {file}.\n"), out.stderr
    there = tmp_path / "there"  # a second machine's checkout of the project
    there.mkdir()
    shutil.copy(project / "config.yaml", there)
    where = ("--config", str(there / "config.yaml"), "--state-dir", str(there / "state"))
    done = autotune("study", "import", str(file), *where, "--json").document
    assert (done["study"], done["added"], done["known"]) == (study, 2, 0)
    again = tmp_path / "again.journal"
    assert autotune("study", "export", str(again), *where).returncode == 0
    assert read_export(again).trials.keys() == read_export(file).trials.keys()
    assert autotune("study", "import", str(again), "--config", "config.yaml", "--json").document["added"] == 0
    status = autotune("status", *where)
    assert f"Study {study}: 2 trials" in status.stdout


def test_without_a_config_the_file_says_the_study(autotune: CommandLine, study: str, tmp_path: Path) -> None:
    """An import into a storage alone takes the name in the file; list and show tell of it."""
    file = tmp_path / "study.journal"
    autotune("study", "export", str(file), "--study", study)
    storage = f"sqlite:{tmp_path / 'studies.db'}"
    assert autotune("study", "import", str(file), "--storage", storage).returncode == 0
    assert trials_of(autotune, "--storage", storage) == {study: 2}
    assert study in autotune("study", "list", "--storage", storage).stdout
    shown = autotune("study", "show", "--storage", storage).well()
    assert "2 trials" in shown.stdout
    assert autotune("study", "show", "--storage", storage, "--json").document["members"] == []


def test_a_study_of_another_config_is_refused(project: Path, autotune: CommandLine, study: str, tmp_path: Path) -> None:
    """Another training, other hardware, other frameworks or another command: what differs is said, and what helps."""
    file = tmp_path / "study.journal"
    autotune("study", "export", str(file), "--config", "config.yaml")
    named, manifest, *rest = map(json.loads, file.read_text().splitlines())
    stem, training, frameworks, command = study.rsplit("-", 3)
    cases = {
        f"{stem}-{'0' * 8}-{frameworks}-{command}": "of another study: gpus A100",
        f"{stem}-{training}-ffff-{command}": "of another study: its frameworks are torch 1.0",
        f"{stem}-{training}-{frameworks}-ffff": "its trainer's command differs",
    }
    for name, says in cases.items():
        manifest["user_attr"][MANIFEST] |= {"hardware": {"gpus": ["A100"]}, "frameworks": {"torch": ["1.0"]}}
        entries = [{**named, "study_name": name}, manifest, *rest]
        other = tmp_path / "other.journal"
        other.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        said = autotune("study", "import", str(other), "--config", "config.yaml").refusal()
        assert says in said
        assert "without --config" in said.lower()


def test_a_study_is_deleted_into_the_trash_and_comes_back(project: Path, autotune: CommandLine, study: str) -> None:
    """Without a yes nothing happens; with it the study moves, and the command that is said brings it back."""
    refused = autotune("study", "delete", "--config", "config.yaml")
    assert (refused.returncode, "--yes" in refused.stderr) == (1, True)
    done = autotune("study", "delete", "--config", "config.yaml", "--yes", "--json").document
    assert trials_of(autotune) == {}
    assert Path(done["trash"]).is_dir()
    assert os.system(f"cd {json.dumps(str(project))} && {done['to_get_it_back']}") == 0
    assert trials_of(autotune) == {study: 2}


def test_a_study_in_a_database_is_exported_before_it_is_deleted(
    autotune: CommandLine, study: str, tmp_path: Path
) -> None:
    """The trash of a database holds a file that brings the study back."""
    file, storage = tmp_path / "study.journal", f"sqlite:{tmp_path / 'studies.db'}"
    autotune("study", "export", str(file), "--config", "config.yaml")
    autotune("study", "import", str(file), "--storage", storage)
    done = autotune("study", "delete", "--storage", storage, "--yes", "--json").document
    assert trials_of(autotune, "--storage", storage) == {}
    kept = Path(done["trash"]) / f"{study}.journal"
    assert read_export(kept).trials.keys() == read_export(file).trials.keys()
    assert autotune("study", "import", str(kept), "--storage", storage).returncode == 0


def test_a_study_that_somebody_works_on_stays(project: Path, autotune: CommandLine, study: str) -> None:
    """While a search holds a study on this machine, it is not deleted."""
    state = open_problem(project / "config.yaml", command=None, state_dir=None).state
    with sole_search(state.search_lock(study, this_machine((), {}, {}).name), study):
        done = autotune("study", "delete", "--config", "config.yaml", "--yes")
    assert done.returncode == 1
    assert "another search or worker on this machine is using" in done.stderr
    assert trials_of(autotune) == {study: 2}


def member(problem: Problem, about: Mapping[str, Scalar], renewed_utc: datetime) -> Member:
    """Return a member at work on a machine, of that sign of life."""
    return Member(
        uuid="a" * 32, role=Role.WORKER, search="s9", machine="0badcafe",
        baseline=problem.space.name(problem.space.baseline), about=about, since_utc=renewed_utc,
        renewed_utc=renewed_utc,
    )  # fmt: skip


def test_a_study_stays_whose_member_has_a_clock_that_is_an_hour_off(project: Path, study: str) -> None:
    """It goes on giving signs of life, whatever time they bear; one that is silent was killed."""
    problem = open_problem(project / "config.yaml", command=None, state_dir=None)
    place = Studies(state=problem.state, storage=problem.storage, shown="here", problem=problem)
    clock = VirtualClock()
    owner = Owner(about={"host": "elsewhere"}, is_gone=lambda _about: False, clock=clock, ends_s=9e9)
    working = StudyRecord(study, problem.storage, owner=owner)
    working.join(member(problem, owner.about, clock.utc()))

    class Later(VirtualClock):
        """Clock that is an hour ahead, and beside which the member works on."""

        def utc(self) -> datetime:
            return clock.utc() + timedelta(hours=1)

        def wait(self, seconds: float) -> None:
            working.members.describe(phase=MemberPhase.EXPLORING)
            working.refresh()

    with pytest.raises(StudyBusy, match=r"1 processes are working on study .*, one on 'elsewhere'"):
        place.delete(study, Later())
    working.close()
    clock.wait(3600.0)
    said, *_ = place.delete(study, clock)
    assert list(Path(said["trash"]).glob("*.journal"))
