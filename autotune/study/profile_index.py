"""Index of profiles: where studies leave theirs, and where they find those of others.

Of journals it is a file beside them, since each journal is a file of its own and 200 are too many to be read at each
start. A database answers for all its studies at once: there the profile is an attribute of the study, which a journal
has as well. The file is a cache and can be deleted; a study's line comes back with its next search.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from autotune.errors import StudyError
from autotune.files import read_beginning, replace_durably
from autotune.study.profiles import PROFILE, Profile, attribute_of, profile_of_attribute
from autotune.study.storage.file_lock import FileLock
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.storage import Storage
from autotune.study.storage_thread import StorageThread

INDEX = "profiles.jsonl"
"""Name of the file beside journals."""

_MOST_PROFILES = 300
_MOST_BYTES = 4 << 20
_PATIENCE_S = 5.0  # for a server that does not answer: a warm start is not worth more
_LOCK_S = 1.0


class ProfileIndex:
    """Profiles that a study of this storage can see.

    Args:
        storage: The storage of the study.
        journals: Folder of journals of this machine, whose index is read as well.
    """

    def __init__(self, storage: Storage, journals: Path) -> None:
        self._storage = storage
        self._journals = journals

    def profiles(self) -> list[Profile]:
        """Return all profiles, one for each study; none of a place that cannot be read."""
        found = {profile.study: profile for profile in _read(self._journals / INDEX)}
        own = self._own_index()
        if own is None:
            found.update({profile.study: profile for profile in self._in_database()})
        elif own.parent != self._journals:
            found.update({profile.study: profile for profile in _read(own)})
        return list(found.values())

    def keep(self, profile: Profile) -> None:
        """Put a profile into the index of a folder of journals, in place of an earlier one of its study.

        Raises:
            OSError: It cannot be written.
        """
        path = self._own_index()
        if path is None:
            return
        with FileLock(path.with_name(f".{INDEX}.lock"), timeout_s=_LOCK_S):
            others = [other for other in _read(path) if other.study != profile.study]
            kept = [*others, profile][-_MOST_PROFILES:]
            lines = [json.dumps(attribute_of(one), sort_keys=True) + "\n" for one in kept]
            replace_durably(path, "".join(lines).encode())

    def _own_index(self) -> Path | None:
        storage = self._storage
        return storage.path("index").with_name(INDEX) if isinstance(storage, JournalFolder) else None

    def _in_database(self) -> Sequence[Profile]:
        thread = StorageThread("profiles", lambda: False, _PATIENCE_S)
        with suppress(TimeoutError, StudyError):
            return _of(thread.call(partial(self._storage.attributes, PROFILE), _PATIENCE_S))
        return []


def _read(path: Path) -> list[Profile]:
    """Return the profiles of an index, oldest first; lines that are none are left out."""
    attributes = []
    for line in read_beginning(path, _MOST_BYTES).split(b"\n"):
        with suppress(ValueError, RecursionError):
            attributes.append(json.loads(line))
    return _of(attributes)


def _of(attributes: Iterable[object]) -> list[Profile]:
    read = (profile_of_attribute(attribute) for attribute in attributes)
    return [profile for profile in read if profile is not None][-_MOST_PROFILES:]
