"""Promises of the pages: what they let a reader type exists, and their screens are what the commands print.

The screens are made again by ``scripts/docs --screens``, before a release: here they are compared in shape.
"""

import ast
import re
import shlex
import shutil
from collections.abc import Iterable
from pathlib import Path

import click
import pytest
import yaml

from autotune.cli import command_line
from autotune.config.document import Document
from autotune.config.schema import SectionSource, parse_section
from scripts.documentation.reference import DOCS
from scripts.documentation.screens import Block, CannotMakeScreen, Page, pages_with_screens
from tests.command_line import CommandLine

ROOT = DOCS.parent
PAGES = pages_with_screens(DOCS)
TYPED_IN = [path for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md"))) if path.parent.name != "reference"]

TABLE = r"knob +today +candidates +effect on training\n"
DIFF = (r"\n--- ", r"\n\+\+\+ .*\n@@ ", r"\n[+-]")
SHAPES = {
    "init": (
        r"knob +\S+ +candidates +effect on", r"\ncommand: ", *DIFF,
        r"\n\+autotune:  # for autotune", r"\n\+  # knobs:\n", r'\n\+  command: "', r"\nWritten to ",
        r"\nNext:  autotune search --config \S+ --budget",
    ),
    "search --dry-run": (TABLE, r"\ncommand: ", r"\n\d+ combinations; budget \d+m, ", r"\nscore: "),
    "search": (
        r"\n(same training|changes the training): \S+ \S+ \(", r"\ncommand: ", r"\n\d+ combinations; budget \d+m\S*, ",
        r"\[ .*s\] study [\w-]+; score: ", r"\[ .*s\] trial \d+ +baseline +\d+/s +",
        "s] exploring: ", r"\[ .*s\] trial \d+ +explore +\d+/s +\d.\d\dx +", "s] confirming: ",
        r"\[ .*s\] trial \d+ +pair 1 ", r"\n\nBetter: [\d.]+x \(95 % interval [\d.]+-[\d.]+\) as fast as today's",
        r"\nConfirmed by \d+ interleaved pairs with today's config", r"\nchange +today +best +gain +effect on",
        r"\nmeasured +today +best\n", r"\nsamples +\d+/s +\d+/s", r"\nGPU utilization ", r"\nstep-time variation ",
        "\nMore: autotune status --config ", r"\nThe search took \d\S+; it pays off for trainings ",
        r"\n\nNext:  autotune apply --config ",
    ),
    "apply": (*DIFF, r"\n\nWritten to "),
    "revert": (*DIFF, r"\n\nReverted .*; backup: "),
}  # fmt: skip
"""What the screens of a command show, in this order."""


def _names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _missing(patterns: Iterable[str], text: str) -> list[str]:
    """Return the first of some patterns that does not follow on the others, if there is one."""
    text = "\n".join(("", *map(str.rstrip, text.split("\n"))))
    for pattern in patterns:
        found = re.search(pattern, text)
        if found is None:
            return [pattern]
        text = text[found.end() - 1 :]
    return []


def _verb(block: Block) -> str:
    """Return the command of a screen that shows all that it printed; with the option that changes what that is."""
    words = block.command.split(" -- ")[0].split()
    if block.kind not in ("screen", "timed") or words[0] != "autotune" or re.search(r" #(?!fold)", block.command):
        return ""
    return " ".join(words[1:2] + [word for word in words if word == "--dry-run"])


def test_there_are_pages_with_screens() -> None:
    """The guides are among them, with each of the commands whose shape is known."""
    assert {"quickstart.md", "oscillation.md", "your-trainer.md"} <= {path.name for path in PAGES}
    assert SHAPES.keys() <= {_verb(block) for path in PAGES for block in Page(path).blocks()}


@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_every_block_is_made_or_tested(path: Path) -> None:
    """No block of code stands without its mark; a test that is named is there."""
    assert Page(path).unmarked() == []
    for block in Page(path).blocks():
        if block.kind == "tested by":
            file, _, test = block.options.partition("::")
            assert not test or f"def {test}(" in (ROOT / file).read_text()
            assert (ROOT / file).exists()


@pytest.mark.parametrize("path", TYPED_IN, ids=_names)
def test_what_a_page_lets_its_reader_type_exists(path: Path) -> None:
    """Commands, options and their values, without running anything."""
    for block in re.findall(r"^```.*?\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for line in re.findall(r"^(?:\$ )?(autotune [a-z].*)", block, re.MULTILINE):
            words = [word.strip("[]") for word in shlex.split(line, comments=True)]
            for command in " ".join(map(shlex.quote, words)).replace("'|'", "&&").replace("'&&'", "&&").split(" && "):
                if command.startswith("autotune "):
                    _parse(shlex.split(command)[1:])


def _parse(words: list[str]) -> None:
    command: click.Command = command_line
    context = command.make_context("autotune", words)
    while isinstance(command, click.Group):
        name, found, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


@pytest.mark.parametrize("words", [["nothing"], ["status", "--no-such-option"], ["search", "--budget", "soon"]])
def test_what_cannot_be_typed_is_noticed(words: list[str]) -> None:
    """A command, an option and a value that are none."""
    with pytest.raises(click.UsageError):
        _parse(words)


@pytest.mark.parametrize("path", PAGES, ids=_names)
def test_screens_show_what_their_commands_print(path: Path) -> None:
    """The patterns of their marks, and the shape of the command's output."""
    for block in Page(path).blocks():
        for pattern in block.patterns:
            assert re.search(pattern, block.text), (block.command, pattern)
        assert _missing(SHAPES.get(_verb(block), ()), block.text) == [], block.command


def test_commands_print_what_the_screens_show(recorded: CommandLine, simulated: CommandLine) -> None:
    """A search, its answer applied and reverted, and a config that gets its section."""
    config = simulated.folder / "config.yaml"
    config.write_text(config.read_text().partition("autotune:")[0])
    done = {
        "init": simulated("init", "--config", "config.yaml", "--yes", "--", "python", "train.py", "config.yaml"),
        "search": simulated.search("--same-training", "--no-apply", budget="5m"),
        "search --dry-run": recorded("search", "--config", "config.yaml", "--dry-run"),
        "apply": recorded("apply", "--config", "config.yaml"),
        "revert": recorded("revert", "--config", "config.yaml"),
    }
    for verb, shape in SHAPES.items():
        assert _missing(shape, _in_the_order_of_time(done[verb].stdout, done[verb].stderr)) == [], verb


def _in_the_order_of_time(stdout: str, stderr: str) -> str:
    """Return what a terminal shows: what comes before the progress, that, and a diff or an answer."""
    plan, gap, end = stdout.rpartition("\n\n--- ")
    return f"{plan}\n{stderr}{gap}{end}"


def test_files_and_quoted_blocks_are_those_of_the_examples_and_pages() -> None:
    """Nothing is run for them; a screen that no clock and no machine changes is printed in this process."""
    for path in PAGES:
        for block, text in Page(path).made(runs=False):
            assert block.text == text, (path.name, block.command)


def test_the_screen_that_always_stays_the_same_is_what_the_command_prints(tmp_path: Path) -> None:
    """A config without a section is refused with the words of the page."""
    (block,) = (block for path in PAGES for block in Page(path).blocks() if block.kind == "screen")
    command, _, status = block.command.partition(" #exit ")
    shutil.copytree(DOCS / "examples" / "quickstart", tmp_path, dirs_exist_ok=True)
    done = CommandLine(tmp_path)(*shlex.split(command)[1:])
    assert (f"{done.returncode}", f"$ {command}\n{done.stdout}{done.stderr}") == (status, f"{block.text}\n")


def test_blocks_that_are_not_run_can_be() -> None:
    """YAML holds a section that is accepted, and Python parses."""
    blocks = [block for path in PAGES for block in Page(path).blocks() if block.kind == "tested by"]
    assert {block.language for block in blocks} == {"yaml", "python", "sh"}
    for block in blocks:
        if block.language == "yaml":
            assert parse_section(SectionSource(Document(block.text, name="page"), ("autotune",))).command
            yaml.safe_load(block.text)
        elif block.language == "python":
            ast.parse(block.text)


def test_a_command_that_does_not_print_what_it_should_is_noticed(tmp_path: Path) -> None:
    """So is one that ends with another status than the page says."""
    page = tmp_path / "page.md"
    for mark in ('timed "nothing like it" => echo hello', "screen: false"):
        page.write_text(f"<!-- project: quickstart -->\n<!-- {mark} -->\n```text\n```\n")
        with pytest.raises(CannotMakeScreen):
            list(Page(page).made())


def test_screens_are_written_into_their_blocks(tmp_path: Path) -> None:
    """Blocks are replaced in place, the rest of the page stays, and a cut is a cut."""
    page = tmp_path / "page.md"
    mark = r"<!-- screen: printf 'a\nb\nc\n\nd\ne\n' #from b #before d -->"
    page.write_text(f"# A\n\n<!-- project: quickstart -->\n{mark}\n```text\nold\n```\n\nEnd\n")
    Page(page).write_screens()
    mark = r"<!-- screen: printf 'a\nb1\nb2\nb3\nb4\nb5\nb6\nc\n' #fold b -->"
    folded = tmp_path / "folded.md"
    folded.write_text(f"<!-- project: quickstart -->\n{mark}\n```text\n```\n")
    Page(folded).write_screens()
    assert folded.read_text().endswith("\na\nb1\nb2\nb3\n...\nb6\nc\n```\n")
    assert page.read_text().endswith("```text\n$ printf 'a\\nb\\nc\\n\\nd\\ne\\n'\nb\nc\n```\n\nEnd\n")
