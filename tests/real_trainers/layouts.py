"""Layouts of the projects of real trainers: the copied part of a checkout, and data in the format that it reads.

The functions are those that ``lay_out`` names in trainers.yaml; those that only copy are named there by what they copy.
"""

import json
import pickle
import shutil
from pathlib import Path

from tests.real_trainers import synthetic
from tests.real_trainers.trainer import Place

SPEECH = Path(__file__).parents[3] / "shared" / "data" / "ljspeech_subset"
"""Clips of speech beside the checkout, as the tests of the shipped trainer use them."""

_CONFIGS = Path(__file__).with_name("configs")
_PICTURES_OF_A_KIND = 40  # of four kinds, for the example of Accelerate, which trains with four of five in batches of 8


def _mnist(place: Place) -> None:
    place.copy("mnist")
    synthetic.mnist_files(place.project / "data" / "MNIST" / "raw")


def _word_language_model(place: Place) -> None:
    place.copy("word_language_model")
    for name, lines in (("train", 3000), ("valid", 100), ("test", 100)):
        place.write(f"word_language_model/data/wikitext-2/{name}.txt", synthetic.text(lines))


def _nanogpt(place: Place) -> None:
    place.copy("train.py", "model.py", "configurator.py", "config")
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        synthetic.tokens(place.project / "data" / "shakespeare_char" / f"{name}.bin", count, most=65)
    meta = {"vocab_size": 65, "itos": {}, "stoi": {}}
    (place.project / "data" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps(meta))


def _timm(place: Place) -> None:
    place.copy("train.py")
    place.run(synthetic.IMAGE_FOLDERS, "pictures")
    place.write("args.yaml", (_CONFIGS / "timm_args.yaml").read_text())


def _lightning_hydra(place: Place) -> None:
    place.copy("src", "configs", ".project-root")
    synthetic.mnist_files(place.project / "data" / "MNIST" / "raw", train=60_000, test=10_000)


def _language_model(place: Place) -> None:
    place.run(synthetic.LANGUAGE_MODEL, "tiny-model")
    lines = synthetic.text(2000).splitlines()
    place.write("texts/train.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in lines))


def _trl(place: Place) -> None:
    _language_model(place)
    place.write("sft.yaml", (_CONFIGS / "trl_sft.yaml").read_text())


def _trl_accumulating(place: Place) -> None:
    _trl(place)
    text = (place.project / "sft.yaml").read_text()
    place.write("sft.yaml", text.replace("accumulation_steps: 1", "accumulation_steps: 4"))


def _llama_factory(place: Place) -> None:
    place.copy("src")
    # It needs an older trl than others: pip install --no-deps --target packages 'trl==0.24.0' in its checkout.
    place.copy("packages/trl", into="src")
    place.write("src/torchaudio.py", '"""Stand-in: it is imported always, and needed for models of sound only."""\n')
    _language_model(place)
    place.write("data/dataset_info.json", json.dumps({"tiny": {"file_name": "tiny.json"}}))
    examples = [{"instruction": line, "input": "", "output": line[::-1]} for line in synthetic.text(1500).splitlines()]
    place.write("data/tiny.json", json.dumps(examples))
    place.write("full_sft.yaml", (_CONFIGS / "llama_factory_sft.yaml").read_text())


def _accelerate(place: Place) -> None:
    script = (place.checkout / "examples" / "cv_example.py").read_text()
    for old, new in (
        ('"resnet50d", pretrained=True', '"test_efficientnet", pretrained=False'),  # nothing is downloaded here
        ('"num_epochs": 3', '"num_epochs": 3000'),
        ('"batch_size": 64', '"batch_size": 8'),
        ('"image_size": 224', '"image_size": 64'),
    ):
        if old not in script:
            raise RuntimeError(f"cv_example.py is another one: {old} is not in it")
        script = script.replace(old, new)
    place.write("cv_example.py", script)
    place.run(synthetic.IMAGE_FOLDERS, "made")
    (place.project / "pictures").mkdir()
    for path in (place.project / "made" / "train").glob("*/*.jpg"):
        if int(path.stem) < _PICTURES_OF_A_KIND:
            path.rename(place.project / "pictures" / f"{path.parent.name}_{path.stem}.jpg")
    shutil.rmtree(place.project / "made")


def _keras_custom(place: Place) -> None:
    script = (place.checkout / "examples" / "demo_custom_tf_workflow.py").read_text()
    script = script.replace("backend.Variable", "__import__('keras').Variable").replace("range(20)", "range(200_000)")
    place.write("demo_custom_tf_workflow.py", script)


def _speech(place: Place) -> None:
    if not SPEECH.is_dir():
        raise RuntimeError("ljspeech_subset is not at hand")
    place.copy("myxtts", "utilities")
    script = (place.checkout / "train_main.py").read_text()
    place.write("train_main.py", script.replace("use_phonemes=True", "use_phonemes=False"))  # needs no espeak then
    for part in ("dataset_train", "dataset_eval"):
        shutil.copytree(SPEECH, place.project / "dataset" / part)
        metadata = place.project / "dataset" / part / "metadata.csv"
        for name in ("metadata_train.csv", "metadata_eval.csv"):
            shutil.copy(metadata, metadata.with_name(name))


def _flax_mnist(place: Place) -> None:
    place.copy("examples/mnist")
    synthetic.mnist_files(place.project / "raw", train=60_000, test=10_000)
    place.run(_MNIST_RECORDS, "raw")


def _out_of_core(place: Place) -> None:
    place.copy("examples/applications/plot_out_of_core_classification.py")
    folder = place.home / "scikit_learn_data" / "reuters"
    folder.mkdir(parents=True)
    lines = synthetic.text(60_000).splitlines()
    texts = (
        f"<REUTERS><TOPICS><D>{'acq' if number % 3 else 'earn'}</D></TOPICS><TITLE>{line[:20]}</TITLE>"
        f"<BODY>{line}</BODY></REUTERS>\n"
        for number, line in enumerate(lines)
    )
    (folder / "reut2-000.sgm").write_text("".join(texts))


_MNIST_RECORDS = """
import pathlib, sys
from unittest import mock
import tensorflow_datasets as tfds
raw = pathlib.Path(sys.argv[1])
names = {
    "train_data": "train-images-idx3-ubyte", "train_labels": "train-labels-idx1-ubyte",
    "test_data": "t10k-images-idx3-ubyte", "test_labels": "t10k-labels-idx1-ubyte",
}
manager = tfds.download.DownloadManager
with mock.patch.object(manager, "download_and_extract", lambda self, urls: {key: raw / names[key] for key in urls}):
    tfds.builder("mnist").download_and_prepare()
"""
"""Prepare MNIST for TensorFlow Datasets below the home folder, from the four files in ``argv[1]``."""


BY_NAME = {name.removeprefix("_"): found for name, found in list(globals().items()) if callable(found)}
"""Functions, by the names that trainers.yaml has for them."""
