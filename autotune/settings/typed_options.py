"""Options that were typed on a command line to say which study is meant: the next command needs them too."""

import shlex
from dataclasses import dataclass
from pathlib import Path

_WITHOUT_STATE = frozenset({"run"})
_WITHOUT_STORAGE = frozenset({"init", "revert", "run"})


@dataclass(frozen=True, kw_only=True)
class TypedOptions:
    """Options of a command that name a study, as they were typed.

    What the environment or the section says is not among them: it applies to the next command by itself.

    Attributes:
        config: The config.
        state_dir: Folder of all state; None if it was not said.
        storage: Where studies are kept; None if it was not said.
    """

    config: Path
    state_dir: Path | None = None
    storage: str | None = None

    def command(self, verb: str, *more: str) -> str:
        """Return a command line for the same study, quoted for a shell; `more` options stand behind."""
        options = ["--config", str(self.config), *more]
        if self.state_dir is not None and verb not in _WITHOUT_STATE:
            options += ["--state-dir", str(self.state_dir)]
        if self.storage is not None and verb not in _WITHOUT_STORAGE:
            options += ["--storage", self.storage]
        return shlex.join(["autotune", verb, *options])
