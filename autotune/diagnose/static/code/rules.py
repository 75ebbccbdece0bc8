"""Table of the rules about sources, the ones that cost most first. A new rule is a row and its finder."""

from autotune.diagnose.findings import Limit, Severity
from autotune.diagnose.static.code import tensorflow_finders as tensorflow
from autotune.diagnose.static.code import torch_finders as torch
from autotune.diagnose.static.code.rule import Rule, Surroundings

REWRITES_MAPS = (2, 13)
"""TensorFlow that makes maps without a state parallel, and puts a prefetch at the end, of its own accord: defaults of
``map_parallelization`` and ``inject_prefetch`` in the documentation of tf.data.experimental.OptimizationOptions; in
2.10 the second one was still off."""


def _is_older(surroundings: Surroundings) -> bool:
    return surroundings.tensorflow is None or surroundings.tensorflow < REWRITES_MAPS


def _is_newer(surroundings: Surroundings) -> bool:
    return not _is_older(surroundings)


def _has_cores(surroundings: Surroundings) -> bool:
    return surroundings.cores > 1


def _has_gpu(surroundings: Surroundings) -> bool:
    return surroundings.has_gpu


RULES: tuple[Rule, ...] = (
    Rule(
        id="eager-by-hand",
        sentence="the model runs op by op, which is for finding bugs",
        remedy="Leave run_eagerly or run_functions_eagerly out.",
        find=tensorflow.eager_by_hand,
        limit=Limit.HOST,
    ),
    Rule(
        id="eager-step",
        sentence="the weights are updated op by op: nothing puts tf.function on this step",
        remedy="Put @tf.function on the function that computes and applies the gradients.",
        find=tensorflow.eager_steps,
        limit=Limit.HOST,
    ),
    Rule(
        id="checks-every-number",
        sentence="every number of the step is checked, which is for finding bugs",
        remedy="Leave enable_check_numerics out.",
        find=tensorflow.checks_of_numbers,
        limit=Limit.STEP,
    ),
    Rule(
        id="anomalies-detected",
        sentence="autograd looks for anomalies in every step, which is for finding bugs",
        remedy="Leave detect_anomaly out.",
        find=torch.anomalies_detected,
        limit=Limit.STEP,
    ),
    Rule(
        id="function-made-in-loop",
        sentence="tf.function is put on a function again in each round of a loop, which traces it again each time",
        remedy="Make the compiled function once, before the loop.",
        find=tensorflow.functions_made_in_loops,
        limit=Limit.HOST,
    ),
    Rule(
        id="counter-as-argument",
        sentence="a compiled function is given a Python number that changes, and is traced again for each one",
        remedy="Give it tf.constant(number), or say input_signature.",
        find=tensorflow.counters_as_arguments,
        limit=Limit.HOST,
    ),
    Rule(
        id="python-in-graph",
        sentence="Python runs in the graph (numpy_function, py_function): however many workers, they take turns at it",
        remedy="Write this function in TensorFlow's own ops, e.g. tf.io and tf.signal.",
        find=tensorflow.python_functions,
        limit=Limit.PREPARING,
    ),
    Rule(
        id="from-generator",
        sentence="samples come from a Python generator: one at a time, on one core",
        remedy="List the files in a dataset and load them with map(..., num_parallel_calls=tf.data.AUTOTUNE), "
        "or write them into TFRecord files once.",
        find=tensorflow.generators,
        limit=Limit.PREPARING,
    ),
    Rule(
        id="loader-without-workers",
        sentence="a loader has no workers: samples are prepared between the steps, by the process that trains",
        remedy="Give it num_workers, e.g. from the config, so that it can be searched.",
        find=torch.loaders_without_workers,
        limit=Limit.PREPARING,
        applies=_has_cores,
    ),
    Rule(
        id="loader-restarted",
        sentence="the loader is begun anew in each step: its workers start again for every batch",
        remedy="Make iter(loader) once, before the loop.",
        find=torch.loaders_restarted,
        limit=Limit.LOADING,
    ),
    Rule(
        id="serial-map",
        sentence="a dataset is mapped one sample at a time",
        remedy="Say num_parallel_calls=tf.data.AUTOTUNE, or a number from the config.",
        find=tensorflow.serial_maps,
        limit=Limit.PREPARING,
        applies=lambda around: _has_cores(around) and _is_older(around),
    ),
    Rule(
        id="serial-map",
        sentence="a dataset is mapped one sample at a time, and TensorFlow makes no map parallel that has a state",
        remedy="Say num_parallel_calls=tf.data.AUTOTUNE, or a number from the config.",
        find=tensorflow.stateful_serial_maps,
        case="stateful",
        limit=Limit.PREPARING,
        applies=lambda around: _has_cores(around) and _is_newer(around),
    ),
    Rule(
        id="no-prefetch",
        sentence="no dataset is prefetched: the next batch is made when the step asks for it",
        remedy="End the pipeline with .prefetch(tf.data.AUTOTUNE).",
        find=tensorflow.unbuffered_pipelines,
        limit=Limit.LOADING,
        applies=_is_older,
    ),
    Rule(
        id="memory-cleaned",
        sentence="memory is given back, or garbage collected, in each step, which stops the step meanwhile",
        remedy="Leave it out: the framework reuses its memory itself. At most do it once an epoch.",
        find=torch.memory_cleaned,
        limit=Limit.HOST,
    ),
    Rule(
        id="numbers-fetched",
        sentence="the host waits for the GPU in each step to read a number",
        remedy="Add numbers up on the GPU (loss.detach()), and read them every so many steps.",
        find=torch.numbers_fetched,
        severity=Severity.NOTE,
        limit=Limit.HOST,
        applies=_has_gpu,
    ),
    Rule(
        id="numbers-fetched",
        sentence="the host waits for the GPU in each step to read a number (.numpy())",
        remedy="Add numbers up in a metric (tf.keras.metrics.Mean), and read it every so many steps.",
        find=tensorflow.numbers_fetched,
        case="tensorflow",
        severity=Severity.NOTE,
        limit=Limit.HOST,
        applies=_has_gpu,
    ),
    Rule(
        id="loader-without-pinning",
        sentence="a loader gives batches in memory from which the GPU cannot copy by itself",
        remedy="Say pin_memory=True, and copy with non_blocking=True.",
        find=torch.loaders_without_pinning,
        severity=Severity.NOTE,
        limit=Limit.LOADING,
        applies=_has_gpu,
    ),
)
"""The rules."""
