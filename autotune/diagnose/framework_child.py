"""Queries to a framework inside the trainer's interpreter; this text is passed to ``python -c``.

Uses only the standard library and the framework, in Python 3.8 syntax. Appends each answer to a file at once, so that
earlier answers survive a crash or a hang.
"""

import importlib
import json
import os
import sys
import time
from typing import Any


class Answers:
    """File of answers, one JSON object a line."""

    def __init__(self, path: str) -> None:
        self._path = path

    def give(self, name: str, ask: Any) -> bool:
        """Append the value or error of `ask`, and return whether it succeeded."""
        began_s = time.monotonic()
        answer: Any = {"name": name}
        try:
            answer["value"] = ask()
        except Exception as error:  # noqa: BLE001 -- any error is the answer
            lines = str(error).strip().splitlines() or [""]
            answer["error"] = (type(error).__name__ + ": " + lines[0])[:300]
        answer["seconds"] = time.monotonic() - began_s
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")
        return "error" not in answer


def ask_torch(answers: Answers, _sample: str) -> None:
    """Query PyTorch for its version and GPUs."""
    modules: Any = []
    if answers.give("import", lambda: modules.append(importlib.import_module("torch"))):
        torch = modules[0]
        answers.give("version", lambda: str(torch.__version__))
        answers.give("built for GPUs", lambda: bool(torch.version.cuda or getattr(torch.version, "hip", None)))
        answers.give("gpus", lambda: int(torch.cuda.device_count()) if torch.cuda.is_available() else 0)


def ask_tensorflow(answers: Answers, sample: str) -> None:
    """Query TensorFlow likewise, compile a small function, and decode the sample if given."""
    modules: Any = []
    if not answers.give("import", lambda: modules.append(importlib.import_module("tensorflow"))):
        return
    tf = modules[0]
    answers.give("version", lambda: str(tf.__version__))
    answers.give("built for GPUs", lambda: bool(tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()))

    def gpus() -> int:
        found = tf.config.list_physical_devices("GPU")
        for gpu in found:  # else TensorFlow reserves all memory of GPUs that may be in use
            tf.config.experimental.set_memory_growth(gpu, True)
        return len(found)

    def compute(x: Any) -> Any:
        return tf.reduce_sum(tf.nn.relu(tf.matmul(x, x)) + 1.0)

    if not answers.give("gpus", gpus):
        return
    answers.give("graph", lambda: float(tf.function(compute)(tf.ones([8, 8]))))
    answers.give("xla", lambda: float(tf.function(compute, jit_compile=True)(tf.ones([8, 8]))))
    if sample:
        answers.give("decode", lambda: decoded(tf, sample))


def decoded(tf: Any, sample: str) -> str:
    """Decode a file with TensorFlow's own ops, and describe its content."""
    suffix = os.path.splitext(sample)[1].lower()
    with tf.device("CPU:0"):
        if suffix.startswith(".tfrecord"):
            return f"a record of {len(next(iter(tf.data.TFRecordDataset(sample))).numpy())} bytes"
        content = tf.io.read_file(sample)
        if suffix == ".wav":
            audio, rate = tf.audio.decode_wav(content)
            return f"{audio.shape[0]} samples of {audio.shape[1]} channel(s) at {int(rate)} Hz"
        return "an image of {}".format("x".join(str(size) for size in tf.io.decode_image(content).shape))


QUESTIONS = {"tensorflow": ask_tensorflow, "torch": ask_torch}


def main(framework: str, path: str, sample: str) -> None:
    """Query a framework; `sample` is a file to decode, or empty."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    QUESTIONS[framework](Answers(path), sample)


if __name__ == "__main__":
    main(*sys.argv[1:4])
