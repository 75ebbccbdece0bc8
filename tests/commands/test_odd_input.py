"""Odd input through the whole command line: used, or refused with a place and a remedy, and never taken for a bug."""

from pathlib import Path

import pytest

from tests.commands.conftest import CONFIG, TRAINER, Autotune

TEXTS = {
    "a long description": f"about: {'a word of it, and/or more ' * 200}",
    "a long word": f"about: {'w' * 5000}",
    "a path through a file": "data_dir: config.yaml/data",
    "an emoji as JSON writes it": 'about: "\\ud83d\\ude00"\n  data_dir: "\\ud83d\\ude00/x"',
    "half a surrogate pair": 'about: "\\ud800"\n  log_dir: "a/\\ud800"\n  "\\ud800": 3',
    "a zero byte": 'about: "~a\\0/b"\n  save_dir: "~a\\0/b"',
}


def test_a_text_that_is_no_path_stops_nothing(autotune: Autotune, project: Path) -> None:
    """A search makes its first trials, whatever texts the config holds."""
    texts = "".join(f"{name}:\n  {keys}\n" for name, keys in TEXTS.items())
    (project / "config.yaml").write_text(f"{texts}\n{CONFIG % TRAINER}")
    done = autotune("search", "--config", "config.yaml", "--budget", "6s")
    assert done.returncode == 0, done.stderr
    assert "trial 0" in done.stderr


BATCH = "data: {batch_size: 4}\nautotune:\n  command: t {config}\n  knobs: {data.batch_size: %s}\n"
REFUSED = {
    "a newer YAML": f"%YAML 1.3\n---\n{CONFIG}",
    "a whole number that is empty": f"x: !!int ''\n{CONFIG}",
    "5,000 digits": f"x: {'9' * 5000}\n{CONFIG}",
    "a knob of 10^500": BATCH % f"[4, 1{'0' * 500}]",
    "a step of 1e-300": BATCH % "{low: 1.0, high: 64.0, step: 1.0e-300}",
    "half a surrogate pair in the command": 'batch_size: 4\nautotune: {command: "t {config} \\ud800"}\n',
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED.keys())
def test_unusable_input_is_an_expected_error(autotune: Autotune, project: Path, text: str) -> None:
    """Exit 1, the file, and the remedy; not a bug."""
    (project / "config.yaml").write_text(text)
    done = autotune("search", "--config", "config.yaml", "--dry-run")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("autotune: config.yaml")
    assert len(done.stderr) < 600


def test_a_damaged_manifest_is_an_expected_error(autotune: Autotune, project: Path) -> None:
    """Revert names it, and leaves the config alone."""
    flags = ("--config", "config.yaml", "--state-dir", "state")
    assert autotune("revert", *flags).returncode == 1
    (project / "config.yaml").write_text("batch_size: 4\n")
    made = autotune("init", "--no-preflight", "--yes", *flags, "--", "python", "train.py", "config.yaml")
    assert made.returncode == 0, made.stderr
    (manifest,) = (project / "state" / "backups").rglob("*.json")
    manifest.write_text(manifest.read_text().replace('"number": 1', '"number": [1]'))
    done = autotune("revert", *flags)
    assert done.returncode == 1, done.stderr
    assert manifest.name in done.stderr
