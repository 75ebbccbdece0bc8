"""Synthetic data in the formats that trainers read; programs for the trainer's interpreter, and small files."""

import random
import struct
from pathlib import Path

import numpy as np

WORDS = 400


def mnist_files(folder: Path, *, train: int = 6000, test: int = 500) -> None:
    """Write random digits as the four files of MNIST."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, count * 28 * 28, np.uint8).tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + images)
        labels = rng.integers(0, 10, count).astype(np.uint8).tobytes()
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + labels)


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
