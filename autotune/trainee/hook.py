"""Import hook: runs an action once the trainer has imported a framework."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Callable, Optional, cast


class Hook:
    """Meta path finder in front of all others that finds nothing itself and acts on loaded modules.

    Args:
        actions: Action for each module name; runs once, right after the module was executed.
    """

    def __init__(self, actions: Mapping[str, Callable[[], None]]) -> None:
        self._actions = dict(actions)

    def install(self) -> None:
        """Install the hook; actions of modules that are loaded already run at once."""
        sys.meta_path.insert(0, self)
        self.look()

    def look(self) -> None:
        """Run the actions of all loaded modules: a warm interpreter may provide several in one import."""
        for name in list(self._actions):
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                self._act(name)

    def _act(self, name: str) -> None:
        action = self._actions.pop(name, None)
        if action is not None:
            action()

    def find_spec(
        self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name not in self._actions:
            return None
        with contextlib.suppress(Exception):  # a finder that fails will do so again when it is asked itself
            behind = sys.meta_path.index(self) + 1
            for finder in sys.meta_path[behind:]:
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = cast(Any, _Loader(spec.loader, self, name))
                    return spec
        return None

    def loaded(self, name: str) -> None:
        """Run the actions of a module that was just executed, and of those imported with it."""
        with contextlib.suppress(Exception):
            self._act(name)
            self.look()


class _Loader:
    """Wrapper of a module's own loader that notifies the hook."""

    def __init__(self, loader: Any, hook: Hook, name: str) -> None:
        self._loader = loader
        self._hook = hook
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> Optional[ModuleType]:
        create = getattr(self._loader, "create_module", None)
        return None if create is None else create(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._hook.loaded(self._name)
