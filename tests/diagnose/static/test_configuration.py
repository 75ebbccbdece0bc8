"""Check of the config: mistakes, and what does not suit the machine."""

from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.diagnose.config_checks import check_configuration, is_one_letter_off
from autotune.diagnose.findings import Issue, Severity
from autotune.diagnose.subject import Subject
from autotune.diagnose.tables import starting_batch, types_of, usual_gpus
from autotune.errors import ConfigError
from autotune.records import Gpu, Machine
from autotune.search.problem import open_problem
from tests.conftest import SHARED
from tests.diagnose.static.problems import CORES, CPU, GIB, problem_of, with_gpus

A100 = with_gpus("NVIDIA A100-SXM4-80GB", memory_gib=80)
T4 = with_gpus("Tesla T4", memory_gib=16)
READS_YAML = "import yaml\nconfig = yaml.safe_load(open('c'))\nprint(config['batch_size'])\n"


def issues_of(folder: Path, config: str, machine: Machine = CPU, trainer: str | None = None) -> tuple[Issue, ...]:
    """Return what is found in a config."""
    problem = problem_of(folder, config, machine=machine, trainer=trainer)
    return check_configuration(Subject(problem=problem, clock=SystemClock())).issues


@pytest.mark.parametrize(
    ("config", "machine", "severity", "said", "values"),
    [
        ("train: {batch_sze: 8}", CPU, "warning", "train.batch_sze is probably a typo for batch_size", {}),
        ('use_amp: "false"', A100, "warning", "a non-empty text is true in Python", {}),
        ('batch_size: "16"', CPU, "warning", "is the text 16 in quotes", {}),
        ('num_workers: "4"', CPU, "warning", "is the text 4 in quotes", {}),
        ("{batch_size: 4, batch_size: 8}", CPU, "note", "are the same key", {}),
        ("batch_size: 0", CPU, "warning", "batch_size is 0", {}),
        ("lr: 1e-4", CPU, "note", "PyYAML reads lr: 1e-4 as text", {}),
        ("{fp16: true, bf16: true}", A100, "warning", "fp16: true conflicts with bf16: true", {}),
        ("{num_workers: 0, prefetch_factor: 2}", CPU, "warning", "prefetch_factor: 2 conflicts with num_workers", {}),
        (
            "{enable_xla: true, pad_to_fixed_length: false}",
            A100,
            "warning",
            "needs pad_to_fixed_length: true, which is false: XLA recompiles for each new shape",
            {"pad_to_fixed_length": True},
        ),
        ("num_workers: 0", CORES, "warning", "num_workers is 0, but this machine has 16 cores", {"num_workers": 16}),
        ("num_workers: 12", CPU, "warning", "num_workers is 12, but this machine has 2 cores", {"num_workers": 2}),
        ("model_gpu: 1", A100, "error", "model_gpu is GPU 1, but this machine has 1, counted from 0", {}),
        ("precision: 16-mixed", CPU, "warning", "a CPU only emulates float16", {"precision": "32-true"}),
        ("mixed_precision: bf16", CPU, "warning", "has no native bfloat16", {"mixed_precision": "fp32"}),
        ("bf16: true", T4, "warning", "Tesla T4 has no native bfloat16", {"bf16": False}),
        ("use_amp: false", A100, "note", "compute far faster in 16 bits", {"use_amp": True}),
        ("mixed_precision: float32", T4, "note", "compute far faster", {"mixed_precision": "mixed_float16"}),
        ("run_eagerly: true", CPU, "warning", "meant for debugging", {"run_eagerly": False}),
        ("enable_graph_mode: false", CPU, "warning", "Python launches each op", {"enable_graph_mode": True}),
        ("prefetch_buffer_size: 0", CPU, "note", "no batch is prefetched", {"prefetch_buffer_size": 2}),
        ("prefetch_buffer_size: 1", CPU, "note", "one prefetched batch", {"prefetch_buffer_size": 4}),
        ("num_workers: 3", CPU, "note", "this pays off only if workers wait", {}),
        (
            "{enable_xla: false, pad_to_fixed_length: false}",
            A100,
            "note",
            "launched one by one, not fused",
            {"enable_xla": True, "pad_to_fixed_length": True},
        ),
        ("batch_size: 2", A100, "note", "batch_size is 2, which is small for NVIDIA A100", {"batch_size": 64}),
        (
            "{batch_size: 8, accumulate_grad_batches: 4}",
            A100,
            "note",
            "4 batches of 8 make one update",
            {"batch_size": 16, "accumulate_grad_batches": 2},
        ),
        ("{pin_memory: true, fp16: true}", CPU, "note", "with no GPU, pin_memory and fp16 have no effect", {}),
        (
            "{data_gpu: 0, model_gpu: 0, pipeline_buffer_size: 4}",
            A100,
            "note",
            "with one GPU, pipeline_buffer_size has no effect",
            {},
        ),
    ],
)
def test_what_is_wrong_is_said_with_values_that_mend_it(
    tmp_path: Path, config: str, machine: Machine, severity: str, said: str, values: dict[str, object]
) -> None:
    """One issue for each, with its place, and the value to write where a knob has one."""
    (found,) = issues_of(tmp_path, config, machine)
    assert said in found.sentence
    assert found.severity == Severity(severity)
    assert found.place == f"{tmp_path / 'config.yaml'}:1"
    assert [dict(one.values) for one in found.recommendations] == ([values] if found.recommendations else [])
    assert bool(values) <= bool(found.recommendations)


