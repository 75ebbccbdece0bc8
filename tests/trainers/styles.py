"""The trainers with the projects around them, and how each is started: what its user has before autotune comes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Style:
    """One trainer and its project.

    Attributes:
        trainer: Name of its file here; it lies in the project as ``train.py``.
        config: Text of its config.yaml; None for one that has no YAML.
        flags: Behind ``python train.py``, as its user types them.
        section: The ``autotune:`` section of a short search over it, without the command; it stands in a file of its
            own, since some of the trainers know their keys.
        command: The command in that section.
        knobs: The config that only the section needs, of a trainer without YAML.
        files: Further files of the project, with their text.
        leaves: What it writes outside its runs' folders, in spite of all; nothing else may.
    """

    trainer: str
    config: str | None = None
    flags: str = "config.yaml"
    section: str
    command: str = "{python} train.py {config}"
    knobs: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    leaves: Sequence[str] = ()

    def lay_out(self, project: Path) -> None:
        """Makes the project as its user has it."""
        project.mkdir(parents=True, exist_ok=True)
        (project / "train.py").write_text((HERE / f"{self.trainer}.py").read_text())
        for name, text in {**self.files, **({"config.yaml": self.config} if self.config else {})}.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text)

    def prepare(self, project: Path) -> None:
        """Adds what a search needs, as its user would by hand."""
        if self.config is None:
            (project / "config.yaml").write_text(self.knobs)
        (project / "config.autotune.yaml").write_text(f'command: "{self.command}"\n{SHORT}{self.section}')


SHORT = "trial: {start_timeout_s: 60, min_s: 0.3, min_steps: 10, max_s: 1}\n"
_TABLE = yaml.safe_load((HERE / "styles.yaml").read_text())
STYLES, NOTHING_TO_TUNE = (
    {name: Style(**row) for name, row in _TABLE[of].items()} for of in ("answered", "nothing to tune")
)
"""By name; a search over each of the first has an answer, over each of the others it can only say why it has none."""
