"""Cache of tokens in one file, invalidated by content: of the line, and of the code that prepares it."""

import contextlib
import hashlib
import json
import logging
import os
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.tf.text.packed_tokens import pack, unpack
from autotune.tf.text.source_fingerprint import fingerprint

FORMAT_VERSION = 1

_log = logging.getLogger(__name__)


class TokenCache:
    """Tokens by line, in a text file that is written aside and moved into place.

    Its name is a fingerprint of the function and of what it depends on: other code is another file. In it, each entry
    has the hash of its line and a checksum; one that is damaged, torn or foreign is treated as missing, and the file
    is replaced. Two processes that write at the same time each leave a whole file; the later one stays.

    Args:
        folder: Folder of such caches, e.g. `autotune.tf.cache_home.cache_home`; created if missing.
        prepare_line: The function whose results these are, see `fingerprint`.
        depends_on: JSON values that its results depend on besides its source: settings, versions of libraries.
    """

    def __init__(
        self, folder: Path, prepare_line: Callable[[str], Sequence[int]], depends_on: Mapping[str, Any] | None = None
    ) -> None:
        self._whose = fingerprint(
            prepare_line, {"format": FORMAT_VERSION, "byteorder": sys.byteorder, **(depends_on or {})}
        )
        self.path = folder / self._whose[:16] / "texts.tokens"
        self._others: list[bytes] = []

    def lookup(self, lines: Iterable[str]) -> dict[str, list[int]]:
        """Return the tokens of those lines that have an entry that can be trusted."""
        wanted = {_key(line): line for line in lines}
        found: dict[str, list[int]] = {}
        self._others = []
        for entry in self._entries():
            key, checksum, packed = (*entry.split(b" "), b"", b"")[:3]
            if checksum != self._checksum(key, packed):
                continue
            if key in wanted:
                found[wanted[key]] = unpack(packed)
            else:
                self._others.append(entry)
        return found

    def store(self, tokens: Mapping[str, Sequence[int]]) -> None:
        """Write a file with these entries, and those that the last look-up did not ask for.

        A failure to do so is logged and is not an error of the training.
        """
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                file.write(self._head() + b"\n")
                file.writelines(entry + b"\n" for entry in self._others)
                file.writelines(self._write(_key(line), values) + b"\n" for line, values in tokens.items())
            aside.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink()
            _log.warning("the cache of prepared texts cannot be written, training goes on without: %s", error)

    def _entries(self) -> Iterator[bytes]:
        try:
            head, *entries = self.path.read_bytes().split(b"\n")
        except OSError:
            return
        if head == self._head():
            # Behind the last newline is nothing, or an entry that was cut off.
            yield from entries[:-1]

    def _head(self) -> bytes:
        return json.dumps({"tokens": FORMAT_VERSION, "of": self._whose}).encode()

    def _write(self, key: bytes, tokens: Sequence[int]) -> bytes:
        packed = pack(tokens)
        return b" ".join((key, self._checksum(key, packed), packed))

    def _checksum(self, key: bytes, packed: bytes) -> bytes:
        return b"%08x" % zlib.crc32(packed, zlib.crc32(key + self._whose.encode()))


def _key(line: str) -> bytes:
    # 128 bits: two lines of one key do not happen. Surrogates come from files that are no UTF-8.
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:32].encode()
