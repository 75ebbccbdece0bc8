"""``autotune apply`` and ``revert``: what is written into the config, what is refused, and the way back."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.commands.apply_answer import apply_values
from autotune.errors import ConfigError
from autotune.report.console import text_console
from autotune.search.answer import changes_from_now
from autotune.search.problem import open_problem
from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, CommandLine, project_in, toy

SAME_TRAINING = CONFIG.replace("num_workers: 1 ", "num_workers: 2 ")
WHOLE = SAME_TRAINING.replace("batch_size: 4 ", "batch_size: 64 ")

OF_ENVIRONMENT = """\
autotune:
  command: "{python} train.py"
  env: {OMP_NUM_THREADS: 4}
  knobs: {autotune.env.OMP_NUM_THREADS: [1, 4]}
  trial: {min_s: 0.15, min_steps: 10, max_s: 0.5}
"""
MOVING = """\
batch_size: 8   # at once
grad_accum: 4   # times that
autotune:
  command: "{python} train.py {config}"
  knobs:
    batch_size: [4, 8, 12, 16, 32]
    autotune.env.MODE: [slow, fast]
  env: {MODE: slow, OTHER: on}
  trial: {min_s: 0.15, max_s: 0.5}
"""


def text_of(commands: CommandLine) -> str:
    """Return the project's config."""
    return (commands.folder / "config.yaml").read_text()


def edit(commands: CommandLine, old: str, new: str) -> None:
    """Edit the config by hand."""
    assert old in text_of(commands)
    (commands.folder / "config.yaml").write_text(text_of(commands).replace(old, new))


def typed(commands: CommandLine, command: str, *options: str, answers: str | None = None) -> tuple[int, str]:
    """Run a command on the config; return its exit code, and what it printed."""
    done = commands(command, "--config", "config.yaml", *options, answers=answers)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("options", "after"), [(("--all",), WHOLE), ((), SAME_TRAINING)])
def test_the_values_are_written_and_taken_back(recorded: CommandLine, options: tuple[str, ...], after: str) -> None:
    """Nothing else in the file changes; a second time there is nothing to do; a revert gives the file back."""
    said = typed(recorded, "status")[1]
    assert "Next:  autotune apply" in said
    assert "\nor     autotune apply --config config.yaml --all" in said
    preview = typed(recorded, "apply", *options, "--dry-run")[1]
    assert "+    num_workers: 2   # loaders" in preview
    assert text_of(recorded) == CONFIG
    assert typed(recorded, "apply", *options)[0] == 0
    assert text_of(recorded) == after
    assert "The config has these values now." in typed(recorded, "status")[1]
    assert "Nothing to do" in typed(recorded, "apply", *options)[1]
    code, shown = typed(recorded, "revert", "--dry-run")
    assert (code, text_of(recorded)) == (0, after)
    assert "+    num_workers: 1   # loaders" in shown
    assert typed(recorded, "revert")[0] == 0
    assert text_of(recorded) == CONFIG


@pytest.mark.parametrize(
    ("options", "answers", "is_written"),
    [
        ((), "n\n", False),
        ((), "y\n", True),
        ((), None, True),
        (("--force",), "", True),
        (("--dry-run",), "", False),
    ],
    ids=["no", "yes", "no terminal", "force", "dry run"],
)
def test_all_says_what_it_changes_about_the_training_and_asks(
    recorded: CommandLine, options: tuple[str, ...], answers: str | None, is_written: bool
) -> None:
    """In the words of the answer; without a terminal, --all is the consent."""
    code, said = typed(recorded, "apply", "--all", *options, answers=answers)
    assert code == (130 if answers == "n\n" else 0), said
    assert "The effective batch changes from 4 to 64; the learning rate may have to follow" in said
    assert "It changes the batch; unknown if it also converges faster: the trainer reports no loss" in said
    assert ("Apply it? [y/N]" in said) is bool(answers)
    assert text_of(recorded) == (WHOLE if is_written else CONFIG)


@pytest.mark.parametrize(("answers", "is_written"), [("n\n", False), ("y\n", True), (None, True)])
def test_what_could_not_be_verified_is_asked_for_on_a_terminal(
    recorded: CommandLine, answers: str | None, is_written: bool
) -> None:
    """Its batches were not visible, so whether it trains on the same data is inferred from its key's name."""
    code, said = typed(recorded, "apply", answers=answers)
    question = "Not verified whether it trains on the same data as today: batches not visible; "
    question += "`step(batch=batch)` shows them. Apply it? [y/N]"
    assert (code, question in said) == (130 if answers == "n\n" else 0, bool(answers)), said
    assert text_of(recorded) == (SAME_TRAINING if is_written else CONFIG)


