"""Loading of the ``autotune:`` section, and a trial's own copy of the config."""

import math
from functools import partial
from pathlib import Path

import pytest

from autotune.config.apply import plan_edit
from autotune.config.load import load_settings
from autotune.config.schema import BatchLimit, Range, parse_batch_limit
from autotune.errors import ConfigError

TRAINING = """\
# My training.
data:
  batch_size: 16   # per GPU
  workers: 4

training:
  epochs: 100
  checkpoint_dir: ./runs/ckpt/
  lr: 1e-4
"""
SECTION = """\
autotune:  # the tuner's
  command: "python train.py --config {config}"
  knobs:
    data.batch_size: [8, 16, 32]
    data.workers: {low: 1, high: 16, log: true}
    training.lr: [1e-4, 1e-3]
    autotune.env.TF_GPU_THREAD_MODE: [global, gpu_private]
    autotune.env.OMP_NUM_THREADS: {low: 1, high: 8}
  env:
    TF_GPU_THREAD_MODE: global
    OMP_NUM_THREADS: 04
    DEBUG: on
  set: {training.epochs: 1}
  trial: {max_s: 20}
"""


@pytest.fixture
def config(tmp_path):
    """Path of the config in the tests."""
    return tmp_path / "config.yaml"


def load(config, text):
    """Write a config and load it."""
    config.write_bytes(text.encode())
    return load_settings(config)


def test_the_whole_section(config):
    """Everything that the section can say arrives as it was meant."""
    settings = load(config, TRAINING + SECTION)
    section = settings.section
    assert settings.command == ("python", "train.py", "--config", "{config}")
    assert section.knobs == {
        "data.batch_size": (8, 16, 32),
        "data.workers": Range(low=1, high=16, log=True),
        "training.lr": (0.0001, 0.001),
        "autotune.env.TF_GPU_THREAD_MODE": ("global", "gpu_private"),
        "autotune.env.OMP_NUM_THREADS": Range(low=1, high=8),
    }
    assert section.env == {"TF_GPU_THREAD_MODE": "global", "OMP_NUM_THREADS": "04", "DEBUG": "on"}
    assert section.fixed == {"training.epochs": 1}
    trial = section.trial
    assert (trial.max_s, trial.start_timeout_s, trial.min_s, trial.min_steps) == (20, 300, 0.7, 10)
    assert (section.objective, section.keep_outputs) == ("effective_utilization", False)
    assert settings.outputs.redirected == ("training.checkpoint_dir",)


@pytest.mark.parametrize(
    ("section", "min_s"),
    [
        ("objective: utilization", 5.0),
        ("objective: utilization\n  trial: {max_s: 3}", 3.0),
        ("objective: utilization\n  trial: {min_s: 4}", 4.0),
        ("objective: throughput", 0.7),
    ],
)
def test_where_utilization_is_searched_for_trials_are_longer(config, section, min_s):
    """A driver gives a few samples a second; a length in the section takes precedence."""
    assert load(config, TRAINING + f"autotune:\n  {section}\n").section.trial.min_s == min_s


@pytest.mark.parametrize("around", ["autotune:\n  {}", "{}"])
def test_a_section_of_its_own(config, around):
    """For trainers that reject unknown keys, with or without the key around it."""
    beside = config.with_name("config.autotune.yaml")
    beside.write_text(around.format("{command: './train {config}', env: {A: x}, knobs: {autotune.env.A: [x, z]}}\n"))
    settings = load(config, TRAINING)
    assert settings.command == ("./train", "{config}")
    assert settings.trial_text({}, Path("/o")).splitlines()[:6] == TRAINING.splitlines()[:6]
    edits = settings.edits({"data.batch_size": 32, "autotune.env.A": "z"})
    prefix = () if around == "{}" else ("autotune",)
    assert edits == {config: {("data", "batch_size"): 32}, beside: {(*prefix, "env", "A"): "z"}}


