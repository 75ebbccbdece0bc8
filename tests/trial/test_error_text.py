"""Errors of trainers, as their frameworks print them, reduced to what went wrong; texts are verbatim but shortened."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.trial.error_text import last_error, one_line, quoted_output

BAR = "\r  0%|          | 0/5 [00:00<?, ?it/s]\r 20%|██        | 1/5 [00:00<00:01,  2.58it/s]"

TRAINER_WITH_BAR = """\
Traceback (most recent call last):
  File "hf.py", line 17, in <module>
    Trainer(model=M(), args=args, train_dataset=DS()).train()
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "site-packages/torch/utils/data/_utils/fetch.py", line 54, in <listcomp>
    data = [self.dataset[idx] for idx in possibly_batched_index]
            ~~~~~~~~~~~~^^^^^
KeyError: 'labels'

\r  1%|▏         | 4/300 [00:09<12:12,  2.48s/it]
"""
RICH = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /home/me/train.py:11 in <module>                                             │
│                                                                              │
│    8 │   def configure_optimizers(s): return torch.optim.SGD(s.parameters())  │
│ ❱ 11 L.Trainer(max_epochs=1).fit(M(), loader)                                │
╰──────────────────────────────────────────────────────────────────────────────╯
RuntimeError: inconsistent tensor size, expected tensor [3] and src [4] to have\x20
the same number of elements, but got 3 and 4 elements respectively
"""
HYDRA = """\
Error executing job with overrides: []
Error in call to target 'torch.nn.modules.linear.Linear':
TypeError("Linear.__init__() got an unexpected keyword argument 'out'")

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
HYDRA_IN_FULL = """\
Error executing job with overrides: ['data.batch_size=8']
Traceback (most recent call last):
  File "train.py", line 6, in main
    return x["lernrate"]
           ~^^^^^^^^^^^^
KeyError: 'lernrate'

Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.
"""
GRAPH = """\
Training failed: in user code:
Traceback (most recent call last):
  File "train.py", line 10, in <module>
    f(tf.zeros([4, 5]))
  File "__autograph_generated_filekwr87lqk.py", line 15, in tf__f
    raise
ValueError: in user code:

    File "train.py", line 7, in f  *
        return tf.reshape(x, [3, -1])

    ValueError: Dimension size must be evenly divisible by 3 but is 20 for '{{node Reshape}}'

"""
GRAPH_STDERR = f"""\
I0000 00:00:1795317752.508753    9301 port.cc:153] oneDNN custom operations are on.
To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow.
{BAR}E0000 00:00:1795317779.608454    9301 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error
"""
OP = """\
Traceback (most recent call last):
  File "train.py", line 8, in <module>
    m.fit(ds)
tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error:

Detected at node Relu defined at (most recent call last):
  File "model.py", line 3, in call

OOM when allocating tensor with shape[64,512] on /job:localhost/device:GPU:0 by allocator GPU_0_bfc
\t [[{{node Relu}}]] [Op:__inference_train_function_213]
"""
ABORT = f"""\
{BAR}terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: an illegal memory access was encountered
Exception raised from c10_cuda_check_implementation at ../c10/cuda/CUDAException.cpp:44 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x57 (0x7f in libc10.so)
frame #30: <unknown function> + 0x94ac3 (0x7f93 in /lib/x86_64-linux-gnu/libc.so.6)

"""
ABSL = """\
F1122 03:24:15.451889 140541518584704 train.py:3] No such dataset: imagenet
Fatal Python error: Aborted

Current thread 0x00007fd25f4a9b80 (most recent call first):
  File "site-packages/absl/logging/__init__.py", line 1017 in emit
"""
LOGGED = """\
2026-11-22 03:24:15,918 | ERROR | trainer | Error during training
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    {}["dataset"]
KeyError: 'dataset'
2026-11-22 03:24:15,929 | ERROR | trainer | Training failed: 'dataset'
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "group.py", line 1, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | ValueError: no such layer
    +---------------- 2 ----------------
    | KeyError: 'x'
    +------------------------------------
"""
AT_EXIT = """\
Traceback (most recent call last):
  File "train.py", line 6, in <module>
    raise TrainingFailed("loss scaler at minimum")
TrainingFailed: loss scaler at minimum
/home/me/train.py:3: UserWarning: resource_tracker: There appear to be 3 leaked semaphore objects
  warnings.warn("resource_tracker: There appear to be 3 leaked semaphore objects")
