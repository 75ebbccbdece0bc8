"""``autotune search``: verdicts, failures, plans and secrets, in virtual time."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, CommandLine, project_in, toy

KNOBS = re.compile(r"    knobs:\n(?:        .*\n)+")


def flat(_config: Mapping[str, Any]) -> Training:
    """Train equally fast with any config."""
    return Training(samples=4, step_s=0.01, noise=0.02, epoch=200)


def fails_today(config: Mapping[str, Any]) -> Training:
    """Crash with today's batch."""
    return Training(steps=0, exit_code=1) if config["data"]["batch_size"] == 4 else toy(config)


def keeps_outputs(config: Mapping[str, Any]) -> Training:
    """Write into the folder that the config names."""
    folder = Path(config["out"]["log_dir"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.txt").write_text("trained")
    return toy(config)


def test_a_search_goes_on_with_its_trials_and_leaves_the_config_alone(recorded: CommandLine) -> None:
    """The same command again finds the trials of the first; its answer, and that of `status`, are the same."""
    before = (recorded.folder / "config.yaml").read_bytes()
    known = recorded("status", "--config", "config.yaml", "--json").document
    done = recorded.search("--json", "--no-apply", budget="2m")
    answer = done.document
    assert f"{known['trials']} earlier trials found" in done.stderr
    assert (answer["verdict"], answer["best"]["values"]) == (known["verdict"], known["best"]["values"])
    assert answer["elapsed_s"] < 120
    again = recorded("status", "--config", "config.yaml", "--json").document
    for key in ("verdict", "best", "speedup", "answer"):
        assert again[key] == answer[key]
    assert (recorded.folder / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("key", "present", "listed"),
    [
        ("batch_size", "4", "['4', '16', '64']"),
        ("batch_size", "'4'", "['4', '16', '64']"),
        ("batch_size_per_card", "4", "[4, 16, 64]"),
        ("batchSizePerGPU", "4", "[4, 16, 64]"),
    ],
)
def test_a_batch_is_known_as_one_whatever_it_is_called(tmp_path: Path, key: str, present: str, listed: str) -> None:
    """Its label, the words on the effective batch, and `apply`, which does not write it, as of `batch_size: 4`."""

    def trainer(config: Mapping[str, Any]) -> Training:
        return toy({"data": {**config["data"], "batch_size": int(config["data"][key])}})

    config = CONFIG.replace("        data.num_workers: [1, 2]\n", "").replace("batch_size: 4 ", f"{key}: {present} ")
    config = config.replace("data.batch_size: [4, 16, 64]", f"data.{key}: {listed}")
    commands = project_in(tmp_path, trainer, config)
    said = commands.search("--no-apply").well().stdout
    where = " of each device" if key != "batch_size" else ""
    assert f"The effective batch{where} changes from 4 to 64; the learning rate may have to follow" in said
    assert "it changes the batch" in commands("apply", "--config", "config.yaml").refusal()
    assert (tmp_path / "config.yaml").read_text() == config
    commands("apply", "--config", "config.yaml", "--all").well()
    written = f"{key}: '64'" if present == "'4'" else f"{key}: 64"
    assert written in (tmp_path / "config.yaml").read_text()


def test_where_nothing_helps_nothing_is_written(tmp_path: Path) -> None:
    """Neither at the end of the search nor by `apply`."""
    commands = project_in(tmp_path, flat)
    answer = commands.search("--json", "--apply", budget="5m").document
    assert answer["verdict"] == "no_change"
    assert answer["best"] == answer["baseline"]
    applied = commands("apply", "--config", "config.yaml")
    assert (applied.returncode, applied.stdout.partition(".")[0][:9]) == (0, "No change")
    assert (tmp_path / "config.yaml").read_text() == CONFIG


def test_a_config_that_fails_today_is_no_baseline_and_its_best_wants_consent(tmp_path: Path) -> None:
    """The search goes on without one."""
    commands = project_in(tmp_path, fails_today)
    answer = commands.search("--json", budget="2m").document
    assert (answer["verdict"], answer["speedup"], answer["baseline"]["metrics"]) == ("no_baseline", None, None)
    assert "it was never compared with today's config" in commands("apply", "--config", "config.yaml").refusal()
    assert commands("apply", "--config", "config.yaml", "--all").returncode == 0
    assert (tmp_path / "config.yaml").read_text() != CONFIG


@pytest.mark.parametrize(
    ("training", "said"),
    [
        (Training(steps=0), "exits too soon"),
        (Training(steps=3), "ran to its end"),
        (Training(steps=0, exit_code=1, stderr="ValueError: no such layer\n"), "ValueError: no such layer"),
        (Training(steps=0, hangs=True), "no valid training step was seen"),
    ],
)
def test_a_trainer_that_cannot_be_measured_is_an_error_with_a_remedy(
    tmp_path: Path, training: Training, said: str
) -> None:
    """It writes no step, ends too soon, crashes or hangs, whatever the config: within the budget."""
    commands = project_in(tmp_path, lambda _config: training)
    began_s = commands.clock.now_s()
    done = commands.search("--json", budget="5m")
    assert commands.clock.now_s() - began_s <= 300
    assert done.returncode == 1
    assert done.document["error"]["remedy"]
    assert said in done.stderr


@pytest.mark.parametrize("kept", [True, False])
def test_outputs_of_trials_stay_where_the_section_keeps_them(tmp_path: Path, kept: bool) -> None:
    """What a trainer wrote into its folder is there after its end, and today's folder is untouched."""
    commands = project_in(tmp_path, keeps_outputs, CONFIG + ("    keep_outputs: true\n" if kept else ""))
    commands.search("--no-apply", budget="30s")
    assert bool([*(tmp_path / ".autotune").rglob("outputs/**/log.txt")]) is kept
    assert not (tmp_path / "logs").exists()


def test_a_command_typed_with_the_configs_own_path(tmp_path: Path) -> None:
    """The search gives each trial its own copy in that place, as init does; no section is needed."""
    plain = CONFIG.partition("autotune:")[0]
    commands = project_in(tmp_path, toy, plain)
    trainer = ("--", sys.executable, "train.py", "./config.yaml")
    planned = commands("search", "--config", "config.yaml", "--dry-run", *trainer)
    assert f"command: {sys.executable} train.py {{config}}" in planned.stdout
    searched = commands.search("--json", *trainer, budget="2m").well()
    assert all("./config.yaml" not in plan.argv for plan in commands.simulator.plans)
    status = commands("status", "--config", "config.yaml", "--json")
    assert status.document["study"] == searched.document["study"]
    assert (tmp_path / "config.yaml").read_text() == plain


def test_a_secret_in_the_command_is_not_shown(simulated: CommandLine) -> None:
    """No secret is in the plan or the messages, wherever the command comes from; the trial gets what was typed."""
    typed = ("--", sys.executable, "train.py", "{config}", "--password=hunter2")
    planned = simulated("search", "--config", "config.yaml", "--dry-run", *typed)
    searched = simulated.search(*typed, budget="30s").well()
    assert simulated.simulator.plans[0].argv[-1] == "--password=hunter2"
    secret = CONFIG.replace("{config}", "{config} --api-key hunter2 --db mysql://me:hunter2@host/x")
    (simulated.folder / "config.yaml").write_text(f"{secret}    env: {{HF_TOKEN: hunter2}}\n")
    written = simulated("search", "--config", "config.yaml", "--dry-run")
    real = simulated("run", "--config", "config.yaml", "--dry-run")
    assert "--password=***" in planned.stdout
    assert "--password=***" in searched.stderr
    assert "--api-key *** --db mysql://me:***@host/x" in written.stdout
    assert "HF_TOKEN=***" in real.stdout.replace("'", "")
    assert "hunter2" not in "".join(done.stdout + done.stderr for done in (planned, searched, written, real))


def test_without_a_command_the_way_to_one_is_said(simulated: CommandLine) -> None:
    """The message holds a line that can be pasted."""
    (simulated.folder / "my config.yaml").write_text("data: {batch_size: 4}\n")
    said = simulated.search(config="my config.yaml").refusal()
    assert "autotune init --config 'my config.yaml' -- python train.py --config 'my config.yaml'" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--race", "2m", "--no-race"), "conflicts with --no-race"),
        (("--race", "5s"), "is too short: the minimum is"),
        (("--race", "20m"), "at most half of it"),
        (("--validate", "20m"), "--validate: 20m leaves too little of a budget of"),
        (("--validate", "0"), "'0' is not"),
        (("--validate", "soon"), "'soon' is not a duration"),
        (("--batch", "4"), "--batch"),
        (("--batch", "0.5x"), "--batch"),
        (("--batch", "most"), "--batch"),
    ],
)
def test_wrong_usage_is_said_before_anything_starts(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """The time does not fit into the budget, or a limit is none."""
    (tmp_path / "config.yaml").write_text(CONFIG)
    done = CommandLine(tmp_path).search(*options).refusal(2)
    assert said in " ".join(done.split())
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_dry_run_shows_the_sizes_of_the_batch_and_their_limit(simulated: CommandLine) -> None:
    """Sizes that are listed are searched as listed; what is left out of others is said with the option for it."""

    def tried(*options: str) -> str:
        done = simulated("search", "--config", "config.yaml", "--dry-run", *options)
        return "\n".join(line for line in done.stdout.splitlines() if "batch" in line)

    assert "searched up to" not in tried()
    assert re.search(r"data.batch_size +4 +4, 16, 64 ", tried())
    assert re.search(r"data.batch_size +4 +4, 16 ", tried("--batch", "4x"))
    (simulated.folder / "config.yaml").write_text(KNOBS.sub("", CONFIG))
    assert re.search(r"data.batch_size +4 +2, 4, 8, 16 ", tried())
    assert "--batch free searches up to 64." in tried()
    free = tried("--batch=free")
    assert re.search(r"data.batch_size +4 +2, 4, 8, 16, 32, 64 ", free)
    assert "searched up to" not in free
    assert "data.batch_size stays 4, because of batch: same." in tried("--batch", "same")


def test_apply_moves_the_limit_of_the_batch_and_the_study_goes_on(tmp_path: Path) -> None:
    """Four times today's batch is found; after `apply` the next search goes further, and says how far that is."""
    config = KNOBS.sub("", CONFIG).replace("    num_workers: 1   # loaders\n", "")
    commands = project_in(tmp_path, lambda config: toy({"data": {**config["data"], "num_workers": 1}}), config)
    first = commands.search("--json", budget="2m")
    answer = first.document
    assert answer["best"]["values"]["data.batch_size"] == 16
    said = "data.batch_size is searched up to 16, at most 4 times today's 4: a larger batch gives more samples"
    assert first.stderr.count(said) == Path(answer["paths"]["events"]).read_text().count(said) == 1
    assert commands("apply", "--config", "config.yaml", "--all").returncode == 0
    second = commands.search("--json", budget="30s")
    assert "data.batch_size is searched up to 64, at most 4 times today's 16" in second.stderr
    assert (
        "data.batch_size was 4 when this study began and is 16 now: the search goes up to 64, 16 times" in second.stderr
    )
    assert f"{answer['trials']} earlier trials found" in second.stderr


def test_a_search_begins_with_what_another_config_of_the_command_showed(recorded: CommandLine) -> None:
    """Its best point is the first one tried; --no-warm-start and --fresh begin from nothing."""
    recorded.search("--no-apply", budget="30s")
    (recorded.folder / "config.yaml").write_text(f"layers: 3\n{CONFIG}")
    begins = "a study of another config of the same command on "
    assert begins in recorded("search", "--config", "config.yaml", "--dry-run").stdout
    for option in ("--no-warm-start", "--fresh"):
        assert begins not in recorded("search", "--config", "config.yaml", "--dry-run", option).stdout
    second = recorded.search(budget="2m")
    assert "The search starts with " in second.stderr
    assert "The answer, point 1 of those tried, came from a study of another config" in second.stderr
