"""Text preparation: the same tokens in the same order, whoever prepares them; and no worker is left behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from autotune.tf.options import TextOptions
from autotune.tf.text import TextWorkerError, TokenCache, prepare
from tests.tf.text import text_functions
from tests.until import ended, until

ROOT = Path(__file__).resolve().parents[3]
LINES = [f"line {number}" for number in range(40)]
PROCESSES = TextOptions(workers=2, chunk_lines=5)


def own_children() -> set[int]:
    """Workers that this process has started and that are still there."""
    children = psutil.Process().children(recursive=True)
    return {child.pid for child in children if "spawn_main" in " ".join(child.cmdline())}


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (text_functions.codes, None),
        (text_functions.numpy_codes, None),
        (text_functions.numpy_codes, PROCESSES),
        (text_functions.talkative, PROCESSES),
        (text_functions.codes, TextOptions(workers=2, threads=True, chunk_lines=5)),
        (text_functions.codes, TextOptions(workers=50, chunk_lines=3)),
    ],
    ids=["here", "here, of NumPy", "processes, of NumPy", "processes", "threads", "a process each"],
)
def test_tokens_are_the_same_in_every_way(options: TextOptions | None, function: Callable) -> None:
    """The tokens of each line in the order of the lines, as plain ints; no process stays."""
    before = own_children()
    lines = LINES[:12] if options and options.workers > 2 else [*LINES, "", "line 3", "\udcff ß\n|", *LINES]
    assert prepare(lines, function, options) == [text_functions.codes(line) for line in lines]
    assert own_children() == before


def test_a_repeated_line_is_prepared_once() -> None:
    """The function sees each distinct line once."""
    seen: list[str] = []

    def remember(line: str) -> list[int]:
        seen.append(line)
        return [len(line)]

    assert prepare(["a", "bb", "a", "a"], remember) == [[1], [2], [1], [1]]
    assert seen == ["a", "bb"]


def test_a_single_chunk_starts_no_process() -> None:
    """What one worker would do alone is done here."""
    (tokens,) = prepare(["x"], text_functions.loaded_modules, TextOptions(workers=8))
    assert tokens[-1] == os.getpid()


def test_workers_load_neither_tensorflow_nor_the_main_script(tmp_path: Path) -> None:
    """A trainer that has imported TensorFlow at its top prepares texts in processes that do not."""
    script = tmp_path / "my trainer.py"
    script.write_text(
        "MARKER = True\n"
        "import json, os, sys, types\n"
        "from pathlib import Path\n"
        "sys.path.append(Path('elsewhere'))\n"
        "sys.modules['tensorflow'] = types.ModuleType('tensorflow')\n"
        "from autotune.tf.options import TextOptions\n"
        "from autotune.tf.text import prepare\n"
        "from tests.tf.text.text_functions import loaded_modules\n"
        "seen = prepare([str(n) for n in range(20)], loaded_modules, TextOptions(workers=2, chunk_lines=1))\n"
        "print(json.dumps([os.getpid(), seen]))\n"
    )
    done = run_script(script)
    own, seen = json.loads(done.stdout)
    assert {tuple(tokens[:2]) for tokens in seen} == {(0, 0)}
    assert own not in {tokens[2] for tokens in seen}


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (text_functions.killed_on_seven, "ended early"),
        (text_functions.exits, "ended early"),
        (text_functions.fails_on_seven, "'line 7'.*seven is not to be said"),
        (text_functions.texts, "'line .*TypeError"),
    ],
)
def test_a_worker_that_fails_is_an_error(function: Callable, said: str) -> None:
    """Killed, gone, or with an error of the function: it is said at once, and the others end."""
    before = own_children()
    with pytest.raises(TextWorkerError, match=f"(?s){said}"):
        prepare(LINES, function, PROCESSES)
    assert own_children() == before


def test_functions_without_a_name_are_refused_where_they_need_one(tmp_path: Path) -> None:
    """A lambda is prepared here; processes and the cache say why they cannot have it."""
    assert prepare(["ab"], lambda line: [len(line)]) == [[2]]
    with pytest.raises(ValueError, match="a top-level function of a module"):
        prepare(LINES, lambda line: [len(line)], PROCESSES)
    with pytest.raises(ValueError, match="a top-level function of a module"):
        TokenCache(tmp_path, lambda line: [len(line)])


def test_a_function_of_the_main_script_is_refused(tmp_path: Path) -> None:
    """No other process can import it; the remedy is said."""
    script = tmp_path / "trainer.py"
    script.write_text(
        "from autotune.tf.options import TextOptions\n"
        "from autotune.tf.text import prepare\n"
        "def own(line): return [len(line)]\n"
        "prepare(['a', 'b'], own, TextOptions(workers=2, chunk_lines=1))\n"
    )
    assert "own is in the main script, which worker processes cannot import" in run_script(script, ok=False).stderr


@pytest.mark.parametrize(
    "ending", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.services), signal.SIGKILL]
)
def test_workers_end_with_the_trainer(ending: signal.Signals, tmp_path: Path) -> None:
    """^C, a polite end and a kill leave no worker, even one that is in an endless function."""
    begun = tmp_path / "begun"
    begun.mkdir()
    script = tmp_path / "trainer.py"
    script.write_text(
        "import sys\n"
        "from autotune.tf.options import TextOptions\n"
        "from autotune.tf.text import prepare\n"
        "from tests.tf.text.text_functions import endless\n"
        "prepare([f'{sys.argv[1]}|{n}' for n in range(4)], endless, TextOptions(workers=2, chunk_lines=2))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    trainer = subprocess.Popen(
        [sys.executable, str(script), str(begun)], env=environment, stderr=subprocess.PIPE, process_group=0
    )
    until(lambda: len(list(begun.iterdir())) == 2)
    workers = [psutil.Process(int(path.name)) for path in begun.iterdir()]
    trainer.send_signal(ending)
    _, errors = trainer.communicate(timeout=60)
    assert trainer.returncode == -ending
    assert errors.count(b"Traceback") == (1 if ending is signal.SIGINT else 0)
    until(lambda: not any(is_alive(worker) for worker in workers))


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that nobody has reaped does not."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def run_script(script: Path, ok: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script with this checkout on its path."""
    done = ended(sys.executable, script, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode == 0) is ok, done.stderr
    return done
