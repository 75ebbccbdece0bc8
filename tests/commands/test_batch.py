"""Limit of the batch, as the user of the command line has it: real searches."""

import json
import re
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune

KNOBS = re.compile(r"    knobs:\n(?:        .*\n)+")
SEARCH = ("search", "--config", "config.yaml")


@pytest.fixture
def found_by_name(project: Path) -> Path:
    """Project whose config leaves the knobs to be found by their names."""
    config = project / "config.yaml"
    config.write_text(KNOBS.sub("", config.read_text()))
    return project


def tried(autotune: Autotune, *options: str) -> str:
    """Return what a dry run says of the batch: its row of the table, and what comes after the table."""
    done = autotune(*SEARCH, "--dry-run", *options)
    assert done.returncode == 0, done.stderr
    return "\n".join(line for line in done.stdout.splitlines() if "batch" in line)


@pytest.mark.services
def test_apply_moves_the_limit_and_the_study_goes_on(found_by_name: Path, autotune: Autotune) -> None:
    """Four times today's batch is found; after `apply` the next search goes further, and says how far that is."""
    first = autotune(*SEARCH, "--budget", "120s", "--json")
    answer = json.loads(first.stdout)
    assert answer["best"]["values"]["data.batch_size"] == 16
    said = "data.batch_size is searched up to 16, at most 4 times today's 4: a larger batch makes more samples"
    assert first.stderr.count(said) == 1
    assert "was 4 when" not in first.stderr
    events = Path(found_by_name, answer["paths"]["events"]).read_text()
    assert events.count(said) == 1

    assert autotune("apply", "--config", "config.yaml", "--all").returncode == 0  # it was not raced
    second = autotune(*SEARCH, "--budget", "15s", "--json")
    assert "data.batch_size is searched up to 64, at most 4 times today's 16" in second.stderr
    assert "data.batch_size was 4 when this study began and is 16 now: 64, up to which" in second.stderr
    assert re.search(rf"{answer['trials']} earlier trials found", second.stderr)
    assert json.loads(second.stdout)["study"] == answer["study"]


def test_listed_sizes_are_searched_as_listed(project: Path, autotune: Autotune) -> None:
    """The user has said them; only a limit that is said too cuts them."""
    assert "searched up to" not in tried(autotune)
    assert re.search(r"data.batch_size +4 +4, 16, 64 ", tried(autotune))
    assert re.search(r"data.batch_size +4 +4, 16 ", tried(autotune, "--batch", "4x"))
    assert project.exists()


@pytest.mark.parametrize("written", ["4", "0.5x", "most"])
def test_what_is_no_limit_is_wrong_usage(project: Path, autotune: Autotune, written: str) -> None:
    """Before anything is read or started."""
    done = autotune(*SEARCH, "--batch", written)
    assert done.returncode == 2
    assert "--batch" in done.stderr
    assert not (project / ".autotune").exists()


def test_a_dry_run_shows_the_limit(found_by_name: Path, autotune: Autotune) -> None:
    """The table has the sizes that are left, and the sentence says where the others are."""
    assert re.search(r"data.batch_size +4 +2, 4, 8, 16 ", tried(autotune))
    assert "--batch free searches up to 64." in tried(autotune)
    free = tried(autotune, "--batch=free")
    assert re.search(r"data.batch_size +4 +2, 4, 8, 16, 32, 64 ", free)
    assert "searched up to" not in free
    assert re.search(r"data.batch_size +4 +2, 4, 8 ", tried(autotune, "--batch", "2x"))
    assert "data.batch_size stays 4, because of batch: same." in tried(autotune, "--batch", "same")
