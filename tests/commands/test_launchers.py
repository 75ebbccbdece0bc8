"""Launchers of others: what the docs say for Ray and submitit, run with these where they are installed."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.commands.conftest import Autotune

DOCS = Path(__file__).parents[2] / "docs" / "several-machines.md"


def snippet(library: str) -> str:
    """Return the code of the docs that imports a library."""
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S)
    (block,) = [one for one in blocks if f"import {library}\n" in one]
    return block


@pytest.mark.services
@pytest.mark.parametrize("library", ["ray", "submitit"])
def test_workers_of_a_launcher_make_one_study(
    library: str, project: Path, autotune: Autotune, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the code as it stands there; only the cluster, the folder, the address and their number are this test's."""
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{Path('/usr/bin')}:/bin")
    monkeypatch.chdir(project)
    code = snippet(library)
    for said, here in (
        ("/home/me/project", json.dumps(str(project))[1:-1]),
        ("file:/home/me/storage-address", json.dumps(f"journal:{project / 'studies'}")[1:-1]),
        ('ray.init(address="auto")', "ray.init(num_cpus=4, num_gpus=4, include_dashboard=False)"),
        ('folder="submitit-logs"', 'folder="submitit-logs", cluster="local"'),
        ("range(4)", "range(1)"),
        ('"--config", "config.yaml"', '"--config", "config.yaml", "--budget", "15s"'),
    ):
        code = code.replace(said, here)
    exec(code, {})
    studies = autotune("study", "list", "--storage", f"journal:{project / 'studies'}", "--json")
    (study,) = json.loads(studies.stdout)["studies"]
    assert study["trials"] > 2
