r"""Screens in the pages: marked blocks of code, whose commands are run in a project of their own.

A mark is a comment on a line of its own; the next block of code is what it makes::

    <!-- project: quickstart -->          a fresh copy of docs/examples/quickstart; with "gpu" behind it on a machine
                                          with a GPU, that of the tests
    <!-- file: config.yaml -->            the text of a file of the project, as it is by then
    <!-- screen: autotune status ... -->  a command, and what it prints; the same each time
    <!-- timed "Better" "\d x" => ... --> the same of a command that measures, or looks at the machine: its screen has
                                          each of these patterns
    <!-- start: ... -->                   a command without a block, which runs until "stop"
    <!-- as in quickstart.md: ... -->     the block that a page has for that command (or file)
    <!-- tested by tests/test_x.py -->    a block that is left as it is; the test runs it

A command may be followed by ``#from TEXT``, which leaves out the lines before the first one with that text (of a screen
that moves, all but what it ends with), and by ``#exit STATUS``.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scripts.documentation.project import Project, project_of

_MARK = re.compile(
    r"<!-- (?:(timed) (.*?) => (.*)|(project|file|screen|start): (.*)|(as in|tested by) (\S+?)(?:: (.*))?|(stop))"
    " -->"
)
_WITH_BLOCK = ("file", "screen", "timed", "as in", "tested by")
_FENCE = re.compile(r"^(```+)(\w*)$")


class CannotMakeScreen(Exception):  # noqa: N818 -- it says it without the suffix
    """A mark without its block, or a command that does not end as it should."""


@dataclass(kw_only=True)
class Block:
    """Marked block, or a mark without one.

    Attributes:
        kind: What the mark says: ``screen``, ``file`` and so on.
        options: What stands between that and the colon.
        command: What stands behind the colon.
        first: Index of the line of the fence that opens its block; None for marks without one.
        last: Index of the line of the fence that closes it.
        language: Language of the block.
        text: What stands in it.
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
        """Patterns that have to be found in the screen of a command that measures."""
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
                    f"{self.path.name}: nothing follows the mark of {block.command or block.options}"
                )
        return found

    def unmarked(self) -> list[int]:
        """Return the numbers of the lines where a block of code begins that no mark makes."""
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
        """Run the commands of the page, and yield each block with the text that it should have.

        Args:
            runs: Whether to run commands; else only quoted blocks are made, and files up to the first command.

        Raises:
            CannotMakeScreen: A command did not end as it should.
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
                    assert project is not None, f"{self.path.name} has a mark before its first project"
                    yield block, _made(block, project)
        finally:
            if project is not None:
                project.close()

    def write_screens(self) -> None:
        """Run the commands, and write each block anew."""
        for block, text in list(self.made())[::-1]:
            if block.first is not None and block.last is not None:
                self.lines[block.first + 1 : block.last] = text.split("\n")
        self.path.write_text("\n".join(self.lines), encoding="utf-8")


def pages_with_screens(folder: Path) -> list[Path]:
    """Return the pages below a folder that have marks; those that quote others come last."""
    found = [path for path in sorted(folder.rglob("*.md")) if Page(path).blocks()]
    return sorted(found, key=lambda path: any(block.kind == "as in" for block in Page(path).blocks()))


def _made(block: Block, project: Project) -> str:
    """Do what a mark says, and return the text of its block; empty for one without."""
    if block.kind == "stop":
        project.stop()
        return ""
    if block.kind == "file":
        return project.shown((project.folder / block.command).read_text(encoding="utf-8").rstrip("\n"))
    command, *cuts = re.split(r" #(?=from |exit )", block.command)
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
    for pattern in block.patterns:
        if not re.search(pattern, "\n".join(lines)):
            raise CannotMakeScreen(f"{command}: there is no {pattern!r} in\n{screen}")
    return project.shown("\n".join((f"$ {command}", *lines)))


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