def test_two_sections_are_an_error(config):
    """Nobody could say which one counts."""
    config.with_name("config.autotune.yaml").write_text("command: x\n")
    with pytest.raises(ConfigError, match="two autotune sections") as caught:
        load(config, TRAINING + SECTION)
    assert caught.value.where == f"{config}:11"


def test_the_copy_is_the_users_file(config):
    """It differs in the knobs, ``set`` and output paths, and the section is left out; comments stay."""
    settings = load(config, TRAINING + SECTION + "\n# The end.\nseed: 1")
    text = settings.trial_text({"data.batch_size": 32, "training.lr": 0.0001}, Path("/runs/1/outputs"))
    expected = TRAINING.replace("16 ", "32 ").replace("100", "1").replace("./runs", "/runs/1/outputs/runs")
    assert text == expected + "\n# The end.\nseed: 1"


def test_a_copy_names_the_configs_that_it_is_based_on_by_their_paths(config, tmp_path):
    """It lies in another folder; what the trainer looks for where it runs is left alone."""
    (tmp_path / "base.yaml").write_text("a: 1\n")
    text = load(config, "_BASE_: base.yaml\ndata: base.yaml\nother: gone.yaml\n").trial_text({}, Path("/outputs"))
    assert text == f"_BASE_: {tmp_path}/base.yaml\ndata: {tmp_path}/base.yaml\nother: gone.yaml\n"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "base.yaml").write_text("a: 2\n")
    settings = load(config, "_BASE_: base.yaml\ndata: base.yaml\nautotune: {folder: run, command: t}\n")
    assert settings.trial_text({}, Path("/outputs")) == f"_BASE_: {tmp_path}/base.yaml\ndata: base.yaml\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("a: 1\nautotune:\n  env: {X: y}\n", "a: 1\n"),
        ("autotune:\n  env:\n    X: |\n      y\n\n# b\nb: 1\n", "# b\nb: 1\n"),
        ("\ufeffautotune: {env: {X: y}} # c\r\na: 1\r\n", "\ufeffa: 1\r\n"),
        ("a: 1\n'autotune': {}\nb: 2", "a: 1\nb: 2"),
        ("a: 1\nautotune:\n  env: {X: y}", "a: 1\n"),
        ("---\n  a: 1\n  autotune:\n    env: {}\n  # why b\n  b: 2\n...\n", "---\n  a: 1\n  # why b\n  b: 2\n...\n"),
        ("x: &x {a: 1}\nautotune:\ny: *x\n", "x: &x {a: 1}\ny: *x\n"),
    ],
)
def test_the_section_is_cut_out_by_lines(config, text, left):
    """All other lines stay byte for byte, comments around it included."""
    assert load(config, text).trial_document.text == left


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{a: 1, autotune: {}}", "shares its lines"),
        ("autotune: {env: &e {X: y}}\na: *e\n", "undefined alias"),
        ("? autotune\n: {}\na: 1\n", "shares its lines"),
    ],
)
def test_a_section_that_cannot_be_cut_out_is_refused(config, text, why):
    """With the way out: a file of its own."""
    with pytest.raises(ConfigError, match=why) as caught:
        load(config, text)
    assert ".autotune.yaml" in caught.value.remedy


def test_the_environment_of_a_trial(config):
    """Knobs among the variables go there, and nowhere into the copy; what is not tuned is as written."""
    settings = load(config, TRAINING + SECTION)
    values = {"autotune.env.TF_GPU_THREAD_MODE": "gpu_private", "autotune.env.OMP_NUM_THREADS": 4, "data.workers": 2}
    assert settings.trial_env(values) == {"TF_GPU_THREAD_MODE": "gpu_private", "OMP_NUM_THREADS": "04", "DEBUG": "on"}
    assert "gpu_private" not in settings.trial_text(values, Path("/o"))


