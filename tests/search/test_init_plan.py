"""Init plans, on configs of other projects too."""

import re
import sys
from pathlib import Path

import pytest

from autotune.config.command import read_typed
from autotune.config.document import Document
from autotune.errors import CommandError, ConfigError
from autotune.options import SearchOptions
from autotune.records import Machine
from autotune.search.init_plan import InitPlan, environment_offers, not_taken, plan_init, plan_init_from_flags
from autotune.search.problem import Problem, limited, open_problem
from tests.conftest import SHARED

CONFIGS = sorted((SHARED / "yaml").glob("*.y*ml*"))
COMMAND = (sys.executable, "train.py", "{config}")
CONFIG = """\
data: {batch_size: 8, num_workers: 2}  # on one line
train:
  lr: 1e-4
  checkpoint_dir: ckpt
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Config below a folder with a hostile name; commands are typed there."""
    folder = tmp_path / 'it\'s a "folder"\n'
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = folder / "config.yaml"
    path.write_text(CONFIG)
    return path


def init_plan(config: Path, *words: str, separate: bool = False) -> InitPlan:
    """Return the init plan for a config."""
    return plan_init(config, read_typed(words or COMMAND), separate=separate, state_dir=None)


def searched(config: Path) -> Problem:
    """Return what a search reads of a config."""
    return limited(open_problem(config, command=None, state_dir=None), SearchOptions())


def written(one: InitPlan) -> None:
    """Write an init plan without further ado."""
    one.edit.path.write_bytes(one.edit.new.encode())


def _uncommented(text: str) -> str:
    """Return the section with its list of knobs taken out of the comment."""
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.strip() == "# knobs:")
    end = next(i for i in range(start + 1, len(lines)) if not lines[i].lstrip().startswith("#   "))
    return "".join(line.replace("# ", "", 1) if start <= i < end else line for i, line in enumerate(lines))


@pytest.mark.parametrize("separate", [False, True])
def test_a_search_reads_the_section_as_planned(config: Path, separate: bool) -> None:
    """A search has the same knobs, command and outputs; also with the list taken out of its comment."""
    one = init_plan(config, separate=separate)
    written(one)
    problem = searched(config)
    assert (problem.space, problem.command, problem.study) == (one.problem.space, COMMAND, one.problem.study)
    assert problem.settings.outputs.redirected == ("train.checkpoint_dir",)
    assert [knob.path for knob in problem.space.knobs] == ["data.num_workers", "data.batch_size"]
    one.edit.path.write_text(_uncommented(one.edit.new))
    listed = searched(config)
    assert listed.settings.section.knobs is not None
    assert listed.space == problem.space.within_reach({})


def test_a_section_that_the_trainer_could_not_be_tried_with_gets_a_file_of_its_own(config: Path) -> None:
    """So it is where the command does not name the config, or a reason is given; a wish needs no reason."""
    by_values = (sys.executable, "train.py", "{data.batch_size}")
    one = init_plan(config, *by_values)
    assert (one.edit.path.name, one.is_new) == ("config.autotune.yaml", True)
    assert "the command does not name config.yaml" in (one.why_separate or "")
    assert init_plan(config, *by_values, separate=True).why_separate is None
    assert not init_plan(config).is_new
    rejected = plan_init(config, read_typed(COMMAND), separate=False, state_dir=None, why_separate="it fails")
    assert (rejected.edit.path.name, rejected.why_separate) == ("config.autotune.yaml", "it fails")
    written(rejected)
    assert searched(config).study == rejected.problem.study


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("where", ["in it", "beside it"])
def test_there_is_one_section(config: Path, separate: bool, where: str) -> None:
    """A second one, wherever the first stands, is refused with its place."""
    if where == "in it":
        config.write_text(CONFIG + "autotune: {command: x}\n")
    else:
        config.with_name("config.autotune.yaml").write_text("command: x\n")
    with pytest.raises(ConfigError, match="already") as caught:
        init_plan(config, separate=separate)
    assert str(caught.value.where).endswith("config.yaml:5" if where == "in it" else "config.autotune.yaml")