@pytest.mark.parametrize(
    ("config", "machine"),
    [
        ("{batchsize: 8, batch_sizes: 3, workers_2: 1, precisions: x, num_layer: 2}", CPU),
        ("{batch_size: 8, num_workers: 2, lr: 1.0e-4, precision: bf16, use_amp: true}", A100),
        ('{mixed_precision: "no", prefetch_factor: 2, num_workers: 4}', CORES),
        ("{binarization_args: {num_workers: 0}, validation: {num_workers: 0, batch_size: 1}}", CORES),
        ("{trainer: {lr: 1e-4}, log_dir: '${root}/logs'}", CPU),
        ("{use_amp: false, bf16: true}", A100),
        ("enable_xla: false", CPU),
        ("{mixed_precision: float32}", with_gpus("NVIDIA GeForce GTX 1080")),
    ],
)
def test_fine_values_give_no_false_alarm(tmp_path: Path, config: str, machine: Machine) -> None:
    """Other spellings, other sections, values that suit the machine."""
    assert issues_of(tmp_path, config, machine) == ()


def test_a_slip_is_an_error_where_the_sources_prove_it(tmp_path: Path) -> None:
    """They read ``batch_size`` and never ``batch_sze``; where they read that, it is no slip."""
    (found,) = issues_of(tmp_path, "batch_sze: 8", trainer=READS_YAML)
    assert found.severity is Severity.ERROR
    assert "the trainer's sources name only batch_size" in found.sentence
    assert issues_of(tmp_path, "batch_sze: 8", trainer=READS_YAML.replace("batch_size", "batch_sze")) == ()


def test_numbers_that_pyyaml_takes_for_words_depend_on_the_trainer(tmp_path: Path) -> None:
    """A trainer that uses PyYAML is warned, one that reads YAML 1.2 is not."""
    (found,) = issues_of(tmp_path, "lr: 1e-4", trainer=READS_YAML)
    assert found.severity is Severity.WARNING
    assert "Write 1.0e-4" in found.recommendations[0].sentence
    assert issues_of(tmp_path, "lr: 1e-4", trainer="from omegaconf import OmegaConf\n") == ()


@pytest.mark.parametrize(
    ("config", "said", "values"),
    [
        ("data_dir: data\ncache: none\n", "fit into memory ten times", {"cache": "memory"}),
        ("data_dir: data\nuse_cache: true\n", None, {}),
        ("data_dir: data\nbatch_size: 16\nprefetch: 100000000\n", "GiB of memory are free", None),
        ("data_dir: data\nbatch_size: 16\nprefetch: 8\n", None, {}),
    ],
)
def test_what_the_dataset_shows_of_caches_and_buffers(
    tmp_path: Path, config: str, said: str | None, values: dict[str, object] | None
) -> None:
    """A cache that would fit is off; batches ahead take more memory than there is."""
    (tmp_path / "data").mkdir()
    for number in range(64):
        (tmp_path / "data" / f"{number}.bin").write_bytes(bytes(4096))
    found = issues_of(tmp_path, config)
    assert [said in one.sentence for one in found if said] == ([True] if said else [])
    assert len(found) == bool(said)
    if found and values is not None:
        assert [dict(one.values) for one in found[0].recommendations] == [values]


