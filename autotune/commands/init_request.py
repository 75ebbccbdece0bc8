"""Request of a section: what was typed after ``autotune init``."""

import sys
from dataclasses import dataclass
from pathlib import Path


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