@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        (("nosuchprogram", "{config}"), CommandError, "PATH: nosuchprogram"),
        ((sys.executable, "t.py"), ConfigError, "contains neither"),
        ((sys.executable, "t.py", "{confg}"), ConfigError, "no such key"),
        ((sys.executable, "t.py", "{config}", "{data.batch}"), ConfigError, "no such key"),
        (("./config.yaml", "{config}"), CommandError, "is not executable"),
    ],
)
def test_a_command_that_cannot_be_started_is_refused(config: Path, words: tuple[str, ...], error, why: str) -> None:
    """The error quotes what was typed, not the plan."""
    with pytest.raises(error, match=why) as caught:
        init_plan(config, *words)
    assert str(caught.value.where).startswith("command")
    assert "autotune-init-" not in str(caught.value)
    assert config.read_text() == CONFIG


def test_keys_with_the_name_of_a_knob_that_are_none(config: Path) -> None:
    """A list, a template, an alias, words for numbers, null, validation: each is told with its reason."""
    config.write_text("""\
base: &size 4
train:
  batch_size: *size
  num_workers: [1, 2]
  prefetch: ${data.prefetch}
  use_xla: "yes"
more: {batch: 1e2, n_workers: "4", workers: many, parallel_calls: auto, prefetch_to_gpu: false}
merged: &m {cache: none}
other: {<<: *m}
valid: {batch_size: 2}
blocks: [{batch_size: 3}]
""")
    one = init_plan(config)
    said = {skipped.path: skipped.why for skipped in not_taken(one.problem)}
    reasons = {
        "train.batch_size": "alias",
        "train.num_workers": "list",
        "train.prefetch": "template",
        "train.use_xla": "not a known value",
        "more.batch": "disagree on 1e2",
        "more.n_workers": "4 is quoted",
        "more.workers": "not a known value",
        "more.prefetch_to_gpu": "on this machine",
        "merged.cache": "alias",
        "other.cache": "merge key",
        "valid.batch_size": "validation",
    }
    assert said.keys() == reasons.keys()
    assert {path: why for path, why in reasons.items() if why not in said[path]} == {}
    assert set(one.problem.space.baseline) == {"more.parallel_calls", "blocks.0.batch_size"}


@pytest.mark.parametrize(
    ("number", "refused"),
    [
        ("config['scaling']['num_workers']", ["scaling.num_workers"]),
        ("args.num_workers", ["scaling.num_workers", "data.num_workers"]),  # either may be meant
        ("2", []),
    ],
)
def test_the_number_of_ranks_is_no_number_of_loader_workers(config: Path, number: str, refused: list[str]) -> None:
    """Ray Train names both `num_workers`: the code tells which key it takes as the number of ranks."""
    config.write_text("scaling: {num_workers: 2}\ndata: {num_workers: 1, batch_size: 8}\n")
    config.with_name("train.py").write_text(
        f"TorchTrainer(train, scaling_config=ScalingConfig(num_workers={number}))\n"
    )
    problem = init_plan(config).problem
    left = {skipped.path: skipped.why for skipped in not_taken(problem)}
    assert left == dict.fromkeys(refused, "it is the number of ranks: other numbers change the training")


