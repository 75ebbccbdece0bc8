"""``autotune report`` as its user has it: searches of a simulated trainer, and the file that is left."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.command_line import CommandLine, project_in, toy
from tests.report.html.validity import checked, part, pictures, words

REPORT = ("report", "--config", "config.yaml")


def test_a_search_leaves_its_report(simulated: CommandLine) -> None:
    """`search --report FILE` writes it; `report` writes the same again, or Markdown."""
    done = simulated.search("--report", "kept/r.html").well()
    assert "Report: kept/r.html" in done.stderr
    page = checked(simulated.folder / "kept/r.html")
    assert "as fast as today's config" in words(page)
    assert "num_workers" in part(page, "changes")
    assert {"All trials and the best speed so far", "Confirming pairs"} <= pictures(page).keys()
    assert "+ num_workers: 2 # loaders" in part(page, "changes")
    for folder in simulated.folder.glob(".autotune/trials/*/*"):
        steps = "".join(f'{{"k": "step", "t_s": {number / 100}}}\n' for number in range(1, 100))
        (folder / "steps.7.0.jsonl").write_text(steps)
    assert simulated(*REPORT, "-o", "kept/r.html").stdout == "kept/r.html\n"
    again = checked(simulated.folder / "kept/r.html")
    assert part(again, "trials") == part(page, "trials")
    assert pictures(again).keys() - pictures(page).keys() == {"Step times"}
    assert simulated(*REPORT, "-o", "kept/r.md").returncode == 0
    text = (simulated.folder / "kept/r.md").read_text()
    assert text.startswith("## Better: ")
    assert "| data.num_workers | 1 | 2 |" in text
    assert "```diff" in text
    assert re.search(r"(?m)^\+ +num_workers: 2 +# loaders", text)


def test_a_search_that_goes_on_and_one_that_was_interrupted(tmp_path: Path) -> None:
    """What is known so far, and that it is not over; then that it was interrupted."""

    def train(config: Mapping[str, Any]) -> Training:
        if len(autotune.simulator.plans) == 2:
            assert autotune(*REPORT, "-o", "during.html").returncode == 0
            raise KeyboardInterrupt
        return toy(config)

    autotune = project_in(tmp_path, train)
    assert autotune.search().returncode == 130
    assert "still running" in words(checked(tmp_path / "during.html"))
    assert autotune(*REPORT, "-o", "r.html").returncode == 0
    assert "The search was interrupted" in words(checked(tmp_path / "r.html"))


def test_a_search_in_which_everything_failed(simulated: CommandLine) -> None:
    """The command fails as it does, and the report says what went wrong."""
    crashes = Training(steps=0, exit_code=1, stderr="ValueError: there is no such layer\n")
    simulated.simulator = SimulatedRunner(simulated.clock, lambda _config: crashes)
    assert simulated.search("--report", "r.html").returncode == 1
    page = checked(simulated.folder / "r.html")
    assert "No answer" in words(page)
    assert "crashed: " in part(page, "trials")
    assert "there is no such layer" in part(page, "trials")


@pytest.mark.parametrize("plant", [lambda path: path.write_text("mine"), lambda path: path.symlink_to("config.yaml")])
def test_nobodys_file_is_replaced(simulated: CommandLine, plant: Callable[[Path], object]) -> None:
    """A file that is no report, or a link, stays as it is; a search says so before it begins."""
    report = simulated.folder / "r.html"
    plant(report)
    before = report.read_text()
    assert "is not a report" in simulated.search("--report", "r.html").refusal()
    assert report.read_text() == before
    assert simulated.simulator.plans == []


def test_it_can_be_printed(recorded: CommandLine) -> None:
    """``-`` is stdout, for a pipe, and no file; a search, which prints its answer there, refuses it at once."""
    printed = recorded(*REPORT, "-o", "-").well()
    checked(printed.stdout)
    refused = recorded.search("--report", "-")
    assert (refused.returncode, "`autotune report -o -` prints it" in refused.stderr) == (1, True)
    assert not (recorded.folder / "-").exists()


def test_what_cannot_be_reported_is_said(simulated: CommandLine) -> None:
    """No study, no diagnosis."""
    assert "no study of this config" in simulated(*REPORT).stderr
    (simulated.folder / "d.json").write_text("[]")
    odd = simulated(*REPORT, "--diagnosis", "d.json")
    assert (odd.returncode, "this is not a diagnosis" in odd.stderr) == (1, True)
