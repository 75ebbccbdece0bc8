"""Options of searches, and of ``autotune init``: what a user may ask for, under the names that click gives it."""

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of one search; those of `autotune.tune`, which explains them.

    Attributes:
        budget_s: The wall for everything, in seconds.
        seed: Makes the choices repeatable; 0 or more.
        fresh: Whether to start a new record, without a warm start; the old one is kept beside it.
        warm_start: Whether to begin with the best points of studies of like trainings.
        same_training: Whether to turn only knobs that leave the training itself unchanged.
        batch: Limit of the effective batch; None for that of the section, or the default.
        exhaust: Whether to use the whole budget, also where the answer is sure before that.
        allow_busy_gpu: Whether to search although somebody else is on the GPU.
        sampler: A sampler of Optuna; None for autotune's own.
        validate_s: Longest training of a validation trial, at most a quarter of the budget; None for an answer that is
            not validated.
        race_s: Time for the race of the answer, at most half of the budget; 0 for none, None for one where the answer
            calls for it and the budget has the time.
    """

    budget_s: float = 1800.0
    seed: int = 0
    fresh: bool = False
    warm_start: bool = True
    same_training: bool = False
    batch: str | None = None
    exhaust: bool = False
    allow_busy_gpu: bool = False
    sampler: Any = None
    validate_s: float | None = None
    race_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class SearchRequest(SearchOptions):
    """Options and arguments of ``autotune search``.

    Attributes:
        apply: Whether to write the best values into the config if they are better; None to ask.
        report: File for the report of the study; None for none.
        web: True to serve a page that shows it while it goes on.
        gpus: Numbers of the GPUs that search together, each with its share of the cores; empty for all, None for one
            search with whatever the trainer uses.
        dry_run: True to show what would happen, and start nothing.
        state_dir: Folder of all state; None finds the place by the config.
        storage: Where studies are kept, as typed.
        trainer: The trainer's command as typed behind ``--``; empty takes that of the section.
    """

    config: Path
    apply: bool | None = None
    report: Path | None = None
    web: bool = False
    gpus: tuple[int, ...] | None = None
    dry_run: bool = False
    state_dir: Path | None = None
    storage: str | None = None
    trainer: tuple[str, ...] = ()

    def ends_s(self, started_s: float) -> float:
        """Return the end of the budget of a process that started then, on the same clock; infinity for a dry run."""
        return math.inf if self.dry_run else started_s + self.budget_s

    def words(self, *names: str) -> tuple[str, ...]:
        """Return what says these options on a command line, as far as they are not the default."""
        words: list[str] = []
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in names and value != option.default:
                name = option.name.replace("_", "-")
                said = () if isinstance(value, bool) else (str(value.absolute() if isinstance(value, Path) else value),)
                words += (f"--no-{name}" if value is False else f"--{name}", *said)
        return tuple(words)


@dataclass(frozen=True, kw_only=True)
class InitRequest:
    """Options and arguments of ``autotune init``, under the names that click gives them.

    Attributes:
        configs: The configs as they were typed; the section goes into the first.
        yes: True to write without asking.
        separate: True to write the section into a file of its own.
        from_flags: True to make the config out of the command's flags.
        no_preflight: True to start no trial.
        dry_run: True to show what would be written, and to start and write nothing.
        state_dir: Folder of all state; None finds the place by the config.
        trainer: The trainer's command as typed behind ``--``.
    """

    configs: tuple[Path, ...]
    yes: bool
    separate: bool
    from_flags: bool
    no_preflight: bool
    dry_run: bool
    state_dir: Path | None
    trainer: tuple[str, ...]

    @property
    def config(self) -> Path:
        """The config that gets the section."""
        return self.configs[0]

    @property
    def further(self) -> tuple[Path, ...]:
        """The other configs, which the section names."""
        return self.configs[1:]

    @property
    def may_ask(self) -> bool:
        """True if questions are wanted, and somebody is there to answer them."""
        return not self.yes and sys.stdin is not None and sys.stdin.isatty()