def test_the_values_of_the_trial_that_was_named_are_written(recorded: CommandLine) -> None:
    """Any trial's that gave numbers, whatever the answer is."""
    details = typed(recorded, "status", "--details")[1]
    number = next(line.split()[1] for line in details.splitlines() if line.endswith("  num_workers=2"))
    assert typed(recorded, "apply", "--trial", number)[0] == 0
    assert text_of(recorded) == SAME_TRAINING
    code, said = typed(recorded, "apply", "--trial", "99")
    assert (code, "there is no trial 99" in said) == (1, True)


def test_what_is_written_is_the_answer_that_was_named(recorded: CommandLine) -> None:
    """A name of another answer is refused; the right one is written."""
    name = recorded("status", "--config", "config.yaml", "--json").document["answer"]["id"]
    code, said = typed(recorded, "apply", "--answer", "0123456789abcdef")
    assert (code, text_of(recorded)) == (1, CONFIG)
    assert "answer 0123456789abcdef is not current" in said
    assert typed(recorded, "apply", "--answer", name, "--force")[0] == 0
    assert text_of(recorded) == WHOLE


def test_a_narrower_question_has_an_answer_of_its_own(recorded: CommandLine) -> None:
    """With --same-training less is found: the answer of the whole question stands, and both can be applied by name."""
    before = recorded("status", "--config", "config.yaml", "--json").document["answer"]
    narrow = recorded.search("--same-training", "--no-apply", "--json", budget="5m").document["answer"]
    assert {key["path"]: key["new"] for key in narrow["keys"]} == {"data.num_workers": 2, "data.batch_size": 4}
    assert recorded("status", "--config", "config.yaml", "--json").document["answer"] == before
    said = recorded.search("--same-training", "--no-apply").stdout
    assert "\nNext:  autotune apply --config config.yaml\n" in said, "a plain apply writes it too"
    assert " --answer " in recorded.search("--batch", "4x", "--no-apply").stdout
    for answer, after in ((narrow, SAME_TRAINING), (before, WHOLE)):
        assert typed(recorded, "apply", "--answer", answer["id"], "--force")[0] == 0
        assert text_of(recorded) == after
        assert typed(recorded, "revert")[0] == 0


@pytest.mark.parametrize(("answers", "after"), [("n\n", "16"), ("y\n", "4"), (None, "16")])
def test_revert_asks_before_it_takes_back_what_was_edited_since(
    recorded: CommandLine, answers: str | None, after: str
) -> None:
    """The user's own value stays where the answer is no, and where there is nobody to ask."""
    assert typed(recorded, "apply", "--all")[0] == 0
    edit(recorded, "batch_size: 64 ", "batch_size: 16 ")
    code, said = typed(recorded, "revert", answers=answers)
    assert code == (0 if after == "4" else 130 if answers else 1), said
    assert f"batch_size: {after} " in text_of(recorded)


@pytest.mark.parametrize(("answers", "is_written"), [("y\nn\n", False), ("y\ny\n", True), (None, False)])
def test_apply_asks_before_it_overwrites_what_was_edited_since(
    recorded: CommandLine, answers: str | None, is_written: bool
) -> None:
    """`status` says that the answer is for the values of then."""
    assert "Edited since" not in typed(recorded, "status")[1]
    edit(recorded, "num_workers: 1 ", "num_workers: 3 ")
    assert "Edited since the search: data.num_workers is 3, was 1." in typed(recorded, "status")[1]
    said = typed(recorded, "apply", answers=answers)[1]
    assert ("num_workers: 2 " in text_of(recorded)) is is_written, said


def test_without_an_answer_nothing_is_written(tmp_path: Path) -> None:
    """It is no error: today's values are the answer."""
    same = Training(samples=4, step_s=0.01, noise=0.03, epoch=200)
    commands = project_in(tmp_path / "project", lambda _config: same)
    commands.search().well()
    code, printed = typed(commands, "apply")
    assert (code, text_of(commands)) == (0, CONFIG)
    assert printed.startswith("No change: ")
    assert printed.splitlines()[-1] == "Nothing was written: config.yaml keeps today's values."


