"""Fingerprint of what is to be searched, taken from the disk."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from autotune.daemon.queue.entry import Fingerprint
from autotune.files import file_sha256
from autotune.process.git_commit import git_commit

_MOST_BYTES = 16 << 20  # of a config; what is longer counts by its beginning


def fingerprint(configs: Sequence[Path]) -> Fingerprint:
    """Return the fingerprint of the files of a config, at least one, and of the git project that holds the first."""
    return Fingerprint(config_sha256=config_sha256(configs), git_commit=git_commit(configs[0].parent))


def config_sha256(configs: Sequence[Path]) -> str | None:
    """Return the hash of the bytes of a config's files; None if one of them cannot be read."""
    digest = hashlib.sha256()
    for config in configs:
        content = file_sha256(config, _MOST_BYTES)
        if content is None:
            return None
        digest.update(bytes.fromhex(content))
    return digest.hexdigest()
