"""Command behind ``scripts/docs``; ``python -m scripts.documentation --help`` lists its options."""

import argparse
import logging
import sys
from pathlib import Path

from scripts.documentation.built import faults_of
from scripts.documentation.reference import DOCS, write_pages
from scripts.documentation.screens import Page, pages_with_screens

ROOT = DOCS.parent


def main() -> int:
    """Build the site, or regenerate its reference pages or screens; return the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/docs", description="Build the documentation site.")
    parser.add_argument("--reference", action="store_true", help="regenerate docs/reference from the code")
    parser.add_argument("--screens", nargs="*", metavar="PAGE", help="run the commands of pages and write their output")
    parser.add_argument("--site", type=Path, default=ROOT / "build" / "site", help="output folder (build/site)")
    arguments = parser.parse_args()
    if arguments.reference:
        write_pages()
        return 0
    if arguments.screens is not None:
        for path in [Path(name) for name in arguments.screens] or pages_with_screens(DOCS):
            Page(path).write_screens()
        return 0
    return build(arguments.site)


def build(site: Path) -> int:
    """Build the site; return 0 if there is no warning and no broken link.

    Args:
        site: Output folder.
    """
    from mkdocs.commands.build import build as build_site
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        build_site(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site), strict=True))
    except Abort as stopped:
        print(stopped, file=sys.stderr)
        return 1
    faults = faults_of(site)
    for fault in faults:
        print(fault, file=sys.stderr)
    pages = len(list(site.rglob("*.html")))
    print(f"{pages} pages in {site.relative_to(ROOT) if site.is_relative_to(ROOT) else site}; {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
