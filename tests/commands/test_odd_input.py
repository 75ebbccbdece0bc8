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
    done = simulated.search(budget="30s").well()
    assert "trial 0" in done.stderr


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["config.yaml", "config.autotune.yaml"])
def test_a_fifo_for_a_config_is_refused(name: str, simulated: CommandLine) -> None:
    """Reading one that nobody writes into would take for ever; the same for the section in a file of its own."""
    (simulated.folder / "config.yaml").write_text("data: {batch_size: 4}\n")
    (simulated.folder / name).unlink(missing_ok=True)
    os.mkfifo(simulated.folder / name)
    assert (
        f"{name}: this is not a regular file" in simulated("search", "--config", "config.yaml", "--dry-run").refusal()
    )
