"""Each storage keeps the contract."""

import itertools
from pathlib import Path

import pytest

from autotune.study.storage.address import SaidAddress, parse_address
from autotune.study.storage.journal import open_storage
from autotune.study.storage.storage import Storage
from autotune.testing.storage_contract import StorageContract
from tests.postgresql import Server


def at(text: str, folder: Path) -> Storage:
    """Return the storage at an address, as the environment may say it."""
    return open_storage(parse_address(SaidAddress(text=text, where="", folder=folder, may_hold_password=True)), folder)


class TestJournal(StorageContract):
    """Folder of journals."""

    def opened(self, folder: Path) -> Storage:
        """See `StorageContract.opened`."""
        return at("journal:studies", folder)


class TestSqlite(StorageContract):
    """SQLite's file."""

    def opened(self, folder: Path) -> Storage:
        """See `StorageContract.opened`."""
        return at("sqlite:studies.db", folder)


@pytest.mark.services
class TestPostgresql(StorageContract):
    """Server, with a database for each test."""

    databases = itertools.count()

    @pytest.fixture(autouse=True)
    def database(self, postgresql: Server) -> None:
        """Make an empty database."""
        self.url = postgresql.new_database(f"test_{next(self.databases)}")

    def opened(self, folder: Path) -> Storage:
        """See `StorageContract.opened`."""
        return at(self.url, folder)