def test_a_config_out_of_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flags and the section in one new file; a search finds the knobs and the outputs among them."""
    monkeypatch.chdir(tmp_path)
    words = ("MODE=1", sys.executable, "t.py", "--batch_size=16", "--use_xla", "--lr", "3e-4", "--out_dir", "o", "-v")
    one = plan_init_from_flags(Path("new.yaml"), read_typed(words), state_dir=None)
    assert list(one.flags.left) == ["-v"]
    assert not Path("new.yaml").exists()
    written(one)
    problem = searched(Path("new.yaml"))
    assert problem.space == one.problem.space
    assert problem.space.baseline == {"batch_size": 16, "use_xla": True}
    assert problem.settings.section.env == {"MODE": "1"}
    text = problem.settings.trial_text({"batch_size": 32, "use_xla": False}, Path("/trials/1"))
    argv = problem.settings.argv(config=Path("c"), config_text=text, python="p")
    assert argv == (sys.executable, "t.py", "--batch_size=32", "--lr", "3e-4", "--out_dir", "/trials/1/o", "-v")


@pytest.mark.parametrize(
    ("name", "words", "why"),
    [("there.yaml", ("t.py", "--a=1"), "not overwritten"), ("nowhere/new.yaml", ("t.py", "--a=1"), "no such folder")],
)
def test_flags_that_make_no_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: tuple[str, ...], why: str
) -> None:
    """A file that is there is never written over, and a config without a key would tune nothing."""
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match=why):
        plan_init_from_flags(Path(name), read_typed(words), state_dir=None)


@pytest.mark.parametrize("script", ["import tensorflow as tf\n", "import numpy\n"])
def test_of_a_command_without_flags_the_environment_may_vary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    """The file holds a section alone, which a search can use as it stands."""
    monkeypatch.chdir(tmp_path)
    Path("t.py").write_text(script)
    one = plan_init_from_flags(Path("new.yaml"), read_typed(("KIND=a", sys.executable, "t.py", "-v")), state_dir=None)
    written(one)
    problem = searched(Path("new.yaml"))
    assert problem.space == one.problem.space
    assert problem.settings.section.env["KIND"] == "a"
    names = {path.removeprefix("autotune.env.") for path in problem.space.baseline}
    assert names == set(problem.settings.section.env) - {"KIND"}
    assert ("TF_XLA_FLAGS" in names) is ("tensorflow" in script)
    problem.require_runnable()


@pytest.mark.parametrize(
    ("command", "baseline", "most"),
    [
        (("python", "t.py"), "8", 8),
        (("torchrun", "--nproc-per-node", "2", "t.py"), "1", 4),  # which sets it to 1
        (("mpirun", "--npernode", "2", "python", "t.py"), "4", 4),
    ],
)
def test_threads_of_a_library_are_those_of_each_rank(
    tmp_path: Path, command: tuple[str, ...], baseline: str, most: int
) -> None:
    """Up to its share of the cores; the baseline is what the launcher sets."""
    machine = Machine(cpu_cores=8, cpu_model="x", memory_bytes=1 << 34)
    offers = {one.name: one for one in environment_offers(command, {}, machine, cwd=tmp_path)}
    threads = offers["OMP_NUM_THREADS"]
    assert (threads.baseline, max(threads.choices)) == (baseline, most)


@pytest.mark.skipif(not CONFIGS, reason="the collection of real configs is not here")
@pytest.mark.parametrize("original", CONFIGS[1::4], ids=lambda path: path.name[:3])
def test_real_configs_get_a_section_and_keep_every_byte(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search then reads the same knobs, listed or found; configs that cannot be edited are refused in words."""
    monkeypatch.chdir(tmp_path)
    content = original.read_bytes()
    config = tmp_path / original.name.partition("__")[2]
    config.write_bytes(content)
    refusal = _refusal(config)
    if refusal is not None:
        with pytest.raises(ConfigError, match=re.escape(refusal.message)) as caught:
            init_plan(config)
        assert (caught.value.where, caught.value.remedy) == (refusal.where, refusal.remedy)
        assert config.read_bytes() == content
        return
    one = init_plan(config)
    new = one.edit.new.encode()
    assert new.replace(one.edit.inserted.encode(), b"", 1) == content
    assert (b"\r\n" in content) == (b"\r\n" in one.edit.inserted.encode())
    config.write_bytes(new)
    problem = searched(config)
    assert problem.space == one.problem.space
    copy = problem.settings.trial_document
    assert copy.data == Document(content.decode()).data
    if problem.space.knobs:
        config.write_bytes(_uncommented(one.edit.new).encode())
        assert searched(config).space == problem.space.within_reach({})


def _refusal(config: Path) -> ConfigError | None:
    """Return the error of a file that is no config at all; None if it is one."""
    try:
        Document.read(config)
    except ConfigError as error:
        return error
    return None
