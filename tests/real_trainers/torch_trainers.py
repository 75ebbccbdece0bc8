"""Rows of trainers that use PyTorch."""

import json
import pickle
import shutil

from tests.real_trainers import synthetic
from tests.real_trainers.own_log import OwnLog
from tests.real_trainers.trainer import Place, Trainer

PICTURES_OF_A_KIND = 40
"""Pictures of each of four kinds for the example of Accelerate, which trains with four of five in batches of 8."""

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def _mnist(place: Place) -> None:
    place.copy("mnist")
    synthetic.mnist_files(place.project / "data" / "MNIST" / "raw")


def _word_language_model(place: Place) -> None:
    place.copy("word_language_model")
    for name, lines in (("train", 3000), ("valid", 100), ("test", 100)):
        place.write(f"word_language_model/data/wikitext-2/{name}.txt", synthetic.text(lines))


def _imagenet(place: Place) -> None:
    place.copy("imagenet")


def _nanogpt(place: Place) -> None:
    place.copy("train.py", "model.py", "configurator.py", "config")
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        synthetic.tokens(place.project / "data" / "shakespeare_char" / f"{name}.bin", count, most=65)
    meta = {"vocab_size": 65, "itos": {}, "stoi": {}}
    (place.project / "data" / "shakespeare_char" / "meta.pkl").write_bytes(pickle.dumps(meta))


def _timm(place: Place) -> None:
    place.copy("train.py")
    place.run(synthetic.IMAGE_FOLDERS, "pictures")
    place.write(
        "args.yaml",
        """\
# Small pictures, for a machine without a GPU.
data_dir: pictures
model: test_efficientnet
num_classes: 4
img_size: 64
device: cpu
batch_size: 16
workers: 2
epochs: 30
opt: sgd
lr: 0.01
log_interval: 1
output: output
""",
    )


def _lightning_hydra(place: Place) -> None:
    place.copy("src", "configs", ".project-root")
    synthetic.mnist_files(place.project / "data" / "MNIST" / "raw", train=60_000, test=10_000)


