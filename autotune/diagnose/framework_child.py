"""Questions to a framework, asked inside the trainer's own interpreter; its text is given to ``python -c``.

It stands on the standard library and the framework alone, in the syntax of Python 3.8, and writes each answer into a
file at once: if it crashes or hangs, what came before is known.
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
        """Ask, write down the answer or the failure, and return whether there was an answer."""
        began_s = time.monotonic()
        said: Any = {"name": name}
        try:
            said["value"] = ask()
        except Exception as error:  # noqa: BLE001 -- whatever goes wrong there is the answer
            lines = str(error).strip().splitlines() or [""]
            said["error"] = (type(error).__name__ + ": " + lines[0])[:300]
        said["seconds"] = time.monotonic() - began_s
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(said) + "\n")
        return "error" not in said


def ask_torch(answers: Answers, _sample: str) -> None:
    """Ask PyTorch for its version, and for the GPUs that it sees."""
    modules: Any = []
    if answers.give("import", lambda: modules.append(importlib.import_module("torch"))):
        torch = modules[0]
        answers.give("version", lambda: str(torch.__version__))
        answers.give("built for GPUs", lambda: bool(torch.version.cuda or getattr(torch.version, "hip", None)))
        answers.give("gpus", lambda: int(torch.cuda.device_count()) if torch.cuda.is_available() else 0)


def ask_tensorflow(answers: Answers, sample: str) -> None:
    """Ask TensorFlow the same, let it compile a small function, and decode a file where one is given."""
    modules: Any = []
    if not answers.give("import", lambda: modules.append(importlib.import_module("tensorflow"))):
        return
    tf = modules[0]
    answers.give("version", lambda: str(tf.__version__))
    answers.give("built for GPUs", lambda: bool(tf.test.is_built_with_cuda() or tf.test.is_built_with_rocm()))

    def gpus() -> int:
        found = tf.config.list_physical_devices("GPU")
        for gpu in found:  # else all of their memory is taken, and somebody may be training there
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
    """Decode a file with TensorFlow's own ops, and return what it holds."""
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
    """Ask a framework.

    Args:
        sample: File to decode; empty for none.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    QUESTIONS[framework](Answers(path), sample)


if __name__ == "__main__":
    main(*sys.argv[1:4])
