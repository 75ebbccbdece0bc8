"""Request of a search: what was typed after ``autotune search``."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """Options and arguments of ``autotune search``, under the names that click gives them.

    Attributes:
        budget_s: The wall for everything, in seconds.
        seed: Makes the choices repeatable; 0 or more.
        fresh: True to start a new record, without a warm start.
        warm_start: True to begin with the best points of studies of like trainings.
        apply: Whether to write the best values into the config if they are better; None to ask.
        same_training: True to turn only knobs that leave the training itself unchanged.
        batch: Limit of the effective batch; None for that of the section, or the default.
        allow_busy_gpu: True to search although somebody else is on the GPU.
        sampler: Name of the sampler; None for that of the section.
        validate_s: Longest training of a validation trial, in seconds; None for none.
        race_s: Time for the race of the answer, in seconds; None where that is left to the answer.
        report: File for the report of the study; None for none.
        dry_run: True to show what would happen, and start nothing.
        as_json: True to print the answer as one JSON object on stdout.
        state_dir: Folder of all state; None finds the place by the config.
        storage: Where studies are kept, as typed.
        trainer: The trainer's command as typed behind ``--``; empty takes that of the section.
    """

    config: Path
    budget_s: float
    seed: int
    fresh: bool
    warm_start: bool
    apply: bool | None
    same_training: bool
    batch: str | None
    allow_busy_gpu: bool
    sampler: str | None
    validate_s: float | None
    race_s: float | None
    no_race: bool
    report: Path | None
    dry_run: bool
    as_json: bool
    state_dir: Path | None
    storage: str | None
    trainer: tuple[str, ...]

    @property
    def asked_race_s(self) -> float | None:
        """Time for the race that was asked for; 0 for none, None where nothing was said."""
        return 0.0 if self.no_race else self.race_s

    def ends_s(self, started_s: float) -> float:
        """Return the end of the budget of a process that started then, on the same clock; infinity for a dry run."""
        return math.inf if self.dry_run else started_s + self.budget_s


@dataclass(frozen=True, kw_only=True)
class InitRequest:
    """Options and arguments of ``autotune init``, under the names that click gives them.

    Attributes:
        configs: The configs as they were typed; the section goes into the first.
        yes: True to write without asking.
        separate: True to write the section into a file of its own.
        from_flags: True to make the config out of the command's flags.
        no_preflight: True to start no trial.
        state_dir: Folder of all state; None finds the place by the config.
        trainer: The trainer's command as typed behind ``--``.
    """

    configs: tuple[Path, ...]
    yes: bool
    separate: bool
    from_flags: bool
    no_preflight: bool
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
