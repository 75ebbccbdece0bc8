"""Arguments in the trainer's own code: found, changed, put back."""

import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from autotune.clock import SystemClock
from autotune.config.apply import patch_of, plan_code, plan_reverts, write_edits, written_sources
from autotune.config.code import arguments_of, calls_of_trial, find_arguments, with_values, without_values
from autotune.errors import ConfigError
from autotune.records import Values

TENSORFLOW = """\
import tensorflow as tf

data = (
    tf.data.Dataset.list_files("*.wav")
    .map(decode)
    .map(lambda x: (x), num_parallel_calls=4)
    .batch(8, drop_remainder=True)
)
model.fit(data)
"""


def found_in(folder: Path, text: str, newline: str = "\n") -> Values:
    """Return the values in a script of this text, without the script's name."""
    script = folder / "train.py"
    script.write_bytes(text.replace("\n", newline).encode())
    found = find_arguments(["python", "train.py"], folder, ())
    return {path.removeprefix("code:train.py:"): one.value for path, one in found.items()}


def with_workers(folder: Path, old: bytes) -> bytes:
    """Return a script's bytes with four workers in its one loader."""
    found = arguments_of(folder / "x.py", "x.py", old)
    (argument,) = (one for path, one in found.items() if path.endswith("num_workers"))
    return with_values(old, [argument], {argument.path: 4})


def test_what_a_loader_is_not_given_has_the_frameworks_value(tmp_path: Path) -> None:
    """The loader of validation is no part of training."""
    text = "import torch\nfrom torch.utils.data import DataLoader\n\na = DataLoader(x)\nval_loader = DataLoader(x)\n"
    loader = {"4 DataLoader.num_workers": 0, "4 DataLoader.pin_memory": False, "4 DataLoader.persistent_workers": False}
    assert found_in(tmp_path, text) == loader | {"3 torch.set_num_threads": 0}


@pytest.mark.parametrize(
    "line",
    [
        "from torch.nn.parallel import DistributedDataParallel as DDP\n\na = DDP(x)\n",
        "from torch import nn\n\na = nn.parallel.DistributedDataParallel(x)\n",
    ],
)
def test_how_ranks_exchange_gradients_is_found(tmp_path: Path, line: str) -> None:
    """By any of its names; a static graph is the user's to know."""
    found = found_in(tmp_path, line)
    assert {path.rpartition(".")[2]: value for path, value in found.items() if "Distributed" in path} == {
        "bucket_cap_mb": 25,
        "gradient_as_bucket_view": False,
        "find_unused_parameters": False,
    }


def test_an_argument_is_written_into_a_call_by_another_name(tmp_path: Path) -> None:
    """Which is the same code as before."""
    old = b"from torch.nn.parallel import DistributedDataParallel as DDP\n\na = DDP(x, static_graph=True)\n"
    found = arguments_of(tmp_path / "x.py", "x.py", old)
    (argument,) = (one for path, one in found.items() if path.endswith("bucket_cap_mb"))
    new = with_values(old, [argument], {argument.path: 50})
    assert new == old.replace(b"static_graph=True", b"static_graph=True, bucket_cap_mb=50")


def test_a_pipeline_has_its_maps_and_the_prefetch_that_is_missing(tmp_path: Path) -> None:
    """A map without parallel calls makes one element at a time."""
    assert found_in(tmp_path, TENSORFLOW) == {
        "5 Dataset.map.num_parallel_calls": 1,
        "6 Dataset.map.num_parallel_calls": 4,
        "7 Dataset.prefetch": 0,
        "2 tf.config.threading.set_intra_op_parallelism_threads": 0,
    }


