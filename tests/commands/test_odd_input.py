"""Odd input through the whole command line: used, or refused with a place and a remedy, and never taken for a bug."""

import os

import pytest

from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.command_line import CONFIG, CommandLine

TEXTS = {
    "a long description": f"about: {'a word of it, and/or more ' * 200}",
    "a long word": f"about: {'w' * 5000}",
    "a path through a file": "data_dir: config.yaml/data",
    "an emoji as JSON writes it": 'about: "\\ud83d\\ude00"\n  data_dir: "\\ud83d\\ude00/x"',
    "half a surrogate pair": 'about: "\\ud800"\n  log_dir: "a/\\ud800"\n  "\\ud800": 3',
    "a zero byte": 'about: "~a\\0/b"\n  save_dir: "~a\\0/b"',
}


def test_a_text_that_is_no_path_stops_nothing(simulated: CommandLine) -> None:
    """A search makes its trials, whatever texts the config holds."""
    texts = "".join(f"{name}:\n  {keys}\n" for name, keys in TEXTS.items())
    (simulated.folder / "config.yaml").write_text(f"{texts}\n{CONFIG}")
    simulated.simulator = SimulatedRunner(simulated.clock, lambda _config: Training())
    done = simulated.search(budget="30s")
    assert done.returncode == 0, done.stderr
    assert "trial 0" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        f"%YAML 1.3\n---\n{CONFIG}",
        f"x: {'9' * 5000}\n{CONFIG}",
        f"x: 4\nautotune: {{command: 't {{config}}', knobs: {{x: [4, 1{'0' * 500}]}}}}\n",
    ],
    ids=["a newer YAML", "5,000 digits", "a knob of 10^500"],
)
def test_unusable_input_is_an_expected_error(simulated: CommandLine, text: str) -> None:
    """Exit 1, the file, and the remedy; not a bug."""
    (simulated.folder / "config.yaml").write_text(text)
    done = simulated("search", "--config", "config.yaml", "--dry-run")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("autotune: config.yaml")
    assert len(done.stderr) < 600


def test_a_damaged_manifest_is_an_expected_error(simulated: CommandLine) -> None:
    """Revert names it, and leaves the config alone."""
    flags = ("--config", "config.yaml", "--state-dir", "state")
    assert simulated("revert", *flags).returncode == 1
    (simulated.folder / "config.yaml").write_text("batch_size: 4\n")
    made = simulated("init", "--no-preflight", "--yes", *flags, "--", "python3", "train.py", "config.yaml")
    assert made.returncode == 0, made.stderr
    (manifest,) = (simulated.folder / "state" / "backups").rglob("*.json")
    manifest.write_text(manifest.read_text().replace('"number": 1', '"number": [1]'))
    done = simulated("revert", *flags)
    assert done.returncode == 1, done.stderr
    assert manifest.name in done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.yaml", "config.autotune.yaml"])
def test_a_fifo_for_a_config_is_refused(name: str, simulated: CommandLine) -> None:
    """Reading one that nobody writes into would take for ever; the same for the section in a file of its own."""
    (simulated.folder / "config.yaml").write_text("data: {batch_size: 4}\n")
    (simulated.folder / name).unlink(missing_ok=True)
    os.mkfifo(simulated.folder / name)
    done = simulated("search", "--config", "config.yaml", "--dry-run")
    assert done.returncode == 1
    assert f"{name}: this is no ordinary file" in done.stderr


def test_a_pipe_for_a_config_is_refused(simulated: CommandLine) -> None:
    """A pipe, ``--config <(...)``, can be read once only, and cannot be written to."""
    ours, theirs = os.pipe()
    os.write(theirs, (simulated.folder / "config.yaml").read_bytes())
    os.close(theirs)
    done = simulated("search", "--dry-run", "--config", f"/dev/fd/{ours}")
    os.close(ours)
    assert done.returncode == 1
    assert "this is no ordinary file" in done.stderr