def _language_model(place: Place) -> None:
    place.run(synthetic.LANGUAGE_MODEL, "tiny-model")
    lines = synthetic.text(2000).splitlines()
    place.write("texts/train.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in lines))


def _trl(accumulation: int, place: Place) -> None:
    _language_model(place)
    place.write(
        "sft.yaml",
        f"""\
model_name_or_path: tiny-model
dataset_name: texts
max_length: 128
output_dir: out
per_device_train_batch_size: 8
gradient_accumulation_steps: {accumulation}
dataloader_num_workers: 0
num_train_epochs: 50
learning_rate: 2.0e-4
use_cpu: true
bf16: false
gradient_checkpointing: false
logging_steps: 10
save_strategy: "no"
report_to: none
""",
    )


def _llama_factory(place: Place) -> None:
    place.copy("src")
    # It needs an older trl than others: pip install --no-deps --target packages 'trl==0.24.0' in its checkout.
    place.copy("packages/trl", into="src")
    place.write("src/torchaudio.py", '"""Stand-in: it is imported always, and needed for models of sound only."""\n')
    _language_model(place)
    place.write("data/dataset_info.json", json.dumps({"tiny": {"file_name": "tiny.json"}}))
    examples = [{"instruction": line, "input": "", "output": line[::-1]} for line in synthetic.text(1500).splitlines()]
    place.write("data/tiny.json", json.dumps(examples))
    place.write(
        "full_sft.yaml",
        """\
### model
model_name_or_path: tiny-model
trust_remote_code: true
disable_gradient_checkpointing: true

### method
stage: sft
do_train: true
finetuning_type: full

### dataset
dataset: tiny
template: default
cutoff_len: 128
max_samples: 1000
preprocessing_num_workers: 1
dataloader_num_workers: 0

### output
output_dir: saves/tiny/full/sft
logging_steps: 10
save_steps: 500
plot_loss: false
overwrite_output_dir: true
save_only_model: false
report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]

### train
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 30.0
lr_scheduler_type: cosine
bf16: false
ddp_timeout: 180000000
resume_from_checkpoint: null
""",
    )


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
        if int(path.stem) < PICTURES_OF_A_KIND:
            path.rename(place.project / "pictures" / f"{path.parent.name}_{path.stem}.jpg")
    shutil.rmtree(place.project / "made")


_NANOGPT = (
    "python train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1 "
    "--block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=20000 --lr_decay_iters=2000 "
    "--dropout=0.0"
)
_LIGHTNING_BAR = "+callbacks.bar._target_=lightning.pytorch.callbacks.TQDMProgressBar"
_BAR = OwnLog(pattern=r"^\s*\d+%\|[^|]*\|\s*(?P<n>\d+)/\d+ \[", micro=False, starts_at=1)
"""The bar of tqdm over updates of the optimizer, which has no title as other bars have; it is at 0 before the first."""

TORCH = (
    Trainer(
        name="pytorch-mnist",
        repository="pytorch/examples",
        needs=("mnist/main.py",),
        lay_out=_mnist,
        folder="mnist",
        command="python main.py --batch-size=64 --epochs 14 --log-interval 1",
        log=OwnLog(pattern=r"Train Epoch: \d+ \[(?P<n>\d+)/", counts_samples=True),
        batch="batch_size",
        framework="PyTorch",
        waits=False,
    ),
    Trainer(
        name="pytorch-word-language-model",
        repository="pytorch/examples",
        needs=("word_language_model/main.py",),
        lay_out=_word_language_model,
        folder="word_language_model",
        command="python main.py --model LSTM --emsize 64 --nhid 64 --batch_size 20 --epochs 40 --log-interval 1",
        log=OwnLog(pattern=r"\|\s*(?P<n>\d+)/\s*\d+ batches", starts_at=0),
        batch="batch_size",
        framework="PyTorch",
        steps=False,
        waits=False,
    ),
    Trainer(
        name="pytorch-imagenet",
        repository="pytorch/examples",
        needs=("imagenet/main.py",),
        lay_out=_imagenet,
        folder="imagenet",
        command="python main.py --dummy --arch mobilenet_v3_small --batch-size 8 --workers 2 --print-freq 1 --epochs 2",
        log=OwnLog(pattern=r"^Epoch: \[\d+\]\[\s*(?P<n>\d+)/", starts_at=0),
        batch="batch_size",
        framework="PyTorch",
        waits=False,
    ),
    Trainer(
        name="nanogpt",
        repository="karpathy/nanoGPT",
        needs=("train.py", "config/train_shakespeare_char.py"),
        lay_out=_nanogpt,
        command=_NANOGPT,
        log=OwnLog(pattern=r"^iter (?P<n>\d+): loss", micro=False, starts_at=0),
        batch="batch_size",
        framework="PyTorch",
        steps=False,
    ),
    Trainer(
        name="nanogpt-accumulating",
        repository="karpathy/nanoGPT",
        needs=("train.py", "config/train_shakespeare_char.py"),
        lay_out=_nanogpt,
        command=f"{_NANOGPT} --gradient_accumulation_steps=4",
        log=OwnLog(pattern=r"^iter (?P<n>\d+): loss", micro=False, starts_at=0),
        batch="batch_size",
        accumulation="gradient_accumulation_steps",
        framework="PyTorch",
        steps=False,
    ),
    Trainer(
        name="timm",
        repository="huggingface/pytorch-image-models",
        needs=("train.py",),
        lay_out=_timm,
        command="python train.py -c args.yaml",
        config="args.yaml",
        init=("--separate",),
        log=OwnLog(pattern=r"Train: \d+ \[\s*(?P<n>\d+)/", starts_at=0),
        batch="batch_size",
        framework="PyTorch",
        waits=True,
    ),
    Trainer(
        name="lightning-hydra",
        repository="ashleve/lightning-hydra-template",
        needs=("src/train.py", "configs/train.yaml", ".project-root"),
        lay_out=_lightning_hydra,
        command=f"python src/train.py callbacks=none {_LIGHTNING_BAR}",
        config="configs/train.yaml",
        init=(),
        log=OwnLog(pattern=r"Epoch \d+:.*\|\s*(?P<n>\d+)/\d+ \[", ignore="Validation"),
        batch="data.batch_size",
        framework="PyTorch",
        waits=True,
    ),
    Trainer(
        name="trl-sft",
        repository="huggingface/trl",
        package="trl",
        needs=("scripts/sft.py",),
        lay_out=lambda place: _trl(1, place),
        command="python -m trl.scripts.sft --config sft.yaml",
        config="sft.yaml",
        init=("--separate",),
        env=_OFFLINE,
        log=_BAR,
        batch="per_device_train_batch_size",
        accumulation="gradient_accumulation_steps",
        framework="HF Trainer",
    ),
    Trainer(
        name="trl-sft-accumulating",
        repository="huggingface/trl",
        package="trl",
        needs=("scripts/sft.py",),
        lay_out=lambda place: _trl(4, place),
        command="python -m trl.scripts.sft --config sft.yaml",
        config="sft.yaml",
        init=("--separate",),
        env=_OFFLINE,
        log=_BAR,
        batch="per_device_train_batch_size",
        accumulation="gradient_accumulation_steps",
        framework="HF Trainer",
    ),
    Trainer(
        name="llama-factory",
        repository="hiyouga/LLaMA-Factory",
        needs=("src/train.py", "src/llamafactory", "packages/trl"),
        lay_out=_llama_factory,
        command="python src/train.py full_sft.yaml",
        config="full_sft.yaml",
        init=("--separate",),
        env={**_OFFLINE, "DISABLE_VERSION_CHECK": "1"},
        log=_BAR,
        batch="per_device_train_batch_size",
        accumulation="gradient_accumulation_steps",
        framework="HF Trainer",
    ),
    Trainer(
        name="accelerate",
        repository="huggingface/accelerate",
        needs=("examples/cv_example.py",),
        lay_out=_accelerate,
        command="python cv_example.py --data_dir pictures --mixed_precision=no --cpu",
        log=OwnLog(pattern=r"^epoch \d+: ", every=4 * PICTURES_OF_A_KIND * 4 // 5 // 8),
        batch=8,
        framework="Accelerate",
    ),
)
