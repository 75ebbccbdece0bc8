"""Rows of trainers that use neither PyTorch nor TensorFlow for their steps."""

from tests.real_trainers import synthetic
from tests.real_trainers.own_log import OwnLog
from tests.real_trainers.trainer import Place, Trainer

DOCUMENTS = 60_000


def _seq2seq(place: Place) -> None:
    place.copy("examples/seq2seq")


def _flax_mnist(place: Place) -> None:
    place.copy("examples/mnist")
    synthetic.mnist_files(place.project / "raw", train=60_000, test=10_000)
    place.run(_MNIST_RECORDS, "raw")


def _out_of_core(place: Place) -> None:
    place.copy("examples/applications/plot_out_of_core_classification.py")
    folder = place.home / "scikit_learn_data" / "reuters"
    folder.mkdir(parents=True)
    lines = synthetic.text(DOCUMENTS).splitlines()
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

OTHERS = (
    Trainer(
        name="flax-seq2seq",
        repository="google/flax",
        needs=("examples/seq2seq/train.py",),
        lay_out=_seq2seq,
        folder="seq2seq",
        command="python train.py --workdir=logs --batch_size=64 --hidden_size=64 --num_train_steps=1000000 "
        "--decode_frequency=10",
        log=OwnLog(pattern=r"\[(?P<n>\d+)\] .*loss="),
        batch="batch_size",
        framework="JAX",
        steps=False,
    ),
    Trainer(
        name="flax-mnist",
        repository="google/flax",
        needs=("examples/mnist/main.py",),
        lay_out=_flax_mnist,
        folder="mnist",
        command="python main.py --workdir=logs --config=configs/default.py --config.batch_size=64 "
        "--config.num_epochs=50",
        log=OwnLog(pattern=r"epoch:\s*\d+, train_loss", every=937),
        batch="config.batch_size",
        framework="JAX",
    ),
    Trainer(
        name="sklearn-partial-fit",
        repository="scikit-learn/scikit-learn",
        needs=("examples/applications/plot_out_of_core_classification.py",),
        lay_out=_out_of_core,
        command="python plot_out_of_core_classification.py",
        env={"MPLBACKEND": "Agg"},
        log=OwnLog(pattern=r"SGD classifier :\s+(?P<n>\d+) train docs", counts_samples=True),
        batch=1000,
        framework="scikit-learn",
        steps=False,
    ),
)
