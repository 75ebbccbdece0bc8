"""``autotune init`` as its user has it: what it shows, tries, asks and writes; trainers are simulated."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.command_line import CommandLine, Trainer, project_in

FLAG_TRAINER = Path(__file__).parents[1] / "toys" / "flag_trainer.py"
CONFIG = """\
# How the toy is trained.
data:
    batch_size: 4      # samples per step
    num_workers: 1   # loaders

out: {log_dir: logs}   # not the user's, in trials
"""
SECTION = CONFIG + "\nautotune:"
COMMAND = ("--", sys.executable, "train.py", "config.yaml")
INIT = ("init", "--config", "config.yaml")


def trains(_config: object) -> Training:
    """Train well, whatever the config holds."""
    return Training()


def crashes(_config: object) -> Training:
    """Crash before the first step."""
    return Training(steps=0, exit_code=1, stderr="ValueError: there is no such layer\n")


def ends_at_once(_config: object) -> Training:
    """Leave before the first step."""
    return Training(steps=0)


def rejects_the_section(config: Mapping[str, Any]) -> Training:
    """Crash if the config holds a key that is not of the trainer."""
    said = "TypeError: Config.__init__() got an unexpected keyword argument 'autotune'\n"
    return Training(steps=0, exit_code=1, stderr=said) if "autotune" in config else Training()


def interrupted(_config: object) -> Training:
    """Get ^C in the middle of a trial."""
    raise KeyboardInterrupt


def project(folder: Path, trainer: Trainer = trains) -> tuple[CommandLine, Path]:
    """Make a project whose config holds no section; return its command line, and the config."""
    return project_in(folder / 'it\'s a "project"', trainer, CONFIG), folder / 'it\'s a "project"' / "config.yaml"


def files(folder: Path) -> list[str]:
    """List the project's files; autotune's own folder and the trainer are left out."""
    return sorted({path.name for path in folder.iterdir()} - {".autotune", "train.py"})


def test_init_writes_a_section_that_a_search_takes(tmp_path: Path) -> None:
    """Table, preflight, diff, backup; the old text stays; a dry run shows the same; revert takes the section out."""
    autotune, config = project(tmp_path)
    done = autotune(*INIT, "--yes", *COMMAND).well()
    assert "data.batch_size    4       2, 4, 8, 16   batch" in done.stdout
    assert "redirected into each trial's folder, initially empty: out.log_dir" in done.stdout
    assert "steps seen, the first" in done.stderr
    assert "the trial's copy of the config was read" in done.stderr
    assert "The trainer also works with the section in config.yaml." in done.stderr
    assert list(config.parent.glob(".autotune/**/preflight-*")) == []
    assert "+autotune:" in done.stdout
    assert config.read_text().startswith(SECTION)
    table = done.stdout.split("redirected")[0]
    assert autotune("search", "--config", "config.yaml", "--dry-run").stdout.startswith(table)
    assert autotune("revert", "--config", "config.yaml").returncode == 0
    assert config.read_text() == CONFIG


def test_without_a_terminal_and_a_yes_nothing_happens(tmp_path: Path) -> None:
    """A script is shown the edit and the way to go on; no trainer was started for that."""
    autotune, config = project(tmp_path)
    done = autotune(*INIT, *COMMAND)
    assert (done.returncode, autotune.simulator.plans) == (1, [])
    assert "+autotune:" in done.stdout
    assert "--yes" in done.stderr
    assert (config.read_text(), files(config.parent)) == (CONFIG, ["config.yaml"])


def test_a_trainer_that_rejects_the_section_gets_its_config_back_as_it_was(tmp_path: Path) -> None:
    """The section goes into a file of its own without being asked to, with the trainer's error as the reason."""
    autotune, config = project(tmp_path, rejects_the_section)
    done = autotune(*INIT, "--yes", *COMMAND).well()
    said = " ".join(done.stdout.split())
    assert "the trainer fails with the section in config.yaml and works without it (exit status 1: TypeErr" in said
    assert "got an unexpected keyword argument 'autotune'): writing the section to config.autotune.yaml" in said
    assert "+++ config.autotune.yaml (new)" in done.stdout
    assert (config.read_text(), files(config.parent)) == (CONFIG, ["config.autotune.yaml", "config.yaml"])
    assert "data.batch_size" in autotune("search", "--config", "config.yaml", "--dry-run").stdout