@pytest.mark.parametrize(
    ("typed", "words", "flags"),
    [
        ("--outdir exp/small", "--outdir /outputs/exp/small", ("--outdir",)),
        ("--outdir=exp/small --resume_dir exp", "--outdir=/outputs/exp/small --resume_dir exp", ("--outdir",)),
        ("--a.log-dir /var/log --data-dir data", "--a.log-dir /outputs/var/log --data-dir data", ("--a.log-dir",)),
        ("--save --project runs", "--save --project /outputs/runs", ("--project",)),
        ("--save_dir kept", "--save_dir kept", ()),
    ],
)
def test_flags_that_say_where_the_trainer_writes_point_into_the_trials_folder(config, typed, words, flags):
    """As keys of such names do; a user takes them back with redirect_except."""
    section = f"autotune:\n  command: python train.py {{config}} {typed}\n  redirect_except: [--save_dir]\n"
    settings = load(config, f"x: 16\n{section}")
    argv = partial(settings.argv, config=config, config_text="x: 16\n", python="python")
    assert " ".join(argv(outputs=Path("/outputs"))[3:]) == words
    assert " ".join(argv()[3:]) == typed
    assert settings.redirected(settings.command) == flags


def test_a_hydra_trainer_writes_into_the_trials_folder(config, tmp_path, monkeypatch):
    """Its own folder, and outputs that are overrides, quoted as it reads them; `autotune run` leaves it its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import hydra\n@hydra.main(config_path='conf')\ndef main(cfg): ...\n")
    section = 'command: python train.py paths.log_dir={paths.log_dir} "--name={paths.log_dir}" hydra.run.dir=mine'
    settings = load(config, f"paths.log_dir: logs\nautotune:\n  {section}\n")
    text, outputs = settings.trial_text({}, Path("/a trial")), Path("/a trial")
    argv = settings.argv(config=Path("c"), config_text=text, python="p", outputs=outputs)
    runs = ("hydra.run.dir='/a trial/hydra'", "hydra.sweep.dir='/a trial/hydra'")
    assert argv[2:] == ("paths.log_dir='/a trial/logs'", *runs, "--name=/a trial/logs")
    assert settings.redirected(settings.command) == ("paths.log_dir", "hydra.run.dir", "hydra.sweep.dir")
    real = settings.argv(config=Path("c"), config_text=settings.trial_document.text, python="p")
    assert real[2:] == ("paths.log_dir=logs", "--name=logs", "hydra.run.dir=mine")


def test_a_tag_of_the_trainers_does_not_hide_an_output(config):
    """The ``!ref`` folder of speechbrain is redirected whole; what is built on it follows by itself."""
    text = "seed: 7\noutput_folder: !ref results/<seed>  # here\nsave_folder: !ref <output_folder>/save\n"
    settings = load(config, text)
    assert settings.outputs.redirected == ("output_folder",)
    assert list(settings.outputs.left) == ["save_folder"]
    assert settings.trial_text({}, Path("/o")) == text.replace("!ref results/<seed>", "/o/results/_seed_")


@pytest.mark.parametrize(
    ("section", "line", "key", "why", "remedy"),
    [
        ("comand: x", 11, "autotune.comand", "unknown key comand", "Did you mean command?"),
        ("trial: {min_step: 3}", 11, "autotune.trial.min_step", "unknown key trial.min_step", "min_steps"),
        ("trial: {max_s: -5}", 11, "autotune.trial.max_s", "above 0", "valid"),
        ("trial: {min_s: 30}", 11, "autotune.trial", "above trial.max_s", "Raise max_s"),
        ("objective: speed", 11, "autotune.objective", "'throughput'", "valid"),
        ("knobs:\n    data.workers: []", 12, "autotune.knobs.data.workers", "empty", "List"),
        ("knobs:\n    data.workers: 5", 12, "autotune.knobs.data.workers", "neither a list nor", "Write"),
        ("knobs:\n    data.workers: [1, 1.0]", 12, "autotune.knobs.data.workers", "twice", "Delete"),
        ("knobs:\n    data.workers: [1, true]", 12, "autotune.knobs.data.workers", "mixes", "one type"),
        ("knobs:\n    data.workers: [1, [2]]", 12, "autotune.knobs.data.workers", "not a single value", "integers"),
        (
            "knobs:\n    data.workers: {low: 9, high: 1}",
            12,
            "autotune.knobs.data.workers",
            "low 9, which is not below",
            "set:",
        ),
        (
            "knobs:\n    data.workers: {low: 1, high: 1}",
            12,
            "autotune.knobs.data.workers",
            "not below high 1",
            "low below",
        ),
        ("knobs:\n    data.workers: {low: 0, high: 8, log: true}", 12, "autotune.knobs.data.workers", "log", "0, 1"),
        ("knobs:\n    data.workers: {low: 0, high: 8, step: 1.5}", 12, "autotune.knobs.data.workers", "step", "int"),
        ("knobs:\n    data.workers: {low: 1}", 12, "autotune.knobs.data.workers", "high is missing", "Add"),
        ("knobs:\n    data.worker: [1, 2]", 12, "autotune.knobs.data.worker", "no such key", "mean data.workers?"),
        ("knobs:\n    data: [1, 2]", 12, "autotune.knobs.data", "mapping", "data.batch_size"),
        ("knobs:\n    training.checkpoint_dir: {low: 1, high: 2}", 12, "autotune.knobs", "output", "except"),
        ("knobs:\n    autotune.env.X: [a, b]", 12, "autotune.knobs.autotune.env.X", "no baseline value", "env: {X"),
        ("knobs: {training.epochs: [1]}\n  set: {training.epochs: 1}", 11, "autotune.knobs", "fixed by set", "one of"),
        ("set: {training: {epochs: 1}}", 11, "autotune.set.training", "not a single value", "dotted"),
        ("env: {A: [1]}", 11, "autotune.env.A", "cannot be set", "text"),
        ("batch: [4x]", 11, "autotune.batch", "not a batch limit", "batch: 4x"),
        ("batch: 0.5x", 11, "autotune.batch", "not a batch limit", "batch: 4x"),
        ("batch: true", 11, "autotune.batch", "not a batch limit", "batch: 4x"),
        ("redirect: [training.epochs]", 11, "autotune.redirect", "not a path", "Remove it"),
        ("command: 'a | b {config}'", 11, "autotune.command", "shell", "script"),
    ],
)
def test_mistakes_name_file_line_and_key(config, section, line, key, why, remedy):
    """Each mistake is told where it stands, and with the way out."""
    with pytest.raises(ConfigError, match=why) as caught:
        load(config, f"{TRAINING}autotune:\n  {section}\n")
    assert caught.value.where.startswith(f"{config}:{line} ({key}")
    assert remedy in caught.value.remedy


def test_a_value_that_cannot_be_edited_cannot_be_a_knob(config):
    """It is said before the first trial, with the line that it stands in."""
    text = "a: &x 1\nb: *x\nautotune:\n  knobs: {b: [1, 2]}\n"
    with pytest.raises(ConfigError, match="b cannot be changed: an alias") as caught:
        load(config, text)
    assert caught.value.where == f"{config}:4 (autotune.knobs.b)"
    assert "line 1" in caught.value.remedy


VARIABLES = """\
a: 1
autotune:
  command: t {config}
  knobs:
    autotune.env.MODE: [on, off, "no"]
    autotune.env.THREADS: [1, 2, 4]
    autotune.env.SIZE: {low: 1, high: 8}
  env: {MODE: on, THREADS: "2", SIZE: '03', PLAIN: yes}
