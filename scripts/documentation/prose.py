"""Prose check: finds words of `prose.toml` in the docs, and in docstrings, comments and messages of the package.

Usage: ``python -m scripts.documentation.prose [FILE ...]``; without files, all that readers and users see.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_RULES = Path(__file__).with_name("prose.toml")
_READ = ("README.md", "CHANGELOG.md", "docs/*.md", "docs/reference/*.md", "autotune/**/*.py")


def main(names: list[str]) -> int:
    """Print each old word with its place and what to write; return 1 if there is one."""
    rules = [
        (re.compile(rf"\b(?:{old})\b", re.IGNORECASE), new)
        for old, new in tomllib.loads(_RULES.read_text())["words"].items()
    ]
    files = [Path(name) for name in names] or sorted(path for pattern in _READ for path in _ROOT.glob(pattern))
    found = 0
    for path in files:
        for number, text in _prose(path):
            for rule, new in rules:
                for match in rule.finditer(text):
                    found += 1
                    line = number + text.count("\n", 0, match.start())
                    print(
                        f"{path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path}:{line}: {match[0]!r}: {new}"
                    )
    print(f"{found} old words in {len(files)} files")
    return 1 if found else 0


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield pieces of text that people read, each with the number of its first line."""
    text = path.read_text(encoding="utf-8")
    yield from _of_python(text) if path.suffix == ".py" else _of_markdown(text)


def _of_markdown(text: str) -> Iterator[tuple[int, str]]:
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("<!--"):
            yield number, re.sub(r"`[^`]*`", "``", line)


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