@pytest.mark.parametrize("preflight", [(), ("--no-preflight",)])
def test_a_config_that_the_trainer_finds_by_itself_stays_as_it_is(tmp_path: Path, preflight: tuple[str, ...]) -> None:
    """It could only be tried in the user's own file; so the section goes beside it, with or without a preflight."""
    autotune, config = project(tmp_path)
    done = autotune(*INIT, "--yes", *preflight, "--", sys.executable, "train.py", "{data.batch_size}").well()
    assert "the command does not name config.yaml, so no copy with the section can be tested" in done.stdout
    assert (config.read_text(), files(config.parent)) == (CONFIG, ["config.autotune.yaml", "config.yaml"])


def test_without_a_preflight_the_section_goes_where_it_was_asked_to(tmp_path: Path) -> None:
    """One line says that the trainer was not tried, and what helps if it rejects unknown keys; nothing was started."""
    autotune, config = project(tmp_path, rejects_the_section)
    done = autotune(*INIT, "--yes", "--no-preflight", *COMMAND).well()
    assert "The trainer was not tested with the section in its config." in done.stdout
    assert "--separate" in done.stdout
    assert config.read_text().startswith(SECTION)
    assert autotune.simulator.plans == []


def test_a_section_beside_the_config(tmp_path: Path) -> None:
    """The config itself stays as it is, to the byte, with --separate, and there is nothing to try it with."""
    autotune, config = project(tmp_path, rejects_the_section)
    done = autotune(*INIT, "--yes", "--separate", *COMMAND).well()
    assert "was not tested" not in done.stdout
    assert "with the section" not in done.stderr
    assert (config.read_text(), files(config.parent)) == (CONFIG, ["config.autotune.yaml", "config.yaml"])
    assert "data.batch_size" in autotune("search", "--config", "config.yaml", "--dry-run").stdout
    said = autotune("revert", "--config", "config.yaml").refusal()
    assert "The section is in config.autotune.yaml" in said
    assert "by deleting the file" in said
    again = autotune(*INIT, "--yes", "--no-preflight", *COMMAND).refusal()
    assert "config.autotune.yaml: the config already has an autotune section" in again


@pytest.mark.parametrize(
    ("trainer", "said", "remedy"),
    [(crashes, "there is no such layer", "--no-preflight"), (ends_at_once, "no step was seen", "step")],
)
def test_a_failed_preflight_stops(tmp_path: Path, trainer: Trainer, said: str, remedy: str) -> None:
    """A script must not go on with a trainer that cannot be measured, also with --yes."""
    autotune, config = project(tmp_path, trainer)
    done = autotune(*INIT, "--yes", *COMMAND).refusal()
    assert said in done
    assert remedy in done
    assert config.read_text() == CONFIG


def test_a_config_that_is_not_read_stops(tmp_path: Path) -> None:
    """The command names the config, but the trainer reads another file."""

    def unread(_config: object) -> Training:
        for copy in tmp_path.glob("*/.autotune/trials/*/*/config.yaml"):
            os.utime(copy, (0, 0))
        return Training()

    autotune, config = project(tmp_path, unread)
    assert "did not read the trial's copy of the config" in autotune(*INIT, "--yes", *COMMAND).refusal()
    assert config.read_text() == CONFIG


def test_an_interrupted_preflight_leaves_nothing(tmp_path: Path) -> None:
    """^C while the trainer starts: no section."""
    autotune, config = project(tmp_path, interrupted)
    assert autotune(*INIT, "--yes", *COMMAND).returncode == 130
    assert config.read_text() == CONFIG


