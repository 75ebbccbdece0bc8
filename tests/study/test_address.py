"""Addresses of storages: what is taken, what is refused and why, and that no password is ever shown."""

from pathlib import Path

import pytest

from autotune.errors import ConfigError
from autotune.study.storage.address import GivenAddress, StorageKind, address_in_environment, address_of, parse_address


def said(text: str, *, private: bool = True) -> GivenAddress:
    """Return an address as the environment, or as the command line, says it."""
    return GivenAddress(text=text, where="--storage", folder=Path("/here"), may_hold_password=private)


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        ("journal:team", StorageKind.JOURNAL, "journal:/here/team"),
        ("journal:/mnt/team", StorageKind.JOURNAL, "journal:/mnt/team"),
        ("journal:///mnt/team", StorageKind.JOURNAL, "journal:/mnt/team"),
        ("sqlite:studies.db", StorageKind.SQLITE, "sqlite:/here/studies.db"),
        ("sqlite:///studies.db", StorageKind.SQLITE, "sqlite:/here/studies.db"),
        ("sqlite:////mnt/studies.db", StorageKind.SQLITE, "sqlite:/mnt/studies.db"),
        (" postgres://me@host:5433/name ", StorageKind.POSTGRESQL, "postgresql://me@host:5433/name"),
        (
            "postgresql+psycopg://host/name?sslmode=require",
            StorageKind.POSTGRESQL,
            "postgresql://host/name?sslmode=require",
        ),
        ("postgresql:///name", StorageKind.POSTGRESQL, "postgresql:///name"),
    ],
)
def test_what_is_taken(text: str, kind: StorageKind, shown: str) -> None:
    """Relative paths start from where it was said; the URL forms of SQLAlchemy mean what they mean there."""
    address = parse_address(said(text))
    assert (address.kind, address.shown, dict(address.secrets)) == (kind, shown, {})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("redis://host", "unpickles"),
        ("mysql+pymysql://me:secret@host/name", "mysql: is not supported"),
        ("https://host/grpc", "https: is not supported"),
        ("postgresql+psycopg2://host/name", "does not support the driver psycopg2"),
        ("postgresql://me:a@secret/word@127.0.0.1:5432/name", "not a PostgreSQL URL"),
        ("postgresql://me:a@host/name?user=secret@x", "not a PostgreSQL URL"),
        ("postgresql://:a@secret/b@host/name", "not a PostgreSQL URL"),
        ("postgresql://me:secret@host/name%00", "not a PostgreSQL URL"),
        ("postgresql://m\udcff:secret@host/name", "not a PostgreSQL URL"),
        ("file+x:address", "does not support the driver x"),
        ("sqlite::memory:", "file path"),
        ("sqlite:a.db?mode=ro", "file path"),
        ("journal:", "path of this address is missing"),
        ("journal:~nobody-of-this-name/x", "home folder"),
        ("studies.db", "'studies.db' is not a storage address"),
        ("me/secret@host", "^[^']*is not a storage address"),
        ("s3://bucket", "s3: is not supported"),
    ],
)
def test_what_is_refused(text: str, why: str) -> None:
    """With the reason and what to write instead; a password in it is not repeated."""
    with pytest.raises(ConfigError, match=why) as caught:
        parse_address(said(text))
    assert caught.value.remedy
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("typed", "password"),
    [
        ("p%40ss", "p@ss"),
        ("p{w%d", "p{w%d"),
        ("{SCHEMA_VERSION}", "{SCHEMA_VERSION}"),
        ("100%25", "100%"),
        ("a%2Fb%3Ac", "a/b:c"),
    ],
)
@pytest.mark.parametrize("url", ["postgresql://me:{}@host/name", "postgresql://me@host/name?password={}"])
def test_a_password_is_kept_and_never_shown(typed: str, password: str, url: str) -> None:
    """It is decoded once, and is in nothing that may be printed, logged or kept."""
    address = parse_address(said(url.format(typed)))
    assert address.secrets["password"] == password
    for shown in (repr(address), str(address), address.shown, address.url, repr(said(url))):
        assert password not in shown
        assert typed not in shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@host/name",
        "postgresql://host/name?sslpassword=secret",
        "postgresql://host/name?Passwd=secret",
        "postgresql://host/name?password=secret&password=secret",
    ],
)
def test_a_password_where_others_can_read_it_is_refused(url: str) -> None:
    """On the command line and in the section, with the way out."""
    with pytest.raises(ConfigError, match="contains a password") as caught:
        parse_address(said(url, private=False))
    assert "AUTOTUNE_STORAGE" in str(caught.value.remedy)
    assert "secret" not in str(caught.value)


def test_a_file_of_its_owner_may_hold_it(tmp_path: Path) -> None:
    """Named by `file:`; one that others can read is refused, and so is what is no address."""
    path = tmp_path / "storage"
    path.write_text("postgresql://me:secret@host/name\n")
    path.chmod(0o600)
    address = parse_address(said(f"file:{path}", private=False))
    assert address.secrets == {"password": "secret"}
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="other users can access"):
        parse_address(said(f"file:{path}"))
    path.chmod(0o600)
    path.write_text(f"file:{path}")
    with pytest.raises(ConfigError, match="no storage address"):
        parse_address(said(f"file:{path}"))
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ConfigError, match="cannot read the storage address"):
        parse_address(said(f"file:{tmp_path / 'link'}"))


def test_the_first_that_says_something_counts(tmp_path: Path) -> None:
    """What was typed, then the environment, then the section; an empty variable says nothing."""
    assert address_in_environment({"AUTOTUNE_STORAGE": ""}, tmp_path) is None
    environment = address_in_environment({"AUTOTUNE_STORAGE": "sqlite:b.db"}, tmp_path)
    address = address_of(None, environment, said("sqlite:c.db"))
    assert address.path == tmp_path / "b.db"
    assert address_of(None, None) is None


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("studies", "Write journal:FOLDER"),
        ("postgres+x:", "Write postgresql: without a driver"),
        ("postgresq://me@host/name", "postgresql://user@host/name"),
    ],
)
def test_the_forms_are_named(text: str, remedy: str) -> None:
    """For a bare file name, a driver, a kind with a typing error."""
    with pytest.raises(ConfigError) as caught:
        parse_address(said(text))
    assert remedy in str(caught.value.remedy)
