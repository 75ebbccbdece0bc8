"""Trainer of Transformers whose texts are prepared in Python: what `scripts.bench code` tunes."""

import argparse
import os
import tempfile
import time
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

_LENGTH = 64
_WARM_UP_S = 4.0


class Texts(torch.utils.data.Dataset):  # type: ignore[misc]  # torch is not installed where types are checked
    """Texts that are cut into tokens when they are wanted."""

    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        text = " ".join(f"word{index * step % 977}" for step in range(2_000))
        tokens = [hash(word) % 1_000 for word in text.split()][:_LENGTH]
        return {"input_ids": tokens, "attention_mask": [1] * _LENGTH, "labels": index % 2}


class Speed(TrainerCallback):  # type: ignore[misc]
    """Prints the speed after some seconds, and ends."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began_s = self._measured_s = time.monotonic()
        self._samples = 0

    def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
        now_s = time.monotonic()
        if now_s - self._began_s < _WARM_UP_S:
            self._measured_s = now_s
            return
        self._samples += 16
        if now_s - self._began_s > self._seconds:
            print(f"{self._samples / (now_s - self._measured_s):.3f}", flush=True)
            os._exit(0)


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    config = BertConfig(
        vocab_size=1_000, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=16, max_steps=10**8, report_to=[], disable_tqdm=True
    )
    model = BertForSequenceClassification(config)
    Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[Speed(options.seconds)]).train()


if __name__ == "__main__":
    main()