"""


def test_the_values_of_variables_are_texts(config):
    """YAML's `on` and `no` are no switches there, a number in quotes is a number; what is written is passed on."""
    settings = load(config, VARIABLES)
    assert settings.section.knobs["autotune.env.MODE"] == ("on", "off", "no")
    assert [settings.scalars[f"autotune.env.{name}"] for name in ("MODE", "THREADS", "SIZE")] == ["on", 2, 3]
    values = {"autotune.env.MODE": "off", "autotune.env.THREADS": 4, "autotune.env.SIZE": 3}
    assert settings.trial_env(values) == {"MODE": "off", "THREADS": "4", "SIZE": "03", "PLAIN": "yes"}


def test_variables_are_applied_where_they_stand(config):
    """In the section, and only those that differ: the others keep their characters."""
    settings = load(config, VARIABLES)
    edits = settings.edits({"autotune.env.MODE": "off", "autotune.env.THREADS": 4, "autotune.env.SIZE": 3, "a": 1})
    assert edits == {config: {("autotune", "env", "MODE"): "off", ("autotune", "env", "THREADS"): 4}}
    new = plan_edit(config, edits[config]).new
    assert new == VARIABLES.replace('MODE: on, THREADS: "2"', "MODE: 'off', THREADS: 4")
    assert load(config, new).trial_env({}) == {"MODE": "off", "THREADS": "4", "SIZE": "03", "PLAIN": "yes"}


