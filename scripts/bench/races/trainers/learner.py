"""Trainer of a small problem: ``python learner.py CONFIG``, endless; with ``--until LOSS`` up to a held-out loss.

Problems: ``logistic`` (a linear classifier, SGD), ``network`` (one hidden layer on a teacher's answers, SGD), both in
NumPy; ``language`` (the next character of Python's own sources, AdamW) in PyTorch. The data are finite and shuffled in
each epoch; with ``evaluate_s`` the held-out loss is reported each so often. Faults: ``drop`` (a tenth of the samples is
never seen), ``repeat`` (the first batch again and again), ``frozen`` (the noise that augments a sample is the same in
each epoch).

A step takes ``fixed_s`` and ``sample_s`` for each sample at least, so that the gain of a larger batch is that of an
accelerator, whatever the machine does besides; what the host itself takes is part of it.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autotune import trainee

_HELD_OUT = 2000
_LOOK_EVERY_S = 0.2


class Learner(Protocol):
    """Model of a problem, and how it is trained."""

    def step(self, x: Any, y: Any) -> float:
        """Train on a batch; return its mean loss before that."""
        ...

    def loss(self, x: Any, y: Any) -> float:
        """Return the mean loss of a batch."""
        ...


class Logistic:
    """Linear classifier."""

    def __init__(self, width: int, rate: float, _rng: np.random.Generator) -> None:
        self._weights, self._rate = np.zeros(width), rate

    def step(self, x: Any, y: Any) -> float:
        """Train on a batch; return its mean loss before that."""
        scores = x @ self._weights
        self._weights -= self._rate * (x.T @ (1.0 / (1.0 + np.exp(-scores)) - y)) / len(y)
        return _log_loss(scores, y)

    def loss(self, x: Any, y: Any) -> float:
        """Return the mean loss of a batch."""
        return _log_loss(x @ self._weights, y)


class Network:
    """Network of one hidden layer, for a number."""

    def __init__(self, width: int, rate: float, rng: np.random.Generator) -> None:
        self._first = rng.normal(size=(width, 64)) / np.sqrt(width)
        self._second, self._rate = rng.normal(size=64) / 8.0, rate

    def step(self, x: Any, y: Any) -> float:
        """Train on a batch; return its mean loss before that."""
        hidden = np.tanh(x @ self._first)
        errors = hidden @ self._second - y
        back = np.outer(errors, self._second) * (1.0 - hidden**2)
        self._second -= self._rate * 2.0 * hidden.T @ errors / len(y)
        self._first -= self._rate * 2.0 * x.T @ back / len(y)
        return float(np.mean(errors**2))

    def loss(self, x: Any, y: Any) -> float:
        """Return the mean loss of a batch."""
        return float(np.mean((np.tanh(x @ self._first) @ self._second - y) ** 2))


class Language:
    """Network that tells the next character from sixteen."""

    def __init__(self, _width: int, rate: float, rng: np.random.Generator) -> None:
        import torch  # type: ignore[import-not-found, unused-ignore]  # in an interpreter of its own

        torch.set_num_threads(1)
        torch.manual_seed(int(rng.integers(2**31)))
        self._torch = torch
        self._model = torch.nn.Sequential(
            torch.nn.Embedding(128, 16), torch.nn.Flatten(), torch.nn.Linear(256, 128), torch.nn.ReLU(),
            torch.nn.Linear(128, 128),
        )  # fmt: skip
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=rate)

    def step(self, x: Any, y: Any) -> float:
        """Train on a batch; return its mean loss before that."""
        loss = self._loss(x, y)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach())

    def loss(self, x: Any, y: Any) -> float:
        """Return the mean loss of a batch."""
        with self._torch.no_grad():
            return float(self._loss(x, y))

    def _loss(self, x: Any, y: Any) -> Any:
        outputs = self._model(self._torch.from_numpy(x))
        return self._torch.nn.functional.cross_entropy(outputs, self._torch.from_numpy(y))


def _log_loss(scores: Any, y: Any) -> float:
    return float(np.mean(np.logaddexp(0.0, scores) - y * scores))


def _data(problem: str, samples: int) -> tuple[Any, Any]:
    """Return the samples of a problem, always the same ones."""
    rng = np.random.default_rng(0)
    if problem == "language":
        import argparse as one
        import typing as another

        text = "".join(Path(module.__file__ or "").read_text(encoding="utf-8") for module in (one, another))
        codes = np.frombuffer(text.encode("ascii", "replace"), dtype=np.uint8).astype(np.int64) % 128
        starts = rng.integers(len(codes) - 17, size=samples)
        windows = np.stack([codes[start : start + 17] for start in starts])
        return windows[:, :16], windows[:, 16]
    scales = np.exp(rng.normal(size=40))
    x = rng.normal(size=(samples, 40)) * scales
    if problem == "logistic":
        chance = 1.0 / (1.0 + np.exp(-(x @ (rng.normal(size=40) / scales))))
        return x / scales.mean(), (rng.random(samples) < chance).astype(float)
    teacher = rng.normal(size=(40, 8)) / scales[:, None] / np.sqrt(40)
    return x / scales.mean(), np.tanh(2.0 * x @ teacher) @ rng.normal(size=8) + 0.1 * rng.normal(size=samples)


def _batches(x: Any, y: Any, config: dict[str, Any], rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Yield batches for ever; the end of each epoch is reported."""
    batch, fault = config["batch_size"], config.get("fault", "none")
    kept = len(y) - len(y) // 10 if fault == "drop" else len(y)
    strength = config.get("augmentation", 0.0)
    frozen = strength * np.random.default_rng(1).normal(size=x.shape) if strength and fault == "frozen" else None
    while True:
        order = rng.permutation(kept)
        for start in range(0, kept - batch + 1, batch):
            chosen = order[:batch] if fault == "repeat" else order[start : start + batch]
            noise = 0.0
            if strength:
                noise = frozen[chosen] if frozen is not None else strength * rng.normal(size=(batch, x.shape[1]))
            yield x[chosen] + noise if strength else x[chosen], y[chosen]
        trainee.epoch_end()


