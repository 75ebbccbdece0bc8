"""Synthetic data in the formats that trainers read; programs for the trainer's interpreter, and small files."""

import gzip
import random
import struct
from pathlib import Path

import numpy as np

WORDS = 400


def mnist_files(folder: Path, *, train: int = 6000, test: int = 500, compressed: bool = False) -> None:
    """Write random digits as the four files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, count * 28 * 28, np.uint8).tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images)
        labels = rng.integers(0, 10, count).astype(np.uint8).tobytes()
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + labels)
    if compressed:
        for path in list(folder.glob("*-ubyte")):
            path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), compresslevel=1))
            path.unlink()


def text(lines: int, *, words: int = 20, seed: int = 0) -> str:
    """Make lines of random words of a small vocabulary."""
    rng = random.Random(seed)
    return "".join(" ".join(f"w{rng.randrange(WORDS)}" for _ in range(words)) + "\n" for _ in range(lines))


def tokens(path: Path, count: int, *, most: int) -> None:
    """Write random tokens below `most`, 16 bits each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.random.default_rng(0).integers(0, most, count).astype(np.uint16).tofile(path)


LANGUAGE_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3} | {f"w{i}": i + 4 for i in range(400)}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
    model_max_length=256,
)
tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
tokenizer.save_pretrained(sys.argv[1])
config = LlamaConfig(
    vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
"""
"""Write a tiny language model and its tokenizer, in the format of Hugging Face, into the folder ``argv[1]``."""

IMAGE_FOLDERS = """
import pathlib, sys
import numpy
from PIL import Image
rng = numpy.random.default_rng(0)
for part, count in (("train", 96), ("val", 8)):
    for label in ("apples", "pears", "plums", "quinces"):
        folder = pathlib.Path(sys.argv[1], part, label)
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 256, (96, 96, 3), numpy.uint8)).save(folder / f"{number}.jpg")
"""
"""Write folders of small random pictures, one for each class, below ``argv[1]``."""

DETECTION_RECORDS = """
import sys
import numpy
import tensorflow as tf
rng = numpy.random.default_rng(0)
names = [line.strip() for line in open(sys.argv[2])]
def floats(values): return tf.train.Feature(float_list=tf.train.FloatList(value=values))
def texts(values): return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
with tf.io.TFRecordWriter(sys.argv[1]) as records:
    for _ in range(400):
        low, high = rng.uniform(0, 0.4, (2, 3)), rng.uniform(0.5, 1, (2, 3))
        picture = tf.io.encode_jpeg(rng.integers(0, 256, (120, 160, 3), numpy.uint8)).numpy()
        records.write(tf.train.Example(features=tf.train.Features(feature={
            "image/encoded": texts([picture]),
            "image/object/bbox/xmin": floats(low[0]), "image/object/bbox/ymin": floats(low[1]),
            "image/object/bbox/xmax": floats(high[0]), "image/object/bbox/ymax": floats(high[1]),
            "image/object/class/text": texts([rng.choice(names).encode() for _ in range(3)]),
        })).SerializeToString())
"""
"""Write pictures with boxes of the classes in ``argv[2]`` as TensorFlow records into ``argv[1]``."""