def test_a_terminal_is_asked(tmp_path: Path) -> None:
    """The question comes after the diff; no is no, yes writes."""
    autotune, config = project(tmp_path)
    done = autotune(*INIT, "--no-preflight", *COMMAND, answers="n\n")
    assert (done.returncode, config.read_text()) == (0, CONFIG)
    assert "Write this to config.yaml? [y/N]" in done.stderr
    assert "Nothing was written." in done.stdout
    done = autotune(*INIT, *COMMAND, answers="n\n")
    assert "Test this in a short trial of the trainer, and write it to config.yaml? [y/N]" in done.stderr
    assert "Preflight" not in done.stderr
    done = autotune(*INIT, *COMMAND, answers="y\n")
    assert done.stderr.count("[y/N]") == 1
    assert (done.returncode, config.read_text().startswith(SECTION)) == (0, True)


def test_a_terminal_decides_on_a_failed_preflight(tmp_path: Path) -> None:
    """The user who knows better goes on; else nothing is written."""
    autotune, config = project(tmp_path, ends_at_once)
    done = autotune(*INIT, *COMMAND, answers="y\nn\n")
    assert (done.returncode, config.read_text()) == (130, CONFIG)
    assert "no step was seen" in done.stderr
    assert "Continue anyway?" in done.stderr
    done = autotune(*INIT, *COMMAND, answers="y\ny\n")
    assert (done.returncode, config.read_text().startswith(SECTION)) == (0, True)
    assert "was not tested with the section" in done.stderr