[rank0]:[W1122 03:00:00.123456789 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed
Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>
Traceback (most recent call last):
  File "site-packages/torch/utils/data/dataloader.py", line 1477, in __del__
TypeError: 'NoneType' object is not callable
"""
LAUNCHER = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 3, in <module>
[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.
Traceback (most recent call last):
  File "bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
============================================================
"""
JAX = """\
Traceback (most recent call last):
  File "train.py", line 2, in <module>
TypeError: dot_general requires contracting dimensions to have the same shape, got (5,) and (3,).
--------------------
For simplicity, JAX has removed its internal frames from the traceback of the following exception.
"""
KERAS_BAR = (
    "\x1b[1m 1/10\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━━━━━━━━━━━━━━━━━━\x1b[0m \x1b[1m6s\x1b[0m 729ms/step - loss: 1.8180"
)


@pytest.mark.parametrize(
    ("stderr", "stdout", "error"),
    [
        (TRAINER_WITH_BAR, "", "KeyError: 'labels'"),
        (
            RICH,
            "Epoch 0/0  ━━━━━━╸             5/25 0:00:00 • 0:00:01 169.74it/s \n",
            "RuntimeError: inconsistent tensor size, expected tensor [3] and src [4] to have "
            "the same number of elements, but got 3 and 4 elements respectively",
        ),
        (
            HYDRA,
            "",
            "Error in call to target 'torch.nn.modules.linear.Linear': "
            "TypeError(\"Linear.__init__() got an unexpected keyword argument 'out'\")",
        ),
        (HYDRA_IN_FULL, "", "KeyError: 'lernrate'"),
        (
            GRAPH_STDERR,
            GRAPH,
            "ValueError: Dimension size must be evenly divisible by 3 but is 20 for '{{node Reshape}}'",
        ),
        (
            OP,
            KERAS_BAR,
            "tensorflow.python.framework.errors_impl.ResourceExhaustedError: Graph execution error: OOM when "
            "allocating tensor with shape[64,512] on /job:localhost/device:GPU:0 by allocator GPU_0_bfc",
        ),
        (
            ABORT,
            "Epoch 1/10\n",
            "terminate called after throwing an instance of 'c10::Error' "
            "what(): CUDA error: an illegal memory access was encountered",
        ),
        (ABSL, "", "No such dataset: imagenet Fatal Python error: Aborted"),
        ("", LOGGED, "KeyError: 'dataset'"),
        (GROUP, "", "ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions) "
            "ValueError: no such layer KeyError: 'x'"),
        (AT_EXIT, "", "TrainingFailed: loss scaler at minimum"),
        (LAUNCHER, "", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."),
        (JAX, "", "TypeError: dot_general requires contracting dimensions to have the same shape, got (5,) and (3,)."),
        (
            "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --wokers 3\n",
            "",
            "train.py: error: unrecognized arguments: --wokers 3",
        ),
        ("run.sh: line 3: 12345 Killed                  python train.py\n", "Epoch 1\n",
            "run.sh: line 3: 12345 Killed python train.py"),
        ("", "INFO: epoch 1\nERROR: no such dataset: imagenet\n", "ERROR: no such dataset: imagenet"),
        (BAR, f"epoch 1, loss 0.3\n{KERAS_BAR}\n", ""),
    ],
)  # fmt: skip
def test_what_went_wrong_is_found(stderr: str, stdout: str, error: str) -> None:
    """The exception, wherever it was printed, without bars, boxes, frames, warnings and what comes at exit."""
    assert one_line(last_error(stderr, stdout)) == one_line(error)


def test_an_error_that_was_caught_long_ago_is_not_the_last_one() -> None:
    """Training went on after it, as its progress bar shows; what stdout ends with counts."""
    caught = TRAINER_WITH_BAR + "".join(f"\r {n}%|▏         | {n}/300 [00:09<12:12,  2.48s/it]" for n in range(9))
    assert last_error(caught, LOGGED) == "KeyError: 'dataset'"
    assert last_error(caught, "") == "KeyError: 'labels'"


def test_the_output_that_is_quoted_is_where_the_error_stands() -> None:
    """Without the bar on the other stream, and without lines that only decorate."""
    assert quoted_output(GRAPH_STDERR, GRAPH).splitlines()[-1].strip().startswith("ValueError: Dimension size")
    assert quoted_output(RICH, "epoch 1\n").splitlines()[0] == "Traceback (most recent call last):"
    assert "│" not in quoted_output(RICH, "epoch 1\n")
    assert quoted_output(BAR, "epoch 1\n") == "epoch 1\n"


CRASHES = {
    "rich": (
        "from rich.traceback import install; install()\nraise ValueError('no such layer')",
        "ValueError: no such layer",
    ),
    "printed": (
        "import sys, traceback\ntry:\n    {}['a']\nexcept KeyError:\n    traceback.print_exc(file=sys.stdout)\n"
        "    sys.stderr.write('\\r 20%|##        | 1/5 [00:00<00:01,  2.58it/s]')\n    sys.exit(1)",
        "KeyError: 'a'",
    ),
    "group": (
        "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])",
        "ExceptionGroup: two (2 sub-exceptions)",
    ),
    "at exit": (
        "import atexit, warnings\natexit.register(lambda: warnings.warn('late'))\n"
        "class A:\n    def __del__(self): raise TypeError('late')\na = A()\nraise ValueError('no such layer')",
        "ValueError: no such layer",
    ),
    "logged": (
        "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(asctime)s %(levelname)s %(message)s')\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('failed')\n"
        "    logging.error('bye')\n    sys.exit(1)",
        "ZeroDivisionError: division by zero",
    ),
    "abort": ("import faulthandler, os; faulthandler.enable(); os.abort()", "Fatal Python error: Aborted"),
    "exit": ("import sys; sys.exit('unknown optimizer adamv')", "unknown optimizer adamv"),
}


@pytest.mark.parametrize("kind", CRASHES)
def test_a_real_crash_is_read(kind: str, tmp_path: Path) -> None:
    """Processes that end in the ways in which trainers do."""
    code, error = CRASHES[kind]
    script = tmp_path / "train.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert last_error(done.stderr, done.stdout).startswith(error)
    assert "late" not in last_error(done.stderr, done.stdout)


def test_a_long_output_is_read_at_once() -> None:
    """No pattern runs away on what no program should write."""
    for text in (
        "a:" * 16000,
        "|" * 32000,
        "%|" * 16000,
        " " * 32000,
        "━" * 32000,
        "1%|" + "x/" * 16000,
        "\x1b[" * 16000,
    ):
        assert isinstance(last_error(text, text), str)
