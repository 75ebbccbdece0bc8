"""Build hook: a wheel brings its manual page, made from the commands themselves."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManualPage(BuildHookInterface[Any]):
    """Writes the manual page beside what is built; an installation for development has none."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See hatchling's interface."""
        if version == "editable":
            return
        sys.path.insert(0, self.root)
        from scripts.documentation.manual import manual_page

        page = Path(self.root, "build", "man", "autotune.1")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(manual_page(self.metadata.version), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/autotune.1"
