"""The page that a run writes: what passed and how long it took, then each part with its figures and screens."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.gpu.evidence.notes import NotesData

_MOST_LINES, _MOST_COLUMNS = 150, 160  # of a screen


class State(StrEnum):
    """State of a part."""

    NOT_RUN = "not run"
    RUNNING = "running when this was written"
    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "stopped at its time limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class PartReport:
    """One part in the report.

    Attributes:
        took_s: Time that it ran; None if it did not.
        why: Reason for its state, where there is more to say.
    """

    name: str
    limit_s: float
    demonstrates: str
    state: State
    took_s: float | None
    notes: NotesData
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class RunReport:
    """Whole report.

    Attributes:
        title: Name of the GPU and date.
        is_fake: True if the GPU is the tests' fake one.
        facts: Versions and the machine.
        state: State of the run as a sentence.
        parts: All of them, in their order, whether they ran or not.
    """

    title: str
    is_fake: bool
    facts: Mapping[str, str]
    state: str
    parts: Sequence[PartReport]

    def markdown(self) -> str:
        """Return it as Markdown."""
        blocks = [f"# {self.title}"]
        if self.is_fake:
            blocks.append(
                "**A fake GPU**: the tests' own library in place of the driver's, and trainers of a CPU's size. This "
                "shows that the run works. It is no evidence of what a GPU does."
            )
        blocks.append(self.state)
        rows = [
            [
                part.name,
                f"{part.limit_s:.0f}",
                "" if part.took_s is None else f"{part.took_s:.1f}",
                part.state.value + (f": {part.why}" if part.why else ""),
                part.demonstrates,
            ]
            for part in self.parts
        ]
        blocks.append(table(["part", "limit, s", "took, s", "result", "demonstrates"], rows))
        if self.facts:
            blocks.append(table(["", ""], [[name, value] for name, value in self.facts.items()]))
        for part in self.parts:
            blocks += _part_blocks(part)
        return "\n\n".join(blocks) + "\n"


def _part_blocks(part: PartReport) -> list[str]:
    notes = part.notes
    blocks = [f"## {part.name.capitalize()}", f"{part.state.value.capitalize()}{f': {part.why}' if part.why else ''}."]
    if notes.error:
        blocks.append(_fenced(notes.error))
    if notes.criteria:
        rows = [[one.text, "yes" if one.passed else "**no**", one.seen] for one in notes.criteria]
        blocks.append(table(["criterion", "met", "seen"], rows))
    if notes.figures:
        blocks.append(table(["figure", ""], notes.figures))
    blocks += [f"Not checked: {what}, because {why}." for what, why in notes.not_checked]
    for title, file in notes.screens:
        blocks += [f"### {title}", _fenced(_screen(Path(file)))]
    return blocks


def _screen(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"({error})"
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")
    lines = [line if len(line) <= _MOST_COLUMNS else f"{line[: _MOST_COLUMNS - 1]}…" for line in text.splitlines()]
    if len(lines) > _MOST_LINES:
        head, tail = lines[: _MOST_LINES // 3], lines[-2 * _MOST_LINES // 3 :]
        lines = [*head, f"… ({len(lines) - len(head) - len(tail)} lines left out)", *tail]
    return "\n".join(lines)


def _fenced(text: str) -> str:
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; what would break its rows is escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
