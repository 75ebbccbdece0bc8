"""Opening of a storage by its address."""

from pathlib import Path

from autotune.study.storage.address import StorageAddress, StorageKind
from autotune.study.storage.journal import JournalFolder
from autotune.study.storage.storage import Storage


def open_storage(address: StorageAddress | None, journals: Path) -> Storage:
    """Return the storage at an address.

    Args:
        address: The address; None for journals on this machine.
        journals: Folder of these.
    """
    if address is None:
        return JournalFolder(journals)
    if address.kind is StorageKind.JOURNAL:
        assert address.path is not None, "a folder of journals has a path"
        return JournalFolder(address.path)
    from autotune.study.storage.database import Database  # imports SQLAlchemy, which takes its time

    return Database(address)
