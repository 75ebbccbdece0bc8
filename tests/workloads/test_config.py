"""The trainer's config: every mistake is named, in words, with exit code 2, before TensorFlow is loaded."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from autotune.tf.options import Cache, Precision
from autotune.workloads.tts.config import SECTIONS, read_config
from autotune.workloads.tts.ljspeech import InputError
from tests.workloads.conftest import SHIPPED


def test_the_shipped_config_names_every_key() -> None:
    """The file that users start from has all keys there are, with the values that the code defaults to."""
    content = yaml.safe_load(SHIPPED.read_text())
    del content["autotune"]
    assert {name: list(section) for name, section in content.items()} == {
        name: [item.name for item in fields(section)] for name, section in SECTIONS.items()
    }
    config = read_config(SHIPPED)
    assert (config.data.batch_size, config.data.num_workers, config.data.prefetch_buffer_size) == (8, 1, 1)
    assert (config.data.cache, config.training.mixed_precision) == (Cache.NONE, Precision.FLOAT32)
    assert config.training.enable_graph_mode is True


def test_what_yaml_calls_a_string_is_a_number_here(tmp_path: Path) -> None:
    """YAML 1.1 reads 1e-4 as text; the trainer means the number."""
    path = tmp_path / "config.yaml"
    path.write_text("data: {dataset_path: x}\ntraining: {learning_rate: 1e-4}\n")
    assert read_config(path).training.learning_rate == 1e-4


def change(section: str, key: str, value: object) -> Callable[[dict], object]:
    """A change to the parsed config."""
    return lambda content: content[section].update({key: value})


MISTAKES = [
    (change("data", "batchsize", 8), "unknown key data.batchsize\ndid you mean data.batch_size?"),
    (change("data", "batch_size", 0), "data.batch_size must be at least 1, got 0"),
    (change("data", "batch_size", 8.5), "data.batch_size: Expected `int`, got `float`"),
    (change("data", "batch_size", True), "data.batch_size: Expected `int`, got `bool`"),
    (change("data", "data_gpu", 0), "data.model_gpu is not set, but data_gpu is: set both or neither"),
    (change("data", "pipeline_buffer_size", 0), "data.pipeline_buffer_size must be at least 1, got 0"),
    (change("runtime", "model_gpu_memory_mb", 4096), "runtime.model_gpu_memory_mb limits a GPU, but none is set"),
    (change("data", "cache", "ram"), "data.cache: Invalid enum value 'ram'"),
    (change("data", "text_cache", "yes"), "data.text_cache: Expected `bool`, got `str`"),
    (change("training", "learning_rate", "fast"), "training.learning_rate: Expected `float`, got `str`"),
    (change("training", "learning_rate", -1), "training.learning_rate must be a positive number"),
    (change("runtime", "intra_op_threads", -1), "runtime.intra_op_threads must be at least 0"),
    (lambda content: content.update(trainer={}), "unknown key trainer\ndid you mean training?"),
    (lambda content: content.update(data=3), "data: Expected `object`, got `int`"),
    (lambda content: content["data"].pop("dataset_path"), "data: Object missing required field `dataset_path`"),
    (
        lambda content: content["training"].update(enable_graph_mode=False, enable_xla_compilation=True),
        "training.enable_xla_compilation needs enable_graph_mode, which is false",
    ),
]


@pytest.mark.parametrize(("mistake", "said"), MISTAKES, ids=[said.split("\n")[0] for _, said in MISTAKES])
def test_a_mistake_is_named_with_its_key(mistake: Callable[[dict], object], said: str, tmp_path: Path) -> None:
    """The message holds the file, the key, the value, and what would be right."""
    content = yaml.safe_load(SHIPPED.read_text())
    mistake(content)
    path = tmp_path / "my config.yaml"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InputError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: {said}")


@pytest.mark.parametrize("text", ["data: [", "", "- a\n- b\n"])
def test_a_file_that_is_no_config_is_said_to_be_none(text: str, tmp_path: Path) -> None:
    """Broken YAML, an empty file and a list are refused by name."""
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"config\.yaml"):
        read_config(path)


def test_the_command_answers_mistakes_without_a_traceback(tmp_path: Path, written_corpus: Path) -> None:
    """``error:``, the remedy, exit code 2, and no TensorFlow import; which is an extra, and may not be there."""
    wrong, shipped, whole = (tmp_path / f"{name}.yaml" for name in ("wrong", "shipped", "whole"))
    text = SHIPPED.read_text()
    wrong.write_text(
        text.replace("graph_mode: true", "graph_mode: false").replace("compilation: false", "compilation: true")
    )
    shipped.write_text(text)  # the data are missing
    whole.write_text(f"data: {{dataset_path: '{written_corpus}'}}\n")
    script = (
        "import sys; from autotune.workloads.tts.__main__ import main\n"
        "for config in sys.argv[1:]:\n"
        "    sys.argv = ['tts', '--config', config]\n"
        "    assert main() == 2 and 'tensorflow' not in sys.modules\n"
        "    if 'shipped' in config: sys.modules['tensorflow'] = None\n"
    ).replace("'tensorflow' not in sys.modules", "not sys.modules.get('tensorflow')")
    command = [sys.executable, "-c", script, *(path.name for path in (wrong, shipped, whole))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    errors = done.stderr.split("error: ")[1:]
    assert len(errors) == 3
    assert "enable_graph_mode" in errors[0]
    assert "autotune.workloads.tts.corpus --out" in errors[1]
    assert errors[2].startswith("tensorflow: is not installed")
    assert "pip install '.[tensorflow]'" in errors[2]
