"""``autotune init`` as its user has it: real processes, real trainers, and a terminal that answers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.config.apply import plan_edit, write_edits
from tests.commands.conftest import TRAINER, Autotune, answered

FLAG_TRAINER = Path(__file__).parents[1] / "toys" / "flag_trainer.py"
CONFIG = """\
# How the toy is trained.
data:
    batch_size: 4      # samples per step
    num_workers: 1   # loaders

out: {log_dir: logs}   # not the user's, in trials
"""
COMMAND = ("--", sys.executable, str(TRAINER), "config.yaml")
INIT = ("init", "--config", "config.yaml")


@pytest.fixture
def config(project: Path) -> Path:
    """Config of the project, without a section."""
    path = project / "config.yaml"
    path.write_text(CONFIG)
    return path


def files(project: Path) -> list[str]:
    """List the project's files; autotune's own folder is left out."""
    return sorted(path.name for path in project.iterdir() if path.name != ".autotune")


def test_init_writes_a_section_that_a_search_takes(project: Path, config: Path, autotune: Autotune) -> None:
    """Table, preflight, diff, backup; the old text stays; a dry run shows the same; revert takes the section out."""
    done = autotune(*INIT, "--yes", *COMMAND)
    assert done.returncode == 0, done.stderr
    assert "data.batch_size    4       2, 4, 8, 16   batch" in done.stdout
    assert "into each trial's own folder, starting empty: out.log_dir" in done.stdout
    assert "steps seen, the first" in done.stderr
    assert "the trial's copy of the config was read" in done.stderr
    assert "With the section in config.yaml it trains as well." in done.stderr
    assert list(project.glob(".autotune/**/preflight-*")) == []
    assert "+autotune:" in done.stdout
    assert config.read_text().startswith(CONFIG + "\nautotune:")
    assert files(project) == ["config.yaml"]
    table = done.stdout.split("into each")[0]
    assert autotune("search", "--config", "config.yaml", "--dry-run").stdout.startswith(table)
    assert autotune("revert", "--config", "config.yaml").returncode == 0
    assert config.read_text() == CONFIG


def test_without_a_terminal_and_a_yes_nothing_happens(project: Path, config: Path, autotune: Autotune) -> None:
    """A script is shown the edit and the way to go on; no trainer was started for that."""
    done = autotune(*INIT, *COMMAND)
    assert done.returncode == 1
    assert "+autotune:" in done.stdout
    assert "--yes" in done.stderr
    assert "Preflight" not in done.stderr
    assert config.read_text() == CONFIG
    assert os.listdir(project) == ["config.yaml"]


STRICT = """\
import dataclasses, os, sys, time, yaml
from autotune.trainee import step

@dataclasses.dataclass
class Config:
    data: dict
    out: dict

with open(sys.argv[1]) as file:
    config = Config(**yaml.safe_load(file))
os.makedirs(config.out["log_dir"], exist_ok=True)
open(os.path.join(config.out["log_dir"], "log"), "w").write("trains")
while True:
    time.sleep(0.005)
    step(samples=config.data["batch_size"], wait_s=0.0)
"""


def test_a_trainer_that_rejects_the_section_gets_its_config_back_as_it_was(
    project: Path, config: Path, autotune: Autotune
) -> None:
    """The section goes into a file of its own without being asked to, with the trainer's error as the reason."""
    (project / "train.py").write_text(STRICT)
    done = autotune(*INIT, "--yes", "--", sys.executable, "train.py", "config.yaml")
    assert done.returncode == 0, done.stderr
    assert "steps seen, the first" in done.stderr
    said = " ".join(done.stdout.split())
    assert (
        "with the section in config.yaml the trainer fails, and without it trains (exit status 1: TypeError: " in said
    )
    assert "got an unexpected keyword argument 'autotune'): the section gets a file of its own" in said
    assert "+++ config.autotune.yaml (new)" in done.stdout
    assert config.read_text() == CONFIG
    assert files(project) == ["config.autotune.yaml", "config.yaml", "train.py"]
    shown = autotune("search", "--config", "config.yaml", "--dry-run")
    assert "data.batch_size" in shown.stdout, shown.stderr


def test_a_config_that_the_trainer_finds_by_itself_stays_as_it_is(
    project: Path, config: Path, autotune: Autotune
) -> None:
    """It could only be tried in the user's own file; so the section goes beside it, with or without a preflight."""
    (project / "train.py").write_text(
        "import sys, time, yaml\nfrom autotune.trainee import step\n"
        "assert set(yaml.safe_load(open('config.yaml'))) == {'data', 'out'}\n"
        "while True:\n    time.sleep(0.005)\n    step(samples=int(sys.argv[1]))\n"
    )
    words = ("--", sys.executable, "train.py", "{data.batch_size}")
    for preflight in ((), ("--no-preflight",)):
        done = autotune(*INIT, "--yes", *preflight, *words)
        assert done.returncode == 0, done.stderr
        assert "the command does not name config.yaml, so the trainer cannot be tried" in done.stdout
        assert config.read_text() == CONFIG
        (project / "config.autotune.yaml").unlink()


