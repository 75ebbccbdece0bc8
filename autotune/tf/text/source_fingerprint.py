"""Fingerprint of a function by content: its source and that of the modules it is built on."""

import ast
import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


def fingerprint(function: Callable[..., Any], depends_on: Mapping[str, Any]) -> str:
    """Return a hash that changes when the function may give something else.

    It covers the sources of the function's module and of all modules that this one imports, at whatever remove, of
    the same package or beside it; the version of Python; and what is named. Installed packages are not looked into:
    name their versions.

    Args:
        function: A function at the top of a module.
        depends_on: JSON values.

    Returns:
        64 hexadecimal digits.

    Raises:
        ValueError: The function is not at the top of a module with a source.
    """
    module, name = name_of(function)
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or not file.endswith(".py"):
        raise ValueError(f"{name} of {module} cannot be cached: there is no source that tells what it does")
    sources = {}
    for imported, path in _modules(module, Path(file)):
        sources[imported] = hashlib.sha256(path.read_bytes()).hexdigest()
    content = {
        "function": f"{module}:{name}",
        "sources": sources,
        "python": sys.version_info[:3],
        "depends_on": depends_on,
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def name_of(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and name of a function at the top of a module.

    Raises:
        ValueError: It is another thing: a lambda, a method, a function in a function.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or name is None or getattr(sys.modules.get(module), name, None) is not function:
        raise ValueError(
            f"{function!r} has no name by which it can be found again: make it a function at the top of a module"
        )
    return module, name


def _modules(module: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Yield name and file of this module and of those that it imports, as far as they belong to it."""
    package = module.partition(".")[0]
    above = path.resolve().parents
    root = above[min(module.count(".") + (path.name == "__init__.py"), len(above) - 1)]
    waiting, seen = [(module, path)], {module}
    while waiting:
        name, source = waiting.pop()
        yield name, source
        for other in _imported(name, source):
            if other in seen:
                continue
            seen.add(other)
            found = _source_of(other)
            if found is not None and (other.partition(".")[0] == package or _is_beside(found, root)):
                waiting.append((other, found))


def _is_beside(path: Path, root: Path) -> bool:
    return path.resolve().is_relative_to(root) and not {"site-packages", "dist-packages"} & set(path.parts)


def _imported(name: str, path: Path) -> Iterator[str]:
    """Yield the names of what may be modules in the imports of a source, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".")
            if node.level:  # relative: the package itself for its __init__, the package around for others
                start = parts[: len(parts) - node.level + (path.name == "__init__.py")]
                base = ".".join([*start, *([node.module] if node.module else [])])
            else:
                base = node.module or ""
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _source_of(name: str) -> Path | None:
    if name.partition(".")[0] in sys.stdlib_module_names:
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # a name in a module, not a module
        return None
    origin = spec.origin if spec else None
    return Path(origin) if origin and origin.endswith(".py") else None
