"""Catalog: which row a key of a real config belongs to, and which values are an error together."""

import pytest

from autotune.records import Gpu, Machine, Scalar, Values
from autotune.space.catalog import known_knob, why_not_tuned
from autotune.space.find import build_space
from autotune.space.knob import Label
from autotune.space.space import Space


def _machine(gpus: int = 1) -> Machine:
    found = tuple(Gpu(name="H200", uuid=f"GPU-{i}", memory_bytes=140 * 2**30) for i in range(gpus))
    return Machine(cpu_cores=4, cpu_model="test", memory_bytes=8 * 2**30, gpus=found)


def _space(config: Values, gpus: int = 1, listed: dict[str, tuple[Scalar, ...]] | None = None) -> Space:
    return build_space(config, listed, _machine(gpus), {})[0]


@pytest.mark.parametrize(
    ("path", "present", "kind"),
    [
        ("num_intra_threads", 0, "intra_op_threads"),
        ("num_inter_threads", 2, "inter_op_threads"),
        ("datasets_num_private_threads", 8, "loader_threads"),
        ("num_threads", 4, "threads"),
        ("dataloader_num_workers", 4, "workers"),
        ("trainer_config.data_loader_workers", 4, "workers"),
        ("dataloader_pin_memory", True, "pin_memory"),
        ("data.persistent_workers", False, "persistent_workers"),
        ("dataloader_prefetch_factor", 2, "prefetch_factor"),
        ("datasets_use_prefetch", False, "prefetch_switch"),
        ("compile", False, "torch_compile"),
        ("use_channels_last", False, "channels_last"),
        ("bf16", True, "bf16"),
        ("common.fp16", True, "fp16"),
        ("tf32", False, "tf32"),
        ("trainer.benchmark", False, "cudnn_benchmark"),
        ("torch.cudnn.benchmark", False, "cudnn_benchmark"),
        ("pl_trainer_precision", "16-mixed", "precision"),
        ("trainer.precision", 32, "precision"),
        ("data.enhanced_gpu_prefetch", True, "gpu_prefetch_strategy"),
        ("data.optimize_cpu_gpu_overlap", True, "pipeline_rewrites"),
        ("data.auto_tune_performance", True, "self_tuned_buffers"),
        ("training.enable_eager_debug", True, "debugging"),
        ("enable_static_shapes", False, "fixed_length"),
        ("SOLVER.IMS_PER_BATCH", 16, "batch_size"),
        ("SOLVER.AMP.ENABLED", False, "precision"),
        ("runtime.mixed_precision_dtype", "float32", "dtype"),
        ("trainer.steps_per_loop", 100, "steps_per_call"),
        ("runtime.dataset_num_private_threads", 4, "loader_threads"),
        ("Train.loader.batch_size_per_card", 8, "batch_size"),
        ("Train.loader.batchSizePerGPU", 8, "batch_size"),
        ("perGPUBatchSize", 8, "batch_size"),
        ("train.micro_batch_size_per_device", 8, "batch_size"),
        ("trainBatchsize", 8, "batch_size"),
        ("batch_bins", 1_000_000, "batch_tokens"),
        ("dynamic_batching", False, "length_buckets"),
        ("threads", 4, "threads"),
    ],
)
def test_names_of_real_trainers(path: str, present: Scalar, kind: str) -> None:
    """Of tf_cnn_benchmarks, Hugging Face, Lightning, Detectron2, the Model Garden, ESPnet and SpeechBrain."""
    row = known_knob(path, present)
    assert row is not None
    assert row.kind == kind


@pytest.mark.parametrize(
    ("path", "present"),
    [
        ("benchmark", True),  # which benchmark, of what?
        ("hydra.sweeper.params.compile", "choice(true,false)"),
        ("compile", "max-autotune"),
        ("fp16", "auto"),
        ("trainer.precision", "bf16-true"),
        ("num_threads", 0),
        ("MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 512),
        ("max_batch_size", 48),
        ("test_batch_size", 2),
        ("batch_size", "8"),
        ("kt_config.kt_num_threads", 96),
        ("dataloader_prefetch_factor", None),
        ("downcast_bf16", "no"),
    ],
)
def test_what_only_looks_like_a_knob_is_none(path: str, present: Scalar) -> None:
    """A value of another kind, or a name that means several things, is left alone."""
    assert known_knob(path, present) is None


def test_bf16_and_fp16_are_never_both_on() -> None:
    """Hugging Face's trainer raises an error then; advice for one turns the other off."""
    space = _space({"bf16": True, "fp16": False})
    assert "conflicts with" in (space.why_infeasible({"bf16": True, "fp16": True}) or "")
    assert space.with_heuristic(space.baseline, "fp16", True) == {"bf16": False, "fp16": True}
    assert _space({"bf16": False, "fp16": False}, listed={"bf16": (False, True)}).knob("bf16").choices == (False, True)


def test_bf16_is_no_knob_beside_an_fp16_that_stays_on() -> None:
    """A key that the user did not list is as it is, and there is only one value that goes with it."""
    space, skipped = build_space({"bf16": False, "fp16": True}, {"bf16": (False, True)}, _machine(), {})
    assert space.knobs == ()
    assert [(one.path, one.why) for one in skipped] == [("bf16", "other values conflict with fp16: True")]


@pytest.mark.parametrize(("path", "value"), [("persistent_workers", True), ("prefetch_factor", 4)])
def test_what_workers_do_needs_workers(path: str, value: Scalar) -> None:
    """PyTorch's loader raises an error without them; the suggestion brings some along."""
    config: dict[str, Scalar] = {"num_workers": 0, "persistent_workers": False, "prefetch_factor": 2}
    space = _space(config)
    assert space.why_infeasible(space.baseline) is None  # the user runs it
    assert "conflicts with num_workers: 0" in (space.why_infeasible({**config, path: value}) or "")
    assert space.with_heuristic(space.baseline, path, value) == {**config, path: value, "num_workers": 4}
    without = _space(config, listed={path: (config[path], value)})
    assert without.knobs == ()


def test_debugging_is_only_ever_turned_off() -> None:
    """A training without it is not offered a slower one."""
    assert _space({"run_eagerly": False}).knobs == ()
    assert _space({"run_eagerly": True}).knob("run_eagerly").heuristic_values == (False,)


def test_variables_are_turned_only_where_they_are_listed() -> None:
    """A variable that the user sets for all trials stays, until it is listed; then it is known what it means."""
    config: dict[str, Scalar] = {"autotune.env.OMP_NUM_THREADS": 2}
    assert _space(config).knobs == ()
    (knob,) = _space(config, listed={"autotune.env.OMP_NUM_THREADS": (1, 2)}).knobs
    assert knob.label is Label.SAME_TRAINING


@pytest.mark.parametrize(
    "path",
    [
        *("training.enable_memory_isolation", "gradient_checkpointing", "flash_attn", "data.pipeline_buffer_mb"),
        *("data.pipeline_warmup_batches", "runtime.model_gpu_memory_mb"),
    ],
)
def test_known_and_not_turned_has_a_reason(path: str) -> None:
    """The user reads that it was seen, and why it stays."""
    assert known_knob(path, True) is None
    assert why_not_tuned(path)
    assert why_not_tuned("learning_rate") is None