LOADER, TORCH = "from torch.utils.data import DataLoader\n\n", "import torch\n"
THREADS = {"2 torch.set_num_threads": 0}
STEPS = {"4 Model.compile.steps_per_execution": 1}
FILES = "tf.data.Dataset.list_files('*').flat_map(tf.data.TFRecordDataset)"
MAPS = {
    "4 Dataset.map.num_parallel_calls": 1,
    "4 Dataset.prefetch": 2,
    "2 tf.config.threading.set_intra_op_parallelism_threads": 0,
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{TORCH}\nmain()\n", THREADS),
        (f"{TORCH}\ntorch.set_num_threads(int(n))\n", {}),
        (f"{TORCH}def main():\n    torch.set_num_threads(2)\n\n", {}),
        (f"{TORCH}x = 1\n", {}),
        ("from torch import nn\n\nx = 1\n", {}),
        ("import tensorflow as tf\n\nmain()\n", {}),
        ("import keras, re\n\nmodel = keras.Model()\nmodel.compile(loss='a')\nre.compile('a')\nmodel.fit(x)\n", STEPS),
        (f"import tensorflow as tf\n\nfiles = {FILES}\nfor b in files.map(decode).batch(8).prefetch(2): f(b)\n", MAPS),
        (f"{LOADER}loader = DataLoader(data, **options)\n", {}),
        (f"{LOADER}loader = DataLoader(*parts)\n", {}),
        (f"{LOADER}DataLoader(data, num_workers=cfg.workers, pin_memory=cfg.pin, persistent_workers=keep)\n", {}),
        (f"{LOADER}loader = build(DataLoader(a), DataLoader(b))\n", {}),
        (f"{LOADER}DataLoader(data, 8, True, None, None, 2, persistent_workers=keep, pin_memory=cfg.pin)\n", {}),
        (f"{LOADER}loader = DataLoader(val_set)\n", {}),
        (f"{LOADER}print DataLoader(x)\n", {}),
    ],
)
def test_what_is_certain_varies_and_the_rest_is_left_alone(text: str, found: Values, tmp_path: Path) -> None:
    """Threads where nothing else does; not what is given by a variable, on one line with another, or elsewhere."""
    assert found_in(tmp_path, text) == found


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(data)", "DataLoader(data, num_workers=4)"),
        ("DataLoader((data))", "DataLoader((data), num_workers=4)"),
        ("DataLoader(data, 8, True,)", "DataLoader(data, 8, True, num_workers=4,)"),
        ("DataLoader(\n    daten_für_alle,\n    # ä\n)", "DataLoader(\n    daten_für_alle, num_workers=4,\n    # ä\n)"),
        ("DataLoader(  # all\n    x, num_workers = 2 )", "DataLoader(  # all\n    x, num_workers = 4 )"),
    ],
)
def test_only_the_value_is_written(before: str, after: str, newline: str, tmp_path: Path) -> None:
    """Whatever stands around it, whichever way lines end."""
    head = "from torch.utils.data import DataLoader\nä = 1; loader = "
    old, new = ((head + text + "\n").replace("\n", newline).encode() for text in (before, after))
    assert with_workers(tmp_path, old) == new


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\n\n\ndef main(): pass\n", "import torch\ntorch.set_num_threads(4)\n\ndef main(): pass\n"),
        (
            "import torch as t\n\nfrom x import y\n  \nx\n",
            "import torch as t\n\nfrom x import y\nt.set_num_threads(4)\nx\n",
        ),
        ("import torch\n\ntorch.set_num_threads(1)  # mine\n", "import torch\n\ntorch.set_num_threads(4)  # mine\n"),
    ],
)
def test_a_setting_takes_the_empty_line_behind_the_imports(before: str, after: str, tmp_path: Path) -> None:
    """So that lines stay what they are."""
    ((path, argument),) = arguments_of(tmp_path / "x.py", "x.py", before.encode()).items()
    assert with_values(before.encode(), [argument], {path: 4}).decode() == after


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """A generator as the only argument has no place for another one."""
    old = b"from torch.utils.data import DataLoader\nloader = DataLoader(x for x in y)\n"
    with pytest.raises(ConfigError, match="cannot be set to 4 automatically") as refused:
        with_workers(tmp_path, old)
    assert refused.value.where == f"{tmp_path / 'x.py'}:2"


def stripped(code: str) -> str:
    """Return what of a script makes the results of trials its own."""
    return ast.dump(without_values(ast.parse(code)))


