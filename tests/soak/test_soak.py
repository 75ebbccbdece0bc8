"""Short forms of the long checks that look for what nobody thought of, and the harness of all of them."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import run as autotune
from tests.real_trainers.table import TRAINERS
from tests.soak.__main__ import CHECKS
from tests.soak.fuzzers import OddProject, fuzz_edits, odd_projects
from tests.soak.harness import REPOSITORY, Result, Soak, check, run


def test_a_check_prints_a_line_a_case_and_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of the worst, what was made is deleted, and processes that were started have ended."""
    made: list[Any] = []

    def cases(soak: Soak) -> Any:
        """Both."""
        made.extend((soak.project(mood="x"), soak.start(soak.folder, sys.executable, "-c", "input()")))
        assert '\nmood: "x"\nout:' in (made[-2] / "config.yaml").read_text()
        yield from (Result(f"{name} {soak.options.size}", name == "b" and "no good") for name in soak.cases)

    x = check(cases=("a", "b"), options={"--size": 3})(cases)
    assert run(["cases"], [x]) == 1
    assert re.fullmatch(r"a 3\nb 3\n    WRONG: no good\ncases: 2 lines in \d s, 1 wrong\n", capsys.readouterr().out)
    assert run(["cases", "--only", "a", "--size", "4"], [x]) == 0
    assert capsys.readouterr().out.startswith("a 4\ncases: 1 lines")
    assert not any(project.parent.exists() for project in made[::2])
    assert all(process.returncode for process in made[1::2])


def test_what_the_pages_quote_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command with its options, as far as the page names them."""
    pages = "\n".join(page.read_text() for page in (REPOSITORY / "docs").glob("*.md")).replace("\n", " ")
    quoted = re.findall(r"`python -m tests\.soak ([^`]*)`", pages)
    assert len(quoted) >= 9
    for words in quoted:
        with pytest.raises(SystemExit) as ended:
            run([*words.split(), "--help"], CHECKS)
        assert ended.value.code == 0


def test_some_hundred_edits() -> None:
    """Each is exact or refused, whatever the text and the value."""
    counts, wrong = fuzz_edits(600, "suite")
    assert wrong == []
    assert counts["exact, confirmed by PyYAML and ruamel.yaml"] > 200
    assert counts["refused"] > 50


@pytest.mark.parametrize("project", odd_projects(10, seed=0)[::3], ids=lambda project: project[0][:40])
def test_odd_files(project: OddProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command that only reads takes one for a bug; the long form has them all."""
    monkeypatch.chdir(tmp_path)
    _, config, words = project
    Path("config.yaml").write_bytes(config)
    Path("train.py").write_text("")
    for command in (("search", "--dry-run"), ("status",), ("revert",)):
        assert autotune([*command, "--config", "config.yaml"]) in (0, 1)
    assert autotune(["search", "--dry-run", "--config", "config.yaml", "--", *words]) in (0, 1)


@pytest.mark.parametrize(
    "typed",
    [
        "answers --times 2 --seed 1",
        "standing --times 2 --seed 1",
        pytest.param("netns --budget 45 --after 8 --cut 10", marks=pytest.mark.services),
        pytest.param("slurm --workers 3 --budget 40", marks=pytest.mark.services),
    ],
)
def test_a_short_form_finds_nothing_wrong(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Answers that were judged, in whichever order; hosts that are cut off; more workers than nodes."""
    assert run(typed.split(), CHECKS) == 0, capsys.readouterr().out


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_rows_are_sound(trainer: Any) -> None:
    """Each has the form of its progress lines, and a repository that a reader can clone."""
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", trainer.repository)
    assert re.compile(trainer.log.pattern).groupindex.keys() <= {"n"}
    assert trainer.command.startswith("python ")
    assert trainer.needs
    in_command = str(trainer.batch).rpartition(".")[2] in trainer.command.replace("-", "_")
    assert isinstance(trainer.batch, int) or in_command or trainer.init != ("--from-flags",)


def test_missing_checkouts_are_skipped_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the repository that it is of."""
    names = [trainer.name for trainer in TRAINERS if trainer.package is None]
    assert run(["real", str(tmp_path), "--only", *names], CHECKS) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert [line.split()[0] for line in lines] == names
    assert all(" skipped: " in line and "/" in line.rpartition(" of ")[2] for line in lines)