def test_a_trainer_that_opens_its_config_by_name_has_copies_in_trials(
    project: Path, config: Path, autotune: Autotune
) -> None:
    """Nothing of its command or its code has to change; what is found goes into the file that it opens."""
    loads = "if len(sys.argv) > 9:\n    import torch\n    torch.utils.data.DataLoader([1])\n"  # a value of its code
    by_name = TRAINER.read_text().replace("sys.argv[1]", "os.path.join(os.path.dirname(__file__), 'config.yaml')")
    by_name = by_name.replace("def main", f"{loads}\n\ndef main")
    (project / "train.py").write_text(by_name)
    done = autotune(*INIT, "--yes", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "steps seen, the first" in done.stderr
    assert "DataLoader.num_workers" in done.stdout
    assert config.read_text() == CONFIG
    found = autotune("search", "--config", "config.yaml", "--budget", "60s", "--no-apply", "--json")
    assert json.loads(found.stdout)["verdict"] == "better", found.stderr
    assert config.read_text() == CONFIG
    (project / "train.py").write_text(by_name.replace("config.yaml", "other.yaml") + "# not 'config.yaml'\n")
    (project / "other.yaml").write_text(CONFIG)
    (project / "config.autotune.yaml").unlink()
    done = autotune(*INIT, "--yes", "--", sys.executable, "train.py")
    assert done.returncode == 1
    assert "nobody read the trial's own copy of the config" in done.stderr


def test_without_a_preflight_the_section_goes_where_it_was_asked_to(
    project: Path, config: Path, autotune: Autotune
) -> None:
    """One line says that the trainer was not tried, and what helps if it rejects unknown keys; nothing was started."""
    (project / "train.py").write_text(STRICT)
    words = ("--", sys.executable, "train.py", "config.yaml")
    done = autotune(*INIT, "--yes", "--no-preflight", *words)
    assert done.returncode == 0, done.stderr
    assert "The trainer was not tried with the section in its config." in done.stdout
    assert "--separate" in done.stdout
    assert config.read_text().startswith(CONFIG + "\nautotune:")
    config.write_text(CONFIG)
    asked = autotune(*INIT, "--yes", "--separate", *words)
    assert asked.returncode == 0, asked.stderr
    assert "was not tried" not in asked.stdout
    assert "With the section" not in asked.stderr


def test_a_section_beside_the_config(project: Path, config: Path, autotune: Autotune) -> None:
    """The config itself stays as it is, to the byte, with --separate."""
    assert autotune(*INIT, "--yes", "--no-preflight", "--separate", *COMMAND).returncode == 0
    assert config.read_text() == CONFIG
    assert files(project) == ["config.autotune.yaml", "config.yaml"]
    assert "data.batch_size" in autotune("search", "--config", "config.yaml", "--dry-run").stdout
    reverted = autotune("revert", "--config", "config.yaml")
    assert reverted.returncode == 1
    assert "The section stands in config.autotune.yaml, a file of its own" in reverted.stderr
    assert "it is undone by deleting it" in reverted.stderr
    again = autotune(*INIT, "--yes", "--no-preflight", *COMMAND)
    assert again.returncode == 1
    assert "config.autotune.yaml: there is an autotune section already" in again.stderr


@pytest.mark.parametrize(
    ("change", "said", "remedy"),
    [
        ("mood: crashes", "there is no such layer", "--no-preflight"),
        ("mood: ends at once", "no step was seen", "step"),
    ],
)
def test_a_failed_preflight_stops(config: Path, autotune: Autotune, change: str, said: str, remedy: str) -> None:
    """A script must not go on with a trainer that cannot be measured, also with --yes."""
    config.write_text(f"{CONFIG}{change}\n")
    done = autotune(*INIT, "--yes", *COMMAND)
    assert done.returncode == 1
    assert said in done.stderr
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr.split("no step was seen")[-1]
    assert config.read_text() == f"{CONFIG}{change}\n"


def test_a_config_that_is_not_read_stops(project: Path, config: Path, autotune: Autotune) -> None:
    """The command names the config, but the trainer reads another file."""
    other = project / "other.yaml"
    other.write_text(CONFIG)
    done = autotune(*INIT, "--yes", "--", sys.executable, str(TRAINER), "other.yaml", "{config}")
    assert done.returncode == 1
    assert "nobody read the trial's own copy of the config" in done.stderr
    assert config.read_text() == CONFIG


def test_a_terminal_is_asked(project: Path, config: Path) -> None:
    """The question comes after the diff; no is no, yes writes."""
    question = b"Write this to config.yaml?"
    status, screen = answered(project, {question: b"n\n"}, *INIT, "--no-preflight", *COMMAND)
    assert (status, config.read_text()) == (0, CONFIG)
    assert screen.index("+autotune:") < screen.index("Write this")
    assert "[y/N]" in screen
    assert "Nothing was written." in screen
    status, screen = answered(project, {question: b"y\n"}, *INIT, "--no-preflight", *COMMAND)
    assert status == 0
    assert config.read_text().startswith(CONFIG + "\nautotune:")


def test_a_terminal_decides_on_a_failed_preflight(project: Path, config: Path) -> None:
    """The user who knows better goes on; else nothing is written."""
    config.write_text(CONFIG + "mood: ends at once\n")
    go_on, start = b"Go on all the same?", {b"Start the trainer once": b"y\n"}
    status, screen = answered(project, {**start, go_on: b"n\n"}, *INIT, *COMMAND)
    assert status == 130
    assert "no step was seen" in screen
    status, screen = answered(project, {**start, go_on: b"y\n", b"Write this to": b"y\n"}, *INIT, *COMMAND)
    assert status == 0
    assert "was not tried with the section" in screen
    assert "autotune:" in config.read_text()


def test_flags_become_a_config(project: Path, autotune: Autotune) -> None:
    """A trainer that reads no YAML: its flags are found, tried, searched, and trained with."""
    flags = ("--batch_size", "4", "--num-workers=1", "--use_xla", "--lr", "3e-4", "-v")
    made = ("init", "--from-flags", "--config", "new.yaml")
    done = autotune(*made, "--yes", "--", "MODE=fast", sys.executable, str(FLAG_TRAINER), *flags)
    assert done.returncode == 0, done.stderr
    assert "not taken: -v: the trainer's source does not tell what this short flag means" in done.stdout
    assert "the values are on its command line" in done.stderr
    text = (project / "new.yaml").read_text()
    assert "batch_size: 4\nnum_workers: 1\nuse_xla: true\nlr: 3e-4\n" in text
    dry = autotune("search", "--config", "new.yaml", "--dry-run").stdout
    assert "use_xla       true" in dry
    again = autotune(*made, "--yes", "--", sys.executable, str(FLAG_TRAINER), *flags)
    assert again.returncode == 1
    assert "not overwritten" in again.stderr
    assert (project / "new.yaml").read_text() == text


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "behind --"),
        (("--separate", "--from-flags", *COMMAND), 2, "--separate"),
        (("--yes", "--", "python train.py {config} | tee log"), 1, "which only a shell understands, and none runs it"),
        (("--yes", "--", "python", "train.py", "{config}", "&&", "ls"), 1, "holds &&"),
        (("--yes", "--", sys.executable, "train.py"), 1, "names neither {config}"),
        (("--yes", "--", sys.executable, "t.py", "{data.batch}", "{config}"), 1, "no such key in config.yaml"),
        (("--yes", "--", "nosuchprogram", "{config}"), 1, "no program nosuchprogram"),
        (("--yes", "--", "WANDB_API_KEY=x", sys.executable, "{config}"), 1, "looks like a secret"),
        (("--yes", "--", sys.executable, "t.py", "{config}", "--api-key", "x"), 1, "--api-key looks like a secret"),
        (("--yes", "--", sys.executable, "t.py", "{config}", "db.password=x"), 1, "environment variable"),
    ],
)
def test_commands_that_init_cannot_take_are_refused(
    project: Path, autotune: Autotune, arguments: tuple[str, ...], code: int, said: str
) -> None:
    """The message names the reason in a sentence; nothing is written or started."""
    done = autotune(*INIT, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert os.listdir(project) == ["config.yaml"]


def test_an_interrupted_preflight_leaves_nothing(project: Path, config: Path) -> None:
    """^C while the trainer starts: no process, no section."""
    config.write_text(CONFIG + "mood: sleeps for ever\n")
    with subprocess.Popen(
        [sys.executable, "-m", "autotune", *INIT, "--yes", *COMMAND],
        cwd=project,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as init:
        assert init.stderr is not None
        while "Preflight" not in init.stderr.readline():
            pass
        init.send_signal(2)
        assert init.wait(timeout=60) == 130
    assert "autotune" not in config.read_text()


HYDRA = """\
import sys
import time

import hydra

from autotune.trainee import step


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(words):
    print(words, flush=True)
    while True:
        time.sleep(0.005)
        step(samples=4, wait_s=0.0)


main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("name", "text", "tuned"),
    [
        (
            "c.json",
            '{"data": {"batch_size": 4,\t"num_workers": 1},\r\n "out": {"log_dir": "logs"}}',
            '"num_workers": 2',
        ),
        ("c.toml", "[data]\nbatch_size = 4  # why\nnum_workers = 1\n\n[out]\nlog_dir = 'logs'\n", "num_workers = 2"),
    ],
)
def test_json_and_toml_configs(project: Path, autotune: Autotune, name: str, text: str, tuned: str) -> None:
    """The section gets a file of its own; trials read a copy with the suffix; apply and revert keep the rest."""
    (project / name).write_bytes(text.encode())
    trainer = project / "train.py"
    trainer.write_text(
        "import json, sys, time, tomllib\nfrom autotune.trainee import step\n"
        "config = {'json': json, 'toml': tomllib}[sys.argv[1][-4:]].load(open(sys.argv[1], 'rb'))\n"
        "while True:\n    time.sleep(0.005)\n    step(samples=config['data']['batch_size'], wait_s=0.0)\n"
    )
    done = autotune("init", "--config", name, "--yes", "--", sys.executable, "train.py", name)
    assert done.returncode == 0, done.stderr
    assert f"a {name[2:].upper()} config holds no section: it gets a file of its own, c.autotune.yaml" in done.stdout
    assert "the trial's copy of the config was read" in done.stderr
    assert autotune("search", "--config", name, "--dry-run").returncode == 0
    assert (project / name).read_bytes() == text.encode()
    edit = plan_edit(project / name, {"data.num_workers": 2})
    assert edit.new == text.replace(tuned[:-1] + "1", tuned)
    write_edits([edit], project / ".autotune" / "backups", SystemClock())
    assert autotune("revert", "--config", name, "--force").returncode == 0
    assert (project / name).read_bytes() == text.encode()
    again = autotune("init", "--config", name, "--yes", "--from-flags", "--", sys.executable, "train.py", "--a=1")
    assert "there is such a file already" in again.stderr


def test_several_configs_of_one_trainer(project: Path, config: Path, autotune: Autotune) -> None:
    """The section names the others; apply changes all, revert puts all back; other files are refused."""
    other = project / "loader.json"
    other.write_text('{"num_workers": 1}\n')
    (project / "train.py").write_text(
        "import json, sys, time, yaml\nfrom autotune.trainee import step\n"
        "config, loader = yaml.safe_load(open(sys.argv[1])), json.load(open(sys.argv[2]))\n"
        "while True:\n    time.sleep(0.01 / loader['num_workers'])\n"
        "    step(samples=config['data']['batch_size'], wait_s=0.0)\n"
    )
    both = ("--config", "config.yaml", "--config", "loader.json")
    done = autotune("init", *both, "--yes", "--", sys.executable, "train.py", "config.yaml", "loader.json")
    assert done.returncode == 0, done.stderr
    assert "loader.num_workers" in done.stdout
    assert "train.py {config} {config:loader}" in done.stdout
    assert "files: [loader.json]" in config.read_text()
    before = {path: path.read_text() for path in (config, other)}
    assert autotune("search", *both, "--dry-run").returncode == 0
    edits = [plan_edit(config, {"data.batch_size": 8}), plan_edit(other, {"num_workers": 2})]
    write_edits(edits, project / ".autotune" / "backups", SystemClock())
    assert {path: path.read_text() for path in before} == {edit.path: edit.new for edit in edits}
    assert autotune("revert", "--config", "config.yaml", "--force").returncode == 0
    assert {path: path.read_text() for path in before} == before
    refused = autotune("apply", "--config", "config.yaml", "--config", "train.py")
    assert "train.py is none of the further configs" in refused.stderr


def test_a_hydra_config_is_composed(project: Path, autotune: Autotune) -> None:
    """Knobs of group files are found; the section stands beside the config, and trials get overrides."""
    (project / "hydra.py").write_text("def main(**_):\n    return lambda function: function\n")
    (project / "train.py").write_text(HYDRA)
    (project / "conf" / "data").mkdir(parents=True)
    config = project / "conf" / "config.yaml"
    config.write_text("defaults:\n  - data: small\n  - _self_\n\nlog_dir: ${root}/logs\nroot: .\n")
    (project / "conf" / "data" / "small.yaml").write_text("batch_size: 4\nnum_workers: 1\n")
    before = config.read_text()
    done = autotune("init", "--config", "conf/config.yaml", "--yes", "--", sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "data.batch_size" in done.stdout
    assert "starting empty: log_dir, hydra.run.dir, hydra.sweep.dir" in done.stdout
    assert "Hydra reads this config itself" in done.stdout
    assert "the values are on its command line" in done.stderr
    assert config.read_text() == before
    shown = autotune("search", "--config", "conf/config.yaml", "--dry-run")
    assert "data.num_workers" in shown.stdout, shown.stderr