def test_code_that_differs_in_these_values_alone_is_the_same(tmp_path: Path) -> None:
    """So trials stay comparable when an answer is written into the code."""
    (tmp_path / "train.py").write_text(TENSORFLOW)
    found = find_arguments(["python", "train.py"], tmp_path, ())
    new = with_values(TENSORFLOW.encode(), found.values(), dict.fromkeys(found, 2)).decode()
    assert ".batch(8, drop_remainder=True).prefetch(2)" in new
    assert stripped(new) == stripped(TENSORFLOW)
    assert stripped(f"# a note\n{new}") != stripped(new), "the names of its values hold the lines"
    plain = "import re\nfind = re.compile('a')\nlist(map(find, x))\n"
    assert stripped(f"# a note\n{plain}") == stripped(plain)
    assert stripped(new.replace("batch(8", "batch(16")) != stripped(new)


def test_a_trial_is_told_what_differs(tmp_path: Path) -> None:
    """The values of today are those that are written."""
    (tmp_path / "train.py").write_text(TENSORFLOW)
    found = find_arguments(["python", "train.py"], tmp_path, ())
    values = {path: one.value for path, one in found.items()}
    assert calls_of_trial(found, values) == ""
    (told,) = json.loads(calls_of_trial(found, values | {"code:train.py:6 Dataset.map.num_parallel_calls": 8}))
    assert (told["lines"], told["value"]) == ([6, 6], 8)


@pytest.mark.parametrize("name", ["train.py", "my train.py"])
def test_it_is_applied_and_reverted_byte_for_byte(tmp_path: Path, name: str) -> None:
    """An edit to another line in between stays; a patch says the same."""
    script, backups = tmp_path / name, tmp_path / "backups"
    script.write_text(TENSORFLOW)
    found = find_arguments(["python", name], tmp_path, ())
    edits = plan_code(found, dict.fromkeys(found, 3))
    assert "+    .map(decode, num_parallel_calls=3)\n" in patch_of(edits, tmp_path)
    (tmp_path / "a.patch").write_text(patch_of(edits, tmp_path))
    if git := shutil.which("git"):
        subprocess.run([git, "apply", "--check", "a.patch"], cwd=tmp_path, check=True)
    write_edits(edits, backups, SystemClock())
    assert {one.value for one in find_arguments(["python", name], tmp_path, ()).values()} == {3}
    applied = script.read_text()
    write_edits(plan_reverts([script], backups), backups, SystemClock())
    assert script.read_text() == TENSORFLOW
    script.write_text(applied)
    again = find_arguments(["python", name], tmp_path, ())
    write_edits(plan_code(again, dict.fromkeys(found, 5)), backups, SystemClock())
    script.write_text(script.read_text() + "print(1)\n")
    write_edits(plan_reverts([script], backups), backups, SystemClock())
    assert script.read_text() == applied + "print(1)\n"


@pytest.mark.parametrize(
    ("edited", "conflicts"),
    [
        (lambda text: "# a note\n" + text, None),
        (lambda text: text.replace("num_parallel_calls=3", "num_parallel_calls=n"), None),
        (lambda text: text.replace(".prefetch(3)", ".prefetch(16)"), [("code:train.py:7 Dataset.prefetch", 3, 16)]),
    ],
)
def test_what_was_edited_since_is_never_overwritten_unasked(tmp_path: Path, edited, conflicts) -> None:
    """Where a line has moved, nothing is put back, nor what was written before that."""
    script, backups = tmp_path / "train.py", tmp_path / "backups"
    script.write_text(TENSORFLOW)
    found = find_arguments(["python", "train.py"], tmp_path, ())
    write_edits(plan_code(found, dict.fromkeys(found, 3)), backups, SystemClock())
    assert written_sources(backups) == [script]
    script.write_text(edited(script.read_text()))
    if conflicts is None:
        with pytest.raises(ConfigError, match="edited after apply"):
            plan_reverts([script], backups)
    else:
        (edit,) = plan_reverts([script], backups)
        assert [(one.dotted, one.applied, one.present) for one in edit.conflicts] == conflicts
