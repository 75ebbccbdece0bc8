"""Notes of one part of the run: criteria, figures and screens, on disk as soon as they are known."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1


def replace_file(file: Path, text: str) -> None:
    """Replace a file in one step: whoever reads it sees the old text or the new one."""
    new = file.with_name(f"{file.name}.new")
    with new.open("w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    os.replace(new, file)


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """Something that has to hold for the part to pass, with what was seen."""

    text: str
    passed: bool
    seen: str


@dataclass(frozen=True, kw_only=True)
class NotesData:
    """Notes as they are on disk.

    Attributes:
        ended: True if the part came to its end.
        figures: Name and value, as people read them.
        screens: Title and file of each.
        not_checked: What could not be checked here, with the reason.
        error: What broke the part off; empty if nothing did.
    """

    ended: bool = False
    criteria: tuple[Criterion, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    screens: tuple[tuple[str, str], ...] = ()
    not_checked: tuple[tuple[str, str], ...] = ()
    error: str = ""

    @property
    def passed(self) -> bool:
        """True if the part came to its end, and all that it looked at held."""
        return self.ended and not self.error and bool(self.criteria) and all(one.passed for one in self.criteria)


def read_notes(folder: Path) -> NotesData:
    """Return the notes in the folder of a part; empty ones if there are none yet."""
    try:
        found = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return NotesData()
    assert found.pop("format") == FORMAT
    criteria = tuple(Criterion(**one) for one in found.pop("criteria"))
    pairs = {name: tuple(map(tuple, found.pop(name))) for name in ("figures", "screens", "not_checked")}
    return NotesData(criteria=criteria, **pairs, **found)


@dataclass(kw_only=True)
class Notes:
    """Notes that a part takes; each is on disk when the call returns.

    Args:
        folder: Folder of the part.
    """

    folder: Path
    _data: dict[str, Any] = field(default_factory=lambda: asdict(NotesData()))

    def __post_init__(self) -> None:
        self._save()

    def criterion(self, text: str, passed: bool, seen: object = "") -> None:
        """Note whether something held that has to."""
        self._add("criteria", asdict(Criterion(text=text, passed=bool(passed), seen=str(seen))))

    def criteria(self, found: Sequence[Criterion]) -> None:
        """Note several of them."""
        for one in found:
            self.criterion(one.text, one.passed, one.seen)

    def figure(self, name: str, value: object) -> None:
        """Note a figure, with its unit."""
        self._add("figures", (name, str(value)))

    def screen(self, title: str, file: Path) -> None:
        """Note a file whose text belongs to the report, as far as it is written by then."""
        self._add("screens", (title, str(file)))

    def text(self, title: str, text: str) -> None:
        """Note a text as a screen."""
        file = self.folder / f"screen{len(self._data['screens'])}.txt"
        replace_file(file, text)
        self.screen(title, file)

    def not_checked(self, what: str, why: str) -> None:
        """Note something that cannot be checked on this machine."""
        self._add("not_checked", (what, why))

    def end(self, error: str = "") -> None:
        """Note the end of the part."""
        self._data |= {"ended": True, "error": error}
        self._save()

    def _add(self, name: str, entry: object) -> None:
        self._data[name] = [*self._data[name], entry]
        self._save()

    def _save(self) -> None:
        replace_file(self.folder / "notes.json", json.dumps({"format": FORMAT, **self._data}))


@dataclass(kw_only=True)
class Context:
    """What a part has to work with.

    Attributes:
        notes: Where it says what it found.
        folder: Its own folder.
        torch_python: The interpreter that has PyTorch.
        python: The one that has autotune; the part runs in it.
        is_fake: True if the GPU is the tests' fake one.
        scale: Factor on the budgets; 1 but in rehearsals.
        ends_s: Monotonic time at which the part is stopped.
    """

    notes: Notes
    folder: Path
    torch_python: str
    python: str
    is_fake: bool
    scale: float
    ends_s: float

    def left_s(self) -> float:
        """Return the time that the part still has."""
        return max(0.1, self.ends_s - time.monotonic())

    def run(
        self, title: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end; what it says to people is a screen of the report, from the beginning on.

        Raises:
            subprocess.TimeoutExpired: It takes longer than the part has time.
        """
        process, stdout, _ = self.start(title, argv, cwd=cwd, env=env)
        try:
            process.wait(timeout=self.left_s())
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(list(argv), process.returncode, stdout.read_text(encoding="utf-8"), "")

    def start(
        self, title: str, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None
    ) -> "tuple[subprocess.Popen[bytes], Path, Path]":
        """Start a command; return its process, and the files of its stdout and of its screen (stderr).

        Where stdout is JSON for the part, people read stderr; else both are the screen.
        """
        count = len(list(self.folder.glob("command*.txt")))
        stdout, screen = self.folder / f"command{count}.out", self.folder / f"command{count}.txt"
        shown = " ".join(map(shlex.quote, argv)).replace(f"{self.python} -P -m autotune", "autotune")
        shown = shown.replace(f"{self.folder}/", "").replace(self.torch_python, "python").replace(self.python, "python")
        screen.write_text(f"$ {shown}\n", encoding="utf-8")
        is_json = "--json" in argv
        with stdout.open("wb") as out, screen.open("ab") as err:
            process = subprocess.Popen(
                argv,
                cwd=cwd,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out if is_json else err,
                stderr=err,
            )
        self.notes.screen(title, screen)
        return process, stdout if is_json else screen, screen
