"""Options of searches and of ``autotune init``, named as click passes them."""

import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Options of one search; `autotune.tune` explains them."""

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
        apply: Whether to write better values into the config; None to ask.
        gpus: GPUs that search together, each with its share of the cores; empty for all, None for one search with
            the GPUs that the trainer uses.
        storage: Address of the studies, as typed.
        trainer: Trainer's command after ``--``; empty takes that of the section.
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
        """Return the end of the budget of a process started then; infinity for a dry run."""
        return math.inf if self.dry_run else started_s + self.budget_s

    def words(self, *names: str) -> tuple[str, ...]:
        """Return these options as words of a command line, defaults left out."""
        words: list[str] = []
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in names and value != option.default:
                name = option.name.replace("_", "-")
                text = () if isinstance(value, bool) else (str(value.absolute() if isinstance(value, Path) else value),)
                words += (f"--no-{name}" if value is False else f"--{name}", *text)
        return tuple(words)


@dataclass(frozen=True, kw_only=True)
class InitRequest:
    """Options and arguments of ``autotune init``.

    Attributes:
        configs: Configs as typed; the section goes into the first.
        separate: Write the section into its own file.
        from_flags: Create the config from the command's flags.
        trainer: Trainer's command after ``--``.
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
        return self.configs[0]

    @property
    def further(self) -> tuple[Path, ...]:
        return self.configs[1:]

    @property
    def may_ask(self) -> bool:
        """True if prompts are wanted, and stdin is a terminal."""
        return not self.yes and sys.stdin is not None and sys.stdin.isatty()
