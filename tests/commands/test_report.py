"""``autotune report`` as its user has it: real searches of a toy trainer, and the file that is left."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune, start_search
from tests.report.html.validity import checked, part, pictures, words

REPORT = ("report", "--config", "config.yaml")


@pytest.mark.usefixtures("searched")
def test_a_search_leaves_its_report(project: Path, autotune: Autotune) -> None:
    """`search --report FILE` writes it; `report` writes the same again; `--against` sets another study beside it."""
    done = autotune("search", "--config", "config.yaml", "--budget", "8s", "--report", "kept/r.html")
    assert done.returncode == 0, done.stderr
    assert "Report: kept/r.html" in done.stderr
    page = checked(project / "kept/r.html")
    assert "as fast as today's config" in words(page)
    assert "num_workers" in part(page, "changes")
    assert {"All trials, and the best speed so far", "Confirming pairs", "How long steps take"} <= pictures(page).keys()
    assert "+ num_workers: 2 # loaders" in part(page, "changes")
    again = autotune(*REPORT, "-o", "kept/r.html")
    assert again.stdout == "kept/r.html\n"
    assert part(checked(project / "kept/r.html"), "trials") == part(page, "trials")
    assert autotune(*REPORT, "-o", "kept/r.md").returncode == 0
    text = (project / "kept/r.md").read_text()
    assert text.startswith("## Better: ")
    assert "| data.num_workers | 1 | 2 |" in text
    assert "```diff" in text
    assert re.search(r"(?m)^\+ +num_workers: 2 +# loaders", text)
    (project / "other.yaml").write_text(
        (project / "config.yaml").read_text().replace("batch_size: 4 ", "batch_size: 16")
    )
    alone = autotune(*REPORT, "--against", "other.yaml")
    assert alone.returncode == 1
    assert "nothing is known about this config yet" in alone.stderr
    study = json.loads(autotune("status", "--config", "config.yaml", "--json").stdout)["study"]
    both = autotune(*REPORT, "--against", study, "-o", "both.html")
    assert both.returncode == 0, both.stderr
    assert part(checked(project / "both.html"), "studies").count("better") == 2


def test_a_search_that_goes_on_and_one_that_was_killed(project: Path, autotune: Autotune) -> None:
    """What is known so far, and that it is not over; then that it was interrupted."""
    with start_search(project, 120.0) as search:
        assert search.stderr is not None
        for line in search.stderr:
            if "explore" in line:
                break
        during = autotune(*REPORT, "-o", "r.html")
        search.kill()
    assert during.returncode == 0, during.stderr
    assert "still going on" in words(checked(project / "r.html"))
    assert autotune(*REPORT, "-o", "r.html").returncode == 0
    assert "The search was interrupted" in words(checked(project / "r.html"))


def test_a_search_in_which_everything_failed(project: Path, autotune: Autotune) -> None:
    """The command fails as it does, and the report says what went wrong."""
    config = project / "config.yaml"
    config.write_text(config.read_text().replace("out:", "mood: crashes\nout:"))
    done = autotune("search", "--config", "config.yaml", "--budget", "20s", "--report", "r.html")
    assert done.returncode == 1
    page = checked(project / "r.html")
    assert "No answer" in words(page)
    assert "there is no such layer" in part(page, "trials")
    assert "crashed: " in part(page, "trials")


@pytest.mark.parametrize("plant", [lambda path: path.write_text("mine"), lambda path: path.symlink_to("config.yaml")])
def test_nobodys_file_is_replaced(project: Path, autotune: Autotune, plant: Callable[[Path], object]) -> None:
    """A file that is no report, or a link, stays as it is; a search says so before it begins."""
    plant(project / "r.html")
    before = (project / "r.html").read_text()
    done = autotune("search", "--config", "config.yaml", "--budget", "20s", "--report", "r.html")
    assert done.returncode == 1
    assert "no report of ours" in done.stderr
    assert (project / "r.html").read_text() == before
    assert not (project / ".autotune/trials").exists() or not list((project / ".autotune/trials").glob("*/*"))


@pytest.mark.usefixtures("searched")
def test_it_can_be_printed(project: Path, autotune: Autotune) -> None:
    """``-`` is stdout, for a pipe, and no file; a search, which prints its answer there, refuses it at once."""
    printed = autotune(*REPORT, "-o", "-")
    assert printed.returncode == 0
    checked(printed.stdout)
    refused = autotune("search", "--config", "config.yaml", "--budget", "20s", "--report", "-")
    assert (refused.returncode, "`autotune report -o -` prints it" in refused.stderr) == (1, True)
    assert not (project / "-").exists()


def test_what_cannot_be_reported_is_said(project: Path, autotune: Autotune, tmp_path: Path) -> None:
    """No study, no diagnosis; without matplotlib the page says what draws its pictures."""
    assert "nothing is known about this config yet" in autotune(*REPORT).stderr
    (project / "d.json").write_text("[]")
    odd = autotune(*REPORT, "--diagnosis", "d.json")
    assert (odd.returncode, "this is no diagnosis" in odd.stderr) == (1, True)
    without = tmp_path / "without"
    without.mkdir()
    (without / "sitecustomize.py").write_text("import sys\nsys.modules['matplotlib'] = None\n")
    path = f"{without}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = autotune(
        "search", "--config", "config.yaml", "--budget", "20s", "--report", "r.html", env={"PYTHONPATH": path}
    )
    assert done.returncode == 0
    assert not pictures(page := checked(project / "r.html"))
    assert "pip install '.[pictures]'" in words(page)
