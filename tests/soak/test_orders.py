"""Random orders of searches, edits, apply and revert: what is written is what was shown, and truly better."""

import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.bench.simulated_runner import Training
from tests.command_line import CONFIG, Done, project_in

CHOICES = {"batch_size": (4, 16, 64), "num_workers": (1, 2)}
WORSE = 0.97  # a true ratio that is worth counting
ORDERS = [1, *(pytest.param(seed, marks=pytest.mark.services) for seed in range(2, 60))]


class Order:
    """One project, and what happens to it.

    Args:
        folder: Its folder.
        seed: Seed of all that is random.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self._commands = project_in(folder, self._training, CONFIG.replace("data:", "model: {hidden: 1}\ndata:", 1))
        self._config, self._script = folder / "config.yaml", folder / "train.py"
        self._written: list[tuple[str, str]] = []  # by the tool and not reverted: the config before, and after

    def _speed(self, config: Mapping[str, Any]) -> float:
        """Return the true speed of a config; other points are fast with another trainer, or another model."""
        values = [config["data"][name] for name in CHOICES]
        question = f"{self._script.read_text()} {config['model']}"
        return 100.0 * random.Random(f"{question} {values}").lognormvariate(0.0, 0.3)

    def _training(self, config: Mapping[str, Any]) -> Training:
        samples = config["data"]["batch_size"]
        return Training(samples=samples, step_s=samples / self._speed(config), noise=0.02, epoch=1000)

    def _type(self, *words: str) -> Done:
        done = self._commands(*words, "--config", "config.yaml")
        assert done.returncode in (0, 1), done.stderr
        return done

    def search(self) -> None:
        """Search for some minutes, and apply the answer or not."""
        before = self._config.read_text()
        options = self.rng.choice([("--no-apply",), ("--apply",)])
        done = self._type("search", "--budget", f"{self.rng.randint(1, 4)}m", "--json", *options)
        if done.returncode == 0 and done.document["answer"] is not None:
            self._check(before, done.document["answer"])

    def edit(self) -> None:
        """Change a knob, a key that is none, or the trainer."""
        name, value = self.rng.choice([(name, value) for name, values in CHOICES.items() for value in values])
        name, value = self.rng.choice([(name, value), (name, value), ("hidden", self.rng.randint(1, 2))])
        text, count = re.subn(rf"(\b{name}: )\d+", rf"\g<1>{value}", self._config.read_text(), count=1)
        assert count == 1
        self._config.write_text(text)
        if self.rng.random() < 0.2:
            self._script.write_text(f"TRAINER = {self.rng.randint(1, 2)}\n")

    def apply(self) -> None:
        """Apply the current answer, if there is one."""
        before, answer = self._config.read_text(), self.agree()
        self._type("apply", "--all", *self.rng.choice([(), ("--force",)]))
        self._check(before, answer)

    def revert(self) -> None:
        """Take back what was written last, if nobody has edited it since."""
        before = self._config.read_text()
        self._type("revert")
        if self._written and before == self._written[-1][1]:
            assert self._config.read_text() == self._written.pop()[0]

    def _check(self, before: str, answer: Mapping[str, Any] | None) -> None:
        """Require that what was written, if anything, is that answer, and truly better."""
        after = self._config.read_text()
        if after == before:
            return
        old, new = yaml.safe_load(before), yaml.safe_load(after)
        assert {key["path"]: key["new"] for key in answer["keys"]} == {
            f"data.{name}": new["data"][name] for name in CHOICES
        }
        assert {**new, "data": old["data"]} == old
        assert self._speed(new) > WORSE * self._speed(old)
        self._written.append((before, after))

    def agree(self) -> dict[str, Any] | None:
        """Require that status and a dry run of apply show one and the same answer; return it."""
        before = self._config.read_text()
        status, shown = self._type("status", "--json").document, self._type("apply", "--all", "--dry-run")
        assert self._config.read_text() == before
        answer: dict[str, Any] | None = status.get("answer")
        is_beyond = status.get("verdict") == "better" and answer is None  # edited out of the domain of the answer
        assert ("error" in status or is_beyond) == (shown.returncode == 1)
        if answer is not None:
            assert (status["diff"] or "Nothing to do") in shown.stdout
        return answer


@pytest.mark.parametrize("seed", ORDERS)
def test_what_is_written_was_shown_and_is_truly_better(seed: int, tmp_path: Path) -> None:
    """Whatever was searched, edited, applied and reverted before."""
    order = Order(tmp_path / "project", seed)
    order.search()
    for _ in range(8):
        order.rng.choice([order.search, order.edit, order.edit, order.apply, order.apply, order.revert])()
        order.agree()