@pytest.mark.parametrize("text", ["0.5", "1e-3", "nan", "inf", "0x10", "1_000", "1:30", "", "-7", "1.2.3"])
def test_variables_that_are_numbers(config, text):
    """A text that any program would read as a number is one; all else stays text."""
    baseline = load(config, f"a: 1\nautotune: {{env: {{X: '{text}'}}}}\n").scalars["autotune.env.X"]
    assert baseline == {"0.5": 0.5, "1e-3": 0.001, "-7": -7}.get(text, text)


@pytest.mark.parametrize(
    ("domain", "why"),
    [
        (f"[16, 1{'0' * 500}]", "too large"),
        ("[16, 9007199254740993]", "too large"),
        ("[16.0, 1.0e-320]", "too large or too small"),
        ("{low: -1.0e+308, high: 1.0e+308}", "too large or too small"),
        ("{low: 1.0, high: 64.0, step: .nan}", "finite"),
        ('[a, "\\ud800"]', "surrogate"),
        (f"[{', '.join(map(str, range(1001)))}]", "1,001 values"),
    ],
)
def test_a_domain_that_no_search_can_turn(config, domain, why):
    """Numbers that floats cannot tell apart, texts that are none, values without end: said in one short message."""
    with pytest.raises(ConfigError, match=why) as caught:
        load(config, f"x: 16\nautotune:\n  command: t {{config}}\n  knobs:\n    x: {domain}\n")
    assert f"{config}:5" in caught.value.where
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("name", "text"), [("c.json", '{"autotune": {}}'), ("c.toml", "[autotune]\n"), ("c.py", "autotune = {}\n")]
)
def test_a_section_that_is_no_yaml_is_an_error(tmp_path, name, text):
    """It would be read by nobody there; the error names the file that it belongs into."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match="cannot contain an autotune section") as caught:
        load_settings(tmp_path / name)
    assert "c.autotune.yaml" in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("4x", BatchLimit(factor=4.0)),
        (" 1.5X", BatchLimit(factor=1.5)),
        ("1x", BatchLimit(factor=1.0)),
        ("same", BatchLimit(factor=1.0, is_fixed=True)),
        ("free", BatchLimit(factor=math.inf)),
    ],
)
def test_factors_and_words(text: str, limit: BatchLimit) -> None:
    """Any factor from 1 on, and two words."""
    assert parse_batch_limit(text) == limit
    assert limit.is_free is (text == "free")


@pytest.mark.parametrize("text", ["", "4", "x", "0.5x", "0x", "-4x", "nanx", "infx", "4xx", "four", "1e3x"])
def test_what_is_no_limit(text: str) -> None:
    """The message says what would be one."""
    with pytest.raises(ValueError, match=r"4x|1x"):
        parse_batch_limit(text)


def test_without_a_section_everything_has_its_default(config):
    """A plain config loads; only the command is missing, and said to be when it is needed."""
    settings = load(config, TRAINING)
    assert (settings.section.knobs, settings.command, settings.section.place("command")) == (None, None, "autotune")
    with pytest.raises(ConfigError, match="no training command"):
        settings.argv(config=config, config_text=TRAINING, python="python")