def test_a_file_of_one_sample_counts_also_for_large_batches(tmp_path: Path) -> None:
    """Of pictures and sounds each is a sample, however few there are beside the batch."""
    (tmp_path / "data").mkdir()
    for number in range(8):
        (tmp_path / "data" / f"{number}.wav").write_bytes(bytes(4096))
    (found,) = issues_of(tmp_path, "data_dir: data\nbatch_size: 16\nprefetch: 100000000\n")
    assert "GiB of memory are free" in found.sentence


def test_xla_without_a_word_on_shapes_is_a_note(tmp_path: Path) -> None:
    """It compiles again for each; with a key that fixes them there is nothing to say."""
    (found,) = issues_of(tmp_path, "enable_xla: true")
    assert (found.severity, "no key says that all batches have one shape" in found.sentence) == (Severity.NOTE, True)
    assert issues_of(tmp_path, "enable_xla: true\npad_to_fixed_length: true") == ()


def test_the_place_is_the_line_of_the_key(tmp_path: Path) -> None:
    """Also below a section of autotune's, which trials do not see."""
    config = "autotune:\n  keep_outputs: true\ndata:\n  # many\n  num_workers: 99\n"
    (found,) = issues_of(tmp_path, config)
    assert found.place == f"{tmp_path / 'config.yaml'}:5"


def test_without_a_config_it_says_so() -> None:
    """The machine alone has no values."""
    assert check_configuration(Subject(problem=None, clock=SystemClock())).why_not == "no config is given"


def test_a_slip_is_one_letter() -> None:
    """Left out, added, changed, or two swapped; spelling, plurals and digits do not count."""
    for name in ("batch_sze", "batch_siize", "batch_sixe", "batch_szie", "bach_size"):
        assert is_one_letter_off(name, "batch_size"), name
    for name in ("batchsize", "batch_sizes", "batch_size2", "batch_side_x", "batch_size"):
        assert not is_one_letter_off(name, "batch_size"), name


@pytest.mark.parametrize(
    ("name", "types"),
    [
        *((f"NVIDIA GeForce RTX {model}", {"bfloat16", "float16"}) for model in (3060, 3090, 4090, 5090)),
        ("NVIDIA A100-PCIE-40GB", {"bfloat16", "float16"}),
        ("NVIDIA H100 80GB HBM3", {"bfloat16", "float16"}),
        ("Tesla T4", {"float16"}),
        ("NVIDIA GeForce GTX 1080", set()),
        ("Matrox G400", None),
    ],
)
def test_the_types_that_a_gpu_computes_in_are_told_by_its_name(name: str, types: set[str] | None) -> None:
    """Of the models that people own; of another one nothing is said."""
    assert types_of(Gpu(name=name, uuid="GPU-1", memory_bytes=None)) == types
    assert all(types_of(gpu) is not None for gpu in usual_gpus())


@pytest.mark.parametrize(("memory_gib", "batch"), [(12, 16), (24, 32), (40, 32), (80, 64)])
def test_the_batch_to_begin_with_grows_with_the_memory(memory_gib: int, batch: int) -> None:
    """A power of two, of an RTX 3060, an RTX 4090, an A100 of either size."""
    assert starting_batch(Gpu(name="any", uuid="GPU-1", memory_bytes=memory_gib * GIB)) == batch


@pytest.mark.services
@pytest.mark.skipif(not (SHARED / "yaml").is_dir(), reason="the collection of real configs is not here")
def test_real_configs_give_no_warning_on_a_machine_that_suits_them(tmp_path: Path) -> None:
    """Of 34 real ones, on an A100 with 16 cores: notes at most."""
    seen = 0
    for path in sorted((SHARED / "yaml").glob("*.y*ml")):
        try:
            problem = open_problem(path, command=None, state_dir=tmp_path, machine=A100)
        except ConfigError:
            continue
        seen += 1
        found = check_configuration(Subject(problem=problem, clock=SystemClock())).issues
        assert [issue for issue in found if issue.severity is not Severity.NOTE] == [], path.name
    assert seen >= 25