def main() -> None:
    """Train; print the time to the held-out loss where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--until", type=float, help="held-out loss at which training ends")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds of training after which it is given up")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text())
    samples = config.get("samples", 20_000)
    x, y = _data(config["problem"], samples + _HELD_OUT)
    held_out, x, y = (x[samples:], y[samples:]), x[:samples], y[:samples]
    rng = np.random.default_rng(config["seed"])
    kinds: dict[str, type[Any]] = {"logistic": Logistic, "network": Network, "language": Language}
    learner: Learner = kinds[config["problem"]](x.shape[1], config["learning_rate"], rng)
    least_s = config["fixed_s"] + config["sample_s"] * config["batch_size"]
    trained_s, look_s, evaluate_s = 0.0, 0.0, config.get("evaluate_s", 0.0)
    evaluated_s = time.perf_counter()
    for batch_x, batch_y in _batches(x, y, config, rng):
        begun_s = time.perf_counter()
        with trainee.step(samples=len(batch_y)) as step:
            step.loss = learner.step(batch_x, batch_y)
            if arguments.until is None:
                time.sleep(max(0.0, least_s - (time.perf_counter() - begun_s)))
        if arguments.until is None:
            if evaluate_s and (now_s := time.perf_counter()) - evaluated_s >= evaluate_s:
                loss = learner.loss(*held_out)
                evaluated_s = time.perf_counter()
                trainee.mark("eval", duration_s=evaluated_s - now_s, loss=loss)
            continue
        trained_s += max(least_s, time.perf_counter() - begun_s)
        if trained_s >= look_s:
            look_s = trained_s + _LOOK_EVERY_S
            if learner.loss(*held_out) <= arguments.until or trained_s > arguments.limit:
                break
    print(json.dumps({"trained_s": trained_s, "loss": learner.loss(*held_out)}))


if __name__ == "__main__":
    main()
