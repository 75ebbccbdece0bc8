"""Keys whose effect on speed is known and that no search turns, with the reason."""

from autotune.space.knob import key_name

_REASONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("memory_isolation", "enable_memory_isolation", "use_memory_isolation"),
        "it divides the memory of the GPUs, and only two of them need it; which GPUs are used is searched",
    ),
    (
        (
            "data_gpu_memory",
            "data_gpu_memory_mb",
            "model_gpu_memory",
            "model_gpu_memory_mb",
            "gpu_memory_limit",
            "gpu_memory_fraction",
            "max_memory_fraction",
        ),
        "it limits the memory, and with that the batch; it makes no step faster",
    ),
    (
        ("pipeline_buffer_mb",),
        "it is the most memory that the buffer between two GPUs may take; how many batches wait there is searched",
    ),
    (
        ("pipeline_warmup_batches",),
        "it is how many batches are to be there before the first step, and what is before that is not measured",
    ),
    (
        ("allow_growth", "allow_memory_growth", "enable_memory_growth"),
        "it says when memory is taken, and makes no step faster",
    ),
    (
        (
            "gradient_checkpointing",
            "use_gradient_checkpointing",
            "activation_checkpointing",
            "fsdp_activation_checkpointing",
            "disable_gradient_checkpointing",
        ),
        "it pays for memory with time; list it under knobs: if the memory may suffice without it",
    ),
    (
        ("flash_attn", "use_flash_attn", "attn_implementation", "attention_backend"),
        "which implementations are installed is not known; list those under knobs: that are",
    ),
    (
        ("data_format", "image_data_format", "memory_format"),
        "it may describe the data themselves; list it under knobs: if the trainer converts them",
    ),
    (
        (
            "preprocessing_num_workers",
            "preprocess_num_workers",
            "num_preprocessing_workers",
            "text_workers",
            "text_cache",
        ),
        "it is for the preparation before the first step, which is not measured",
    ),
    (
        ("shuffle_buffer", "shuffle_buffer_size", "shuffle_buffer_multiplier"),
        "it changes the order of the samples",
    ),
    (
        ("deterministic", "use_deterministic_algorithms", "torch_deterministic", "cudnn_deterministic"),
        "it makes trainings repeatable, which is yours to give up",
    ),
)


def why_not_turned(path: str) -> str | None:
    """Return the reason for which a key that bears on speed is not searched unless it is listed; None for others."""
    name = key_name(path)
    return next((why for names, why in _REASONS if name in names), None)
