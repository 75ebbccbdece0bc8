"""Check of the built pages: no broken links, and no content from other sites."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class _Page(HTMLParser):
    """Anchors and links of a page, and the addresses that a browser fetches for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the anchors and addresses of a tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        if tag == "a" and values.get("href"):
            self.links.append(values["href"])
        address = values.get(_FETCHED.get(tag, ""), "")
        if address and not (tag == "link" and values.get("rel") in ("canonical", "next", "prev")):
            self.fetched.append(address)


def faults_of(site: Path) -> list[str]:
    """Return the faults of the pages of a site, one line each.

    Args:
        site: Folder of the site.
    """
    found = [path.resolve() for path in sorted(site.rglob("*.html")) if path.name != "404.html"]  # served anywhere
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in found}
    return [f"{path.relative_to(site.resolve())}: {fault}" for path in pages for fault in _faults(path, pages)]


def _faults(path: Path, pages: dict[Path, _Page]) -> Iterator[str]:
    for address in pages[path].fetched:
        if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
            yield f"fetches {address}"
        elif not address.startswith("data:") and not _target(path, address).is_file():
            yield f"needs {address}, which is not there"
    for link in pages[path].links:
        parts = urlsplit(link)
        if parts.scheme or link.startswith("//"):
            continue  # of another site
        target = _target(path, link) if parts.path else path
        if not target.is_file():
            yield f"links to {link}, which is not there"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
            yield f"links to {link}, and there is no such anchor"


def _target(page: Path, address: str) -> Path:
    target = (page.parent / unquote(urlsplit(address).path)).resolve()
    return target / "index.html" if target.is_dir() else target