@pytest.mark.parametrize(("answers", "is_removed"), [("n\n", False), ("y\n", True), (None, True)])
def test_a_revert_without_an_apply_asks_before_it_removes_the_section(
    tmp_path: Path, answers: str | None, is_removed: bool
) -> None:
    """The training command in it would be lost."""
    commands = project_in(tmp_path / "project", toy)
    edit(commands, text_of(commands)[text_of(commands).index("autotune:") :], "")
    before = text_of(commands)
    trainer = ("--", sys.executable, "train.py", "config.yaml")
    assert typed(commands, "init", "--yes", "--no-preflight", *trainer)[0] == 0
    code, printed = typed(commands, "revert", answers=answers)
    assert "removes the section that `autotune init` added" in printed
    assert (code, text_of(commands) == before) == (130 if answers == "n\n" else 0, is_removed)


def test_values_are_not_written_into_a_config_that_became_another_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key besides the knobs was edited while they were searched for: they are of the training that was."""
    monkeypatch.chdir(tmp_path)
    config = Path("config.yaml")
    config.write_text("model: {width: 64}\nbatch_size: 8\nautotune: {knobs: {batch_size: [8, 16]}}\n")
    problem = open_problem(config, command=None, state_dir=None)
    found = changes_from_now(problem, {"batch_size": 16})
    edited = config.read_text().replace("64", "128")
    config.write_text(edited)
    with pytest.raises(ConfigError, match="found for another training"):
        apply_values(problem, found, text_console())
    assert config.read_text() == edited


@pytest.mark.parametrize("above", ["", "lr: 0.1\n"], ids=["the section alone", "a config without knobs"])
def test_a_variable_is_all_that_varies(tmp_path: Path, above: str) -> None:
    """The command takes no config, and the file may hold nothing else: what is tuned comes by the environment."""
    commands = project_in(tmp_path, config=above + OF_ENVIRONMENT)

    def trainer(_config: Any) -> Training:
        threads = int(commands.simulator.plans[-1].env["OMP_NUM_THREADS"])
        return Training(samples=4, step_s=0.004 * threads, noise=0.02)

    commands.trainer = trainer
    answer = commands.search("--json", budget="3m").document
    assert (answer["verdict"], answer["best"]["values"]) == ("better", {"autotune.env.OMP_NUM_THREADS": 1})
    assert typed(commands, "apply")[0] == 0
    assert text_of(commands) == above + OF_ENVIRONMENT.replace("{OMP_NUM_THREADS: 4}", "{OMP_NUM_THREADS: 1}")


@pytest.mark.parametrize("separate", [False, True])
def test_keys_that_move_along_are_searched_applied_and_trained_with(tmp_path: Path, separate: bool) -> None:
    """Apply writes where values live, accumulation along with the batch; `run` starts with them, `revert` undoes it."""
    keys, section = MOVING.split("autotune:\n", 1)
    commands = project_in(tmp_path, config=keys if separate else MOVING)
    if separate:
        (tmp_path / "config.autotune.yaml").write_text(f"autotune:\n{section}")
    files = [tmp_path / "config.yaml", *([tmp_path / "config.autotune.yaml"] if separate else [])]
    before = [file.read_text() for file in files]

    def trainer(config: Mapping[str, Any]) -> Training:
        env = commands.simulator.plans[-1].env
        assert config["batch_size"] * config["grad_accum"] == 32
        assert env["OTHER"] == "on"
        step_s = (0.04 if env["MODE"] == "slow" else 0.004) + 0.0005 * config["batch_size"]
        return Training(samples=config["batch_size"], step_s=step_s, noise=0.02)

    commands.trainer = trainer
    answer = commands.search("--json", budget="3m").document
    assert answer["best"]["values"] == {"batch_size": 32, "autotune.env.MODE": "fast"}
    assert answer["same_training"]["values"]["batch_size"] == 32
    assert typed(commands, "apply", "--all")[0] == 0
    assert text_of(commands).startswith("batch_size: 32   # at once\ngrad_accum: 1   # times that\n")
    assert files[-1].read_text().endswith(section.replace("MODE: slow", "MODE: fast"))
    assert typed(commands, "run", "--dry-run")[1].startswith("MODE=fast OTHER=on ")
    for file in files:
        assert commands("revert", "--config", file.name).returncode == 0
    assert [file.read_text() for file in files] == before

    edit(commands, "grad_accum: 4", "grad_accum: 8")
    code, said = typed(commands, "apply", "--trial", "1", "--force")
    assert (code, "grad_accum" in said) == (1, True)
