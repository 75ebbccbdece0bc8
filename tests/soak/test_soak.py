"""Short forms of the long checks, and the harness of all of them."""

import re
import sys
from typing import Any

import pytest

from tests.real_trainers.table import TRAINERS
from tests.soak.__main__ import CHECKS
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
    assert re.fullmatch(r"a 3\nb 3\n    WRONG: no good\ncases: 2 lines in \d+ s, 1 wrong\n", capsys.readouterr().out)
    assert run(["cases", "--only", "a", "--size", "4"], [x]) == 0
    assert capsys.readouterr().out.startswith("a 4\ncases: 1 lines")
    assert not any(project.parent.exists() for project in made[::2])
    assert all(process.returncode for process in made[1::2])


def test_what_the_pages_quote_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command with its options, as far as the page names them."""
    pages = "\n".join(page.read_text() for page in (REPOSITORY / "docs").glob("*.md")).replace("\n", " ")
    quoted = re.findall(r"`python -m tests\.soak ([^`]*)`", pages)
    assert quoted
    for words in quoted:
        with pytest.raises(SystemExit) as ended:
            run([*words.split(), "--help"], CHECKS)
        assert ended.value.code == 0


@pytest.mark.services
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "typed",
    [
        pytest.param("kill --times 6 --jobs 2", marks=pytest.mark.core),
        "page --only tab --trials 1000 --tab 600",
    ],
)
def test_a_short_form_finds_nothing_wrong(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Thirty SIGKILLs: no finished trial is lost, no process left, the config intact; ten minutes of the page."""
    assert run(typed.split(), CHECKS) == 0, capsys.readouterr().out


def test_the_table_of_real_trainers_is_sound(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """Each row has a repository and the form of its progress lines; a missing checkout is named, and skipped."""
    for trainer in TRAINERS:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", trainer.repository)
        assert re.compile(trainer.log.pattern).groupindex.keys() <= {"n"}
        assert trainer.command.startswith("python ")
        assert trainer.needs
        in_command = str(trainer.batch).rpartition(".")[2] in trainer.command.replace("-", "_")
        assert isinstance(trainer.batch, int) or in_command or trainer.init != ("--from-flags",)
    names = [trainer.name for trainer in TRAINERS if trainer.package is None]
    assert run(["real", str(tmp_path), "--only", *names], CHECKS) == 0
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert [line.split()[0] for line in lines] == names
    assert all(" skipped: " in line and "/" in line.rpartition(" of ")[2] for line in lines)
