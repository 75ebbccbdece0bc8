"""``autotune diagnose`` as its user sees it; its trials are simulated."""

import json
import sys

import pytest
import yaml

from autotune.diagnose import machine_checks
from autotune.report.json_answer import FORMAT
from autotune.search import problem
from scripts.bench.simulated_runner import SimulatedRunner, Training
from tests.command_line import CommandLine

DIAGNOSE = ("diagnose", "--config", "config.yaml")


@pytest.fixture
def autotune(simulated: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Command line in a project whose trainer uses no framework: asking one takes seconds."""
    monkeypatch.setattr(problem, "framework_versions", lambda *_: {})
    return simulated


def test_what_helps_is_measured_and_written_in_if_that_is_asked_for(autotune: CommandLine) -> None:
    """A second worker makes the trainer twice as fast: it is written in, and the larger batch is not.

    Its plain trials are on record, and there is no answer of a search that could be applied.
    """
    done = autotune(*DIAGNOSE, "--budget", "80s", "--json", "--fail-on", "gain>=1.2", "--fix", "--out", "kept")
    answer = done.document
    assert done.returncode == 1, "the condition holds"
    assert answer["format"] == FORMAT
    assert answer["failed_on"] == "gain>=1.2"
    assert {check["id"] for check in answer["checks"]} >= {"code", "configuration", "input", "switches", "steadiness"}
    workers = [one for one in answer["recommendations"] if one["values"] == {"data.num_workers": 2}]
    assert workers[0]["evidence"] == "measured"
    assert workers[0]["gain"]["low"] > 1.2
    text = (autotune.folder / "config.yaml").read_text()
    assert "num_workers: 2   # loaders" in text
    assert "batch_size: 4      # samples" in text
    assert "autotune search --config config.yaml" in done.stderr
    kept = json.loads((autotune.folder / "kept/diagnosis.json").read_text())
    assert kept["recommendations"] == answer["recommendations"]
    assert autotune("status", "--config", "config.yaml", "--json").document.get("verdict") != "better"


def test_a_trainer_that_crashes_is_a_verdict(autotune: CommandLine) -> None:
    """Nothing was seen, for a reason, which is an answer: exit 0, after a single trial."""
    crashes = Training(steps=0, exit_code=1, stderr="ValueError: there is no such layer\n")
    autotune.simulator = SimulatedRunner(autotune.clock, lambda _config: crashes)
    done = autotune(*DIAGNOSE, "--budget", "45s").well()
    assert done.stdout.startswith("Not seen: today's config crashed")
    assert "there is no such layer" in done.stdout
    assert len(autotune.simulator.plans) == 1


def test_a_config_without_knobs_is_diagnosed(autotune: CommandLine) -> None:
    """Nothing can be tried, and where the time goes is told all the same."""
    (autotune.folder / "config.yaml").write_text("bs: 4\nautotune: {command: 'python3 train.py {config}'}\n")
    autotune.simulator = SimulatedRunner(autotune.clock, lambda _config: Training(samples=4, step_s=0.02))
    done = autotune(*DIAGNOSE, "--budget", "60s", "--json").well()
    assert sum(one["fraction"] for one in done.document["shares"]) == pytest.approx(1.0)


STREAM = """\
import torch.utils.data as data

class Stream(data.IterableDataset):
    def __iter__(self):
        return iter(range(5))

for x in data.DataLoader(Stream(), num_workers=cfg.num_workers):
    step(x)
"""


def test_code_that_repeats_its_data_is_named_with_its_line_and_the_remedy(autotune: CommandLine) -> None:
    """As an issue of its own, and in the first line where it is the first; what the change means is not claimed."""
    (autotune.folder / "train.py").write_text(STREAM)
    trainer = ("--", "python3", "train.py", "{config}")
    said = autotune(*DIAGNOSE, "--static", *trainer).well().stdout
    assert "Stream does not know of workers: with more than one, each repeats the whole stream. (train.py:4)" in said
    assert "Let __iter__ give each worker its own part, by torch.utils.data.get_worker_info()." in said
    checks = autotune(*DIAGNOSE, "--static", "--json", *trainer).document["checks"]
    found = next(one for check in checks for one in check["issues"] if one["rule"] == "stream-repeated")
    assert (found["place"], found["recommendations"][0]["label"]) == ("train.py:4", "")


def test_everything_is_kept_in_a_folder(autotune: CommandLine) -> None:
    """The object and the text lie in the folder that was named; a source that does not parse is said, and no more."""
    (autotune.folder / "broken.py").write_text("def broken(:\n")
    done = autotune(*DIAGNOSE, "--static", "--out", "kept", "--", "python3", "broken.py", "{config}").well()
    assert "broken.py" in done.stdout
    summary = (autotune.folder / "kept/summary.txt").read_text()
    assert summary.startswith(done.stdout.strip())
    assert "No report: no study of this config" in " ".join(summary.split())
    assert json.loads((autotune.folder / "kept/diagnosis.json").read_text())["format"] == FORMAT


def test_the_gravest_finding_is_an_exit_code(autotune: CommandLine) -> None:
    """With ``--strict``: a warning is 4; without it only errors are a failure."""
    source = "import torch\nfor batch in data:\n    loss.backward()\n    torch.cuda.empty_cache()\n"
    (autotune.folder / "train.py").write_text(source)
    words = (*DIAGNOSE, "--static", "--json")
    trainer = ("--", "python3", "train.py", "{config}")
    done = autotune(*words, *trainer).well()
    weights = {one["severity"] for check in done.document["checks"] for one in check["issues"]}
    assert "warning" in weights
    assert "error" not in weights
    assert autotune(*words, "--strict", *trainer).returncode == 4


def test_a_folder_that_cannot_be_written_is_an_error(autotune: CommandLine) -> None:
    """Said with its name, and what to do."""
    (autotune.folder / "taken").write_text("")
    assert "taken/folder: Not a directory" in autotune(*DIAGNOSE, "--static", "--out", "taken/folder").refusal()


def test_without_a_config_it_is_about_the_machine(autotune: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a bug report needs, without a single trial."""
    monkeypatch.setattr(machine_checks, "framework_versions", lambda *_: {})
    checks = {check["id"]: check for check in autotune("diagnose", "--json").document["checks"]}
    assert checks["configuration"]["why_not"]


def test_where_to_begin_on_gpus_is_yaml(autotune: CommandLine) -> None:
    """For the effective batch that is asked for, of the config where one is named, or 64; nothing is started."""
    done = autotune(*DIAGNOSE, "--gpus")
    assert (done.returncode, done.stderr) == (0, "")
    h100 = {one["gpu"]: one for one in yaml.safe_load(done.stdout)}["H100"]
    assert (h100["batch_size"], h100["gradient_accumulation_steps"], h100["precision"]) == (4, 1, "bfloat16")
    t4 = {one["gpu"]: one for one in yaml.safe_load(autotune("diagnose", "--gpus").stdout)}["T4"]
    assert (t4["batch_size"], t4["gradient_accumulation_steps"], t4["precision"]) == (16, 4, "float16")
    odd = autotune("diagnose", "--gpus", "--effective-batch", "100").stdout
    assert {one["gpu"]: one["batch_size"] for one in yaml.safe_load(odd)}["T4"] == 10
    prime = autotune("diagnose", "--gpus", "--effective-batch", "101").stdout
    assert "gradient_accumulation_steps: 6  # 16 x 6 = 96, 5 fewer than requested" in prime
    assert autotune("diagnose", "--effective-batch", "8").returncode == 2


def test_whether_the_step_is_what_the_config_says_is_an_exit_code(autotune: CommandLine) -> None:
    """Nobody tells settings of this trainer's framework: that is not seen, and not well."""
    done = autotune(*DIAGNOSE, "--verify", "--budget", "45s", "--json")
    assert done.returncode == 1
    assert done.document["verdict"]["sentence"].startswith("Not seen: no framework in the trainer's process")
    assert [check["id"] for check in done.document["checks"]] == ["code", "in-force", "recurring-costs"]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--verify", "--static"), "conflicts with --static"),
        (("--fail-on", "speed>2"), "is not a condition"),
        (("--static", "--fix"), "--fix conflicts with --static"),
        (("--budget", "0"), "budget"),
    ],
)
def test_wrong_usage(autotune: CommandLine, arguments: tuple[str, ...], word: str) -> None:
    """What the parser can reject is exit 2, with the reason."""
    assert word in autotune(*DIAGNOSE, *arguments).refusal(2)


def test_interrupting_is_130(autotune: CommandLine) -> None:
    """^C ends the diagnosis, and the exit code says so."""

    def interrupted(_config: str) -> Training:
        raise KeyboardInterrupt

    autotune.simulator = SimulatedRunner(autotune.clock, interrupted)
    assert autotune(*DIAGNOSE, "--budget", "45s").returncode == 130


def test_a_config_that_is_wrong_fails_a_pipeline(autotune: CommandLine) -> None:
    """``diagnose --static`` ends with 1: the trainer reads another key than the config has."""
    (autotune.folder / "train.py").write_text('print(config["data"]["batch_size"])\n')
    words = ("diagnose", "--config", "own.yaml", "--static", "--json", "--", sys.executable, "train.py", "{config}")
    for key, code in (("batch_sze", 1), ("batch_size", 0)):
        (autotune.folder / "own.yaml").write_text(f"data: {{{key}: 8}}\n")
        done = autotune(*words)
        assert done.returncode == code
        assert ("batch_sze is probably a typo" in done.document["verdict"]["sentence"]) is bool(code)
