r"""Screens in the pages: marked code blocks with the output of commands, which run in a separate project.

A mark is a comment on its own line, directly above its code block::

    <!-- project: quickstart -->          start a fresh copy of docs/examples/quickstart; with "gpu" after the name, on
                                          the tests' machine with a GPU
    <!-- file: config.yaml -->            the current text of a file of the project
    <!-- screen: autotune status ... -->  a command and its output, identical each time
    <!-- timed "Better" "\d x" => ... --> a command whose output varies (times, the machine); it contains each pattern
    <!-- start: ... -->                   a command without a block, which runs until "stop"
    <!-- as in quickstart.md: ... -->     the block of another page for that command or file
    <!-- tested by tests/test_x.py -->    a block that is not generated; the test runs it

After a command, ``#from TEXT`` drops the lines before the first one with that text, ``#before TEXT`` that line and the
rest, ``#fold TEXT`` all but the first three and the last of consecutive lines with that text, and ``#exit STATUS`` sets
the expected exit status.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from scripts.documentation.project import Project, project_of

_MARK = re.compile(
    r"<!-- (?:(timed) (.*?) => (.*)|(project|file|screen|start): (.*)|(as in|tested by) (\S+?)(?:: (.*))?|(stop))"
    " -->"
)
_WITH_BLOCK = ("file", "screen", "timed", "as in", "tested by")
_FENCE = re.compile(r"^(```+)(\w*)$")


class CannotMakeScreen(Exception):  # noqa: N818 -- it says it without the suffix
    """A mark without its block, or a command with unexpected status or output."""


@dataclass(kw_only=True)
class Block:
    """Marked block, or a mark without one.

    Attributes:
        kind: Kind of the mark: ``screen``, ``file`` and so on.
        options: Text between the kind and the command.
        command: Text after the colon or ``=>``.
        first: Line index of its opening fence; None for marks without a block.
        last: Line index of its closing fence.
        language: Language of the block.
        text: Content of the block.
    """

    kind: str
    options: str
    command: str
    first: int | None = None
    last: int | None = None
    language: str = ""
    text: str = ""

    @property
    def patterns(self) -> list[str]:
        """Patterns that the output of a ``timed`` command must contain."""
        return shlex.split(self.options) if self.kind == "timed" else []


@dataclass
class Page:
    """Page with screens.

    Attributes:
        path: The file.
    """

    path: Path
    lines: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.path.read_text(encoding="utf-8").split("\n")

    def blocks(self) -> list[Block]:
        """Return the marks of the page in their order, each with its block."""
        found = []
        waiting: Block | None = None
        place = 0
        while place < len(self.lines):
            line = self.lines[place]
            if mark := _MARK.fullmatch(line.strip()):
                kind = mark[1] or mark[4] or mark[6] or mark[9]
                block = Block(kind=kind, options=mark[2] or mark[7] or "", command=mark[3] or mark[5] or mark[8] or "")
                found.append(block)
                waiting = block if block.kind in _WITH_BLOCK else waiting
            elif fence := _FENCE.match(line):
                end = self.lines.index(fence[1], place + 1)
                if waiting is not None:
                    waiting.first, waiting.last, waiting.language = place, end, fence[2]
                    waiting.text = "\n".join(self.lines[place + 1 : end])
                    waiting = None
                place = end
            place += 1
        for block in found:
            if block.first is None and block.kind in _WITH_BLOCK:
                raise CannotMakeScreen(
                    f"{self.path.name}: no code block after the mark of {block.command or block.options}"
                )
        return found

    def unmarked(self) -> list[int]:
        """Return the line numbers of code blocks without a mark."""
        marked = {block.first for block in self.blocks()}
        opened, found = "", []
        for place, line in enumerate(self.lines):
            fence = _FENCE.match(line)
            if fence and not opened:
                opened = fence[1]
                if place not in marked:
                    found.append(place + 1)
            elif fence and line == opened:
                opened = ""
        return found

    def made(self, *, runs: bool = True) -> Iterator[tuple[Block, str]]:
        """Run the commands of the page and yield each block with its expected text.

        Args:
            runs: Whether to run commands; otherwise yield only quoted blocks, and files before the first command.

        Raises:
            CannotMakeScreen: A command has an unexpected status or output.
        """
        project: Project | None = None
        is_as_copied = True
        try:
            for block in self.blocks():
                is_command = block.kind in ("screen", "timed", "start", "stop")
                is_as_copied = block.kind == "project" or (is_as_copied and not is_command)
                if not runs and (is_command or (block.kind == "file" and not is_as_copied)):
                    continue
                if block.kind == "project":
                    if project is not None:
                        project.close()
                    project = project_of(block.command if runs else block.command.removesuffix(" gpu"))
                elif block.kind == "tested by":
                    yield block, block.text
                elif block.kind == "as in":
                    yield block, _text_in(self.path.parent / block.options, block.command)
                else:
                    assert project is not None, f"{self.path.name} has a mark before its first project mark"
                    yield block, _made(block, project)
        finally:
            if project is not None:
                project.close()

    def write_screens(self) -> None:
        """Run the commands and replace the text of each block."""
        for block, text in list(self.made())[::-1]:
            if block.first is not None and block.last is not None:
                self.lines[block.first + 1 : block.last] = text.split("\n")
        self.path.write_text("\n".join(self.lines), encoding="utf-8")


def pages_with_screens(folder: Path) -> list[Path]:
    """Return the pages below a folder that have marks, pages that quote others last."""
    found = [path for path in sorted(folder.rglob("*.md")) if Page(path).blocks()]
    return sorted(found, key=lambda path: any(block.kind == "as in" for block in Page(path).blocks()))


def _made(block: Block, project: Project) -> str:
    """Execute a mark and return the text of its block; empty without one."""
    if block.kind == "stop":
        project.stop()
        return ""
    if block.kind == "file":
        return project.shown((project.folder / block.command).read_text(encoding="utf-8").rstrip("\n"))
    command, *cuts = re.split(r" #(?=from |before |fold |exit )", block.command)
    chosen = dict(cut.split(" ", 1) for cut in cuts)
    if block.kind == "start":
        project.start(command)
        return ""
    status, screen = project.run(command)
    if status != int(chosen.get("exit", 0)):
        raise CannotMakeScreen(f"{command}: ended with {status}\n{screen}")
    lines = [line.rstrip() for line in screen.rstrip("\n").split("\n")]
    if "from" in chosen:
        lines = lines[_place(lines, chosen["from"], command) :]
    if "before" in chosen:
        lines = "\n".join(lines[: _place(lines, chosen["before"], command)]).rstrip("\n").split("\n")
    if "fold" in chosen:
        runs = [list(run) for _, run in groupby(lines, key=lambda line: chosen["fold"] in line)]
        lines = [line for run in runs for line in (_folded(run) if chosen["fold"] in run[0] else run)]
    for pattern in block.patterns:
        if not re.search(pattern, "\n".join(lines)):
            raise CannotMakeScreen(f"{command}: there is no {pattern!r} in\n{screen}")
    return project.shown("\n".join((f"$ {command}", *lines)))


def _folded(lines: list[str]) -> list[str]:
    return [*lines[:3], "...", lines[-1]] if len(lines) > 5 else lines


def _place(lines: list[str], text: str, command: str) -> int:
    place = next((number for number, line in enumerate(lines) if text in line), None)
    if place is None:
        raise CannotMakeScreen(f"{command}: no line has {text!r}:\n" + "\n".join(lines))
    return place


def _text_in(path: Path, command: str) -> str:
    for block in Page(path).blocks():
        if block.first is not None and block.command.split(" #")[0] == command:
            return block.text
    raise CannotMakeScreen(f"{path.name} has no block of {command}")
