"""Reader of the trainer's config, checked before TensorFlow is imported."""

import difflib
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec
import yaml

from autotune.tf.options import (
    BufferOptions,
    Cache,
    DeviceOptions,
    PipelineOptions,
    Precision,
    RuntimeOptions,
    StepOptions,
    require_at_least,
)
from autotune.workloads.tts.ljspeech import InputError

BUCKETS = 8  # length classes with data.bucket_by_length


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Section ``data``; see `configs/config.yaml`."""

    dataset_path: str
    batch_size: int = 8
    num_workers: int = 1
    prefetch_buffer_size: int = 1
    use_tf_native_loading: bool = False
    cache: Cache = Cache.NONE
    pad_to_fixed_length: bool = False
    max_text_length: int = 200
    max_mel_frames: int = 880
    bucket_by_length: bool = False
    prefetch_to_gpu: bool = False
    data_gpu: int | None = None
    model_gpu: int | None = None
    pipeline_buffer_size: int = 4
    pipeline_buffer_mb: int = 0
    pipeline_warmup_batches: int = 0
    text_workers: int = 0
    text_cache: bool = False
    throughput_options: bool = False

    def __post_init__(self) -> None:
        require_at_least(
            1,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            max_text_length=self.max_text_length,
            max_mel_frames=self.max_mel_frames,
        )
        require_at_least(0, prefetch_buffer_size=self.prefetch_buffer_size, text_workers=self.text_workers)


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig(RuntimeOptions):
    """Section ``runtime``."""

    data_gpu_memory_mb: int = 0
    model_gpu_memory_mb: int = 0
    logical_cpu_devices: int = 0


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Section ``training``."""

    learning_rate: float = 1e-3
    epochs: int = 1000
    seed: int = 0
    enable_graph_mode: bool = True
    enable_xla_compilation: bool = False
    mixed_precision: Precision = Precision.FLOAT32
    checkpoint_dir: str = "checkpoints"
    checkpoint_every_steps: int = 1000

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate must be a positive number, got {self.learning_rate}")
        require_at_least(1, epochs=self.epochs)
        require_at_least(0, checkpoint_every_steps=self.checkpoint_every_steps)
        if self.enable_xla_compilation and not self.enable_graph_mode:
            raise ValueError("enable_xla_compilation needs enable_graph_mode, which is false: XLA compiles graphs")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Config of the trainer."""

    data: DataConfig
    training: TrainingConfig = field(default_factory=TrainingConfig)
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)

    def pipeline_options(self, seed: int) -> PipelineOptions:
        return PipelineOptions(
            batch_size=self.data.batch_size,
            parallel_calls=self.data.num_workers,
            prefetch_batches=self.data.prefetch_buffer_size,
            cache=self.data.cache,
            fixed_length=self.data.pad_to_fixed_length,
            buckets=BUCKETS if self.data.bucket_by_length else 1,
            one_shape=self.data.data_gpu is not None,
            seed=seed,
            throughput=self.data.throughput_options,
        )

    def device_options(self) -> DeviceOptions:
        return DeviceOptions(
            data_gpu=self.data.data_gpu,
            model_gpu=self.data.model_gpu,
            logical_cpu_devices=self.runtime.logical_cpu_devices,
            data_gpu_memory_mb=self.runtime.data_gpu_memory_mb,
            model_gpu_memory_mb=self.runtime.model_gpu_memory_mb,
        )

    def buffer_options(self) -> BufferOptions:
        return BufferOptions(
            batches=self.data.pipeline_buffer_size,
            megabytes=self.data.pipeline_buffer_mb,
            warmup_batches=self.data.pipeline_warmup_batches,
        )

    def step_options(self) -> StepOptions:
        return StepOptions(
            graph=self.training.enable_graph_mode,
            xla=self.training.enable_xla_compilation,
            precision=self.training.mixed_precision,
        )


SECTIONS: dict[str, type] = {"data": DataConfig, "training": TrainingConfig, "runtime": RuntimeConfig}


def read_config(path: Path) -> TrainerConfig:
    """Read and check a config file, ignoring the ``autotune:`` section; raise InputError."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), remedy="pass a YAML file") from error
    if not isinstance(content, dict):
        raise InputError("has no sections", where=str(path), remedy=f"it needs {', '.join(SECTIONS)}")
    sections = {str(name): section or {} for name, section in content.items() if name != "autotune"}
    known = list(SECTIONS) + [f"{name}.{item.name}" for name, kind in SECTIONS.items() for item in fields(kind)]
    for name, section in sections.items():
        keys = section if isinstance(section, dict) else ()
        for key in (name, *(f"{name}.{key}" for key in keys)):
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise InputError(f"unknown key {key}", where=str(path), remedy=remedy)
    try:
        # Not strict: 1e-4 is a string in YAML 1.1.
        config = msgspec.convert(sections, TrainerConfig, strict=False)
        config.device_options(), config.buffer_options()
    except ValueError as error:
        text, _, place = str(error).partition(" - at `$.")
        key = text.split(maxsplit=1)[0]
        named = place.rstrip("`") or next(name.partition(".")[0] for name in known if name.endswith(f".{key}"))
        message = f"{named}.{text}" if named in SECTIONS and f"{named}.{key}" in known else f"{named}: {text}"
        remedy = "change the value; autotune's configs/config.yaml describes all keys"
        raise InputError(message, where=str(path), remedy=remedy) from error
    return config