def test_flags_become_a_config(tmp_path: Path) -> None:
    """A trainer that reads no YAML: its flags are found, tried, and searched; the file is not written over."""
    autotune, _ = project(tmp_path)
    flags = ("--batch_size", "4", "--num-workers=1", "--use_xla", "--lr", "3e-4", "-v")
    made = ("init", "--from-flags", "--config", "new.yaml", "--yes", "--", "MODE=fast", sys.executable)
    done = autotune(*made, str(FLAG_TRAINER), *flags).well()
    assert "not tuned: -v: the trainer's source does not declare its long name" in done.stdout
    assert "the values are on its command line" in done.stderr
    text = (autotune.folder / "new.yaml").read_text()
    assert "batch_size: 4\nnum_workers: 1\nuse_xla: true\nlr: 3e-4\n" in text
    assert "use_xla       true" in autotune("search", "--config", "new.yaml", "--dry-run").stdout
    assert "not overwritten" in autotune(*made, str(FLAG_TRAINER), *flags).refusal()
    assert (autotune.folder / "new.yaml").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "after --"),
        (("--separate", "--from-flags", *COMMAND), 2, "--separate"),
        (("--yes", "--", "python train.py {config} | tee log"), 1, "which needs a shell; autotune uses none"),
        (("--yes", "--", "python", "train.py", "{config}", "&&", "ls"), 1, "contains &&"),
        (("--yes", "--", sys.executable, "nothing.py"), 1, "contains neither {config}"),
        (("--yes", "--", sys.executable, "t.py", "{data.batch}", "{config}"), 1, "no such key in config.yaml"),
        (("--yes", "--", "nosuchprogram", "{config}"), 1, "not found on the PATH: nosuchprogram"),
        (("--yes", "--", "WANDB_API_KEY=x", sys.executable, "{config}"), 1, "looks like a secret"),
        (("--yes", "--", sys.executable, "t.py", "{config}", "--api-key", "x"), 1, "--api-key looks like a secret"),
        (("--yes", "--", sys.executable, "t.py", "{config}", "db.password=x"), 1, "environment variable"),
    ],
)
def test_commands_that_init_cannot_take_are_refused(
    tmp_path: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """The message names the reason in a sentence; nothing is written or started."""
    autotune, config = project(tmp_path)
    done = autotune(*INIT, *arguments)
    assert (done.returncode, done.stdout, autotune.simulator.plans) == (code, "", [])
    assert said in done.stderr
    assert (config.read_text(), files(config.parent)) == (CONFIG, ["config.yaml"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.json", '{"data": {"batch_size": 4,\t"num_workers": 1},\r\n "out": {"log_dir": "logs"}}'),
        ("c.toml", "[data]\nbatch_size = 4  # why\nnum_workers = 1\n\n[out]\nlog_dir = 'logs'\n"),
    ],
)
def test_json_and_toml_configs(tmp_path: Path, name: str, text: str) -> None:
    """The section gets a file of its own, and trials read a copy with the suffix."""
    autotune, _ = project(tmp_path)
    autotune.simulator = SimulatedRunner(autotune.clock, trains)
    config = autotune.folder / name
    config.write_bytes(text.encode())
    done = autotune("init", "--config", name, "--yes", "--", sys.executable, "train.py", name).well()
    assert (
        f"a {name[2:].upper()} config cannot hold a section: it goes into a separate file, c.autotune.yaml"
        in done.stdout
    )
    assert "the trial's copy of the config was read" in done.stderr
    assert autotune.simulator.plans[0].config_name == f"config{config.suffix}"
    assert autotune("search", "--config", name, "--dry-run").returncode == 0
    assert config.read_bytes() == text.encode()


def test_several_configs_of_one_trainer(tmp_path: Path) -> None:
    """The section names the others; other files are refused."""
    autotune, config = project(tmp_path)
    other = autotune.folder / "loader.json"
    other.write_text('{"num_workers": 1}\n')
    both = ("--config", "config.yaml", "--config", "loader.json")
    done = autotune("init", *both, "--yes", *COMMAND, "loader.json").well()
    assert "loader.num_workers" in done.stdout
    assert "train.py {config} {config:loader}" in done.stdout
    assert "files: [loader.json]" in config.read_text()
    (copy,) = autotune.simulator.plans[0].further_configs.values()
    assert json.loads(copy) == {"num_workers": 1}
    assert autotune("search", *both, "--dry-run").returncode == 0
    refused = autotune("apply", "--config", "config.yaml", "--config", "train.py")
    assert "train.py is not listed in the section" in refused.stderr


HYDRA = """\
import hydra
import torch


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(words):
    return torch.utils.data.DataLoader(range(8), num_workers=0)


main()
"""


def test_a_hydra_config_is_composed(tmp_path: Path) -> None:
    """Knobs of group files are found; the section stands beside the config, and trials get overrides."""
    autotune, _ = project(tmp_path)
    (autotune.folder / "train.py").write_text(HYDRA)
    (autotune.folder / "conf" / "data").mkdir(parents=True)
    config = autotune.folder / "conf" / "config.yaml"
    config.write_text("defaults:\n  - data: small\n  - _self_\n\nlog_dir: ${root}/logs\nroot: .\n")
    (autotune.folder / "conf" / "data" / "small.yaml").write_text("batch_size: 4\nnum_workers: 1\n")
    before = config.read_text()
    done = autotune("init", "--config", "conf/config.yaml", "--yes", "--", sys.executable, "train.py").well()
    assert "data.batch_size" in done.stdout
    assert "initially empty: log_dir, hydra.run.dir, hydra.sweep.dir" in done.stdout
    assert "Hydra reads this config itself" in done.stdout
    assert "the values are on its command line" in done.stderr
    assert config.read_text() == before
    assert "data.num_workers" in autotune("search", "--config", "conf/config.yaml", "--dry-run").stdout


def test_init_offers_variables_where_nothing_else_varies(simulated: CommandLine) -> None:
    """As comments, by what the script imports: nothing of it holds until the signs are taken away."""
    config = simulated.folder / "config.yaml"
    (simulated.folder / "train.py").write_text("import tensorflow as tf\n")
    config.write_text("lr: 0.1\n")
    trainer = ("--", sys.executable, "train.py", "config.yaml")
    assert simulated("init", "--config", "config.yaml", "--yes", "--no-preflight", *trainer).returncode == 0
    text = config.read_text()
    assert "  #   autotune.env.TF_XLA_FLAGS: [" in text
    assert "OMP_NUM_THREADS" not in text
    assert simulated("search", "--config", "config.yaml", "--dry-run").returncode == 1
    config.write_text(re.sub(r"^  # (knobs:|env:|  )", r"  \1", text, flags=re.MULTILINE))
    shown = simulated("search", "--config", "config.yaml", "--dry-run").well()
    assert "autotune.env.TF_XLA_FLAGS" in shown.stdout
