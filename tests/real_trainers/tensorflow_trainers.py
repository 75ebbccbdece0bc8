"""Rows of trainers that use TensorFlow or Keras."""

import shutil
from pathlib import Path

from tests.real_trainers import synthetic
from tests.real_trainers.own_log import OwnLog
from tests.real_trainers.trainer import Place, Trainer

SPEECH = Path(__file__).parents[3] / "shared" / "data" / "ljspeech_subset"
"""Clips of speech beside the checkout, as the tests of the shipped trainer use them."""


def _keras_fit(place: Place) -> None:
    place.copy("examples/demo_functional.py")


def _keras_custom(place: Place) -> None:
    script = (place.checkout / "examples" / "demo_custom_tf_workflow.py").read_text()
    script = script.replace("backend.Variable", "__import__('keras').Variable").replace("range(20)", "range(200_000)")
    place.write("demo_custom_tf_workflow.py", script)


def _yolo(place: Place) -> None:
    place.copy("train.py", "yolov3_tf2", "data")
    (place.project / "checkpoints").mkdir()
    place.run(synthetic.DETECTION_RECORDS, "data/train.tfrecord", "data/voc2012.names")


def _tf_cnn_benchmarks(place: Place) -> None:
    place.copy("scripts/tf_cnn_benchmarks")


_MIGRATE = """
import subprocess, sys, sysconfig
old, new = sys.argv[1:]
tool = sysconfig.get_path("scripts") + "/tf_upgrade_v2"
subprocess.run([sys.executable, tool, "--mode", "SAFETY", "--infile", old, "--outfile", new], check=True)
"""
"""Migrate a script of TensorFlow 1 to the interface that TensorFlow 2 keeps for it, as its users do."""


def _session(place: Place) -> None:
    synthetic.mnist_files(place.project / "data", compressed=True)
    reader = (place.checkout / "input_data.py").read_text()
    place.write("input_data.py", reader.replace("dtype=dt)", "dtype=dt)[0]"))  # for the NumPy of today
    script = (place.checkout / "tensorflow_v1/examples/3_NeuralNetworks/neural_network_raw.py").read_text()
    script = script.replace("from tensorflow.examples.tutorials.mnist import", "import").replace("/tmp/data/", "data/")
    script = script.replace("num_steps = 500", "num_steps = 500000").replace("display_step = 100", "display_step = 10")
    place.write("old.py", script)
    place.run(_MIGRATE, "old.py", "neural_network_raw.py")
    migrated = (place.project / "neural_network_raw.py").read_text()
    graph = "import tensorflow.compat.v1 as tf\ntf.disable_eager_execution()\n"
    place.write("neural_network_raw.py", migrated.replace("import tensorflow.compat.v1 as tf\n", graph))
    (place.project / "old.py").unlink()
    (place.project / "report.txt").unlink(missing_ok=True)


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


TENSORFLOW = (
    Trainer(
        name="keras-fit",
        repository="keras-team/keras",
        needs=("examples/demo_functional.py",),
        lay_out=_keras_fit,
        command="python demo_functional.py",
        log=OwnLog(pattern=r"^\s*(?P<n>\d+)/\d+ "),
        batch=32,
        framework="Keras 3",
        waits=False,
    ),
    Trainer(
        name="keras-custom-loop",
        repository="keras-team/keras",
        needs=("examples/demo_custom_tf_workflow.py",),
        lay_out=_keras_custom,
        command="python demo_custom_tf_workflow.py",
        log=OwnLog(pattern=r"^Loss: "),
        batch=32,
        framework="TensorFlow",
        waits=False,
    ),
    Trainer(
        name="yolov3-fit",
        repository="zzh8829/yolov3-tf2",
        needs=("train.py", "yolov3_tf2/models.py"),
        lay_out=_yolo,
        command="python train.py --dataset data/train.tfrecord --classes data/voc2012.names --num_classes 20 "
        "--val_dataset data/train.tfrecord --mode fit --tiny --size 64 --batch_size 4 --epochs 50",
        env={"TF_USE_LEGACY_KERAS": "1"},
        log=OwnLog(pattern=r"^\s*(?P<n>\d+)/(?:\d+|Unknown)\b"),
        batch="batch_size",
        framework="tf_keras",
        waits=True,
    ),
    Trainer(
        name="yolov3-eager",
        repository="zzh8829/yolov3-tf2",
        needs=("train.py", "yolov3_tf2/models.py"),
        lay_out=_yolo,
        command="python train.py --dataset data/train.tfrecord --classes data/voc2012.names --num_classes 20 "
        "--val_dataset data/train.tfrecord --mode eager_tf --tiny --size 64 --batch_size 4 --epochs 50",
        env={"TF_USE_LEGACY_KERAS": "1"},
        log=OwnLog(pattern=r"\d+_train_(?P<n>\d+), ", starts_at=0),
        batch="batch_size",
        framework="TensorFlow",
    ),
    Trainer(
        name="tf-cnn-benchmarks",
        repository="tensorflow/benchmarks",
        needs=("scripts/tf_cnn_benchmarks/tf_cnn_benchmarks.py",),
        lay_out=_tf_cnn_benchmarks,
        folder="tf_cnn_benchmarks",
        command="python tf_cnn_benchmarks.py --device=cpu --data_format=NHWC --model=resnet20 --data_name=cifar10 "
        "--batch_size=8 --num_batches=100000 --display_every=1 --num_intra_threads=1 --num_inter_threads=2 --xla=False",
        log=OwnLog(pattern=r"^(?P<n>\d+)\s+images/sec:"),
        env={"TF_USE_LEGACY_KERAS": "1"},
        batch="batch_size",
        framework="TensorFlow 1",
        waits=False,
    ),
    Trainer(
        name="tf1-session",
        repository="aymericdamien/TensorFlow-Examples",
        needs=("input_data.py", "tensorflow_v1/examples/3_NeuralNetworks/neural_network_raw.py"),
        lay_out=_session,
        command="python neural_network_raw.py",
        log=OwnLog(pattern=r"^Step (?P<n>\d+), Minibatch Loss"),
        batch=128,
        framework="TensorFlow 1",
        waits=None,
    ),
    Trainer(
        name="myxtts",
        repository="masoodafar-web/MyXTTSModel",
        needs=("train_main.py", "myxtts"),
        lay_out=_speech,
        command="python train_main.py --model-size tiny --train-data dataset/dataset_train "
        "--val-data dataset/dataset_eval --batch-size 2 --grad-accum 1 --num-workers 2 --epochs 50 "
        "--max-text-length 60 --max-mel-frames 80 --prefetch-buffer-size 2 --checkpoint-dir checkpoints",
        log=OwnLog(pattern=r"^Epoch \d+:.*?\|?\s(?P<n>\d+)(?:/\d+|it) \["),
        batch="batch_size",
        framework="TensorFlow",
        waits=True,
    ),
)
