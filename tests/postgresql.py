"""PostgreSQL server of a test's own, on loopback, with password authentication."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.until import until

PASSWORD = "p{w%d:/@s"
"""Has all that URLs, templates and formats may stumble over."""

_USER = "postgres" if os.geteuid() == 0 else None
"""The server refuses to be run by root."""


def programs() -> Path | None:
    """Return the folder of the newest server's programs; None if none is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


class Server:
    """Server with an empty database ``studies`` and a user ``tuner``.

    Args:
        bin_: Folder of its programs.
        folder: Empty folder that its user owns.
        networks: Networks that it serves besides loopback, by the address that it has in each.
    """

    def __init__(self, bin_: Path, folder: Path, networks: Mapping[str, str] | None = None) -> None:
        self._bin = bin_
        self._addresses = ",".join(("127.0.0.1", *(networks or {})))
        self._data = folder / "data"
        self._log = folder / "log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        (folder / "password").write_text(PASSWORD)
        shutil.chown(folder / "password", _USER or os.geteuid())
        arguments = ["-D", str(self._data), "-U", "tuner", "-A", "scram-sha-256", "--pwfile", str(folder / "password")]
        self._run("initdb", *arguments, "--no-sync")
        with open(self._data / "pg_hba.conf", "a") as rules:
            rules.writelines(f"host all all {network} scram-sha-256\n" for network in (networks or {}).values())
        self.start()
        self.new_database("studies")

    @property
    def url(self) -> str:
        """URL with its password."""
        return f"postgresql://tuner:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/studies"

    @property
    def bare_url(self) -> str:
        """URL without its password."""
        return f"postgresql://tuner@127.0.0.1:{self.port}/studies"

    def new_database(self, name: str) -> str:
        """Make an empty database; return its URL with the password."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tuner", name)
        return f"{self.url.rpartition('/')[0]}/{name}"

    def execute(self, statement: str) -> None:
        """Execute a statement in the database of the server itself."""
        self._run("psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", "tuner", "-d", "postgres", "-c", statement)

    def set_database(self, name: str, parameter: str) -> None:
        """Set, or RESET, a parameter of a database's sessions; those that are open are ended, as at a failover."""
        self.execute(f"ALTER DATABASE {name} {parameter}")
        self.end_connections()

    def end_connections(self) -> None:
        """Let the server end all connections."""
        self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        options = f"-p {self.port} -c listen_addresses={self._addresses} -c unix_socket_directories='' -c fsync=off"
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._log), "-w", "-t", "60", "-o", options, "start")

    def stop(self) -> None:
        """Stop the server at once, as an administrator would: connections are closed."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "fast", "stop")

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL, and wait until none is left."""
        pids = self._pids()
        self._signal(pids, signal.SIGKILL)
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "the server's processes are still there")
        (self._data / "postmaster.pid").unlink(missing_ok=True)

    def freeze(self) -> None:
        """Stop all processes of the server with SIGSTOP: connections stay open, and nothing answers."""
        self._signal(self._pids(), signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._signal(self._pids(), signal.SIGCONT)

    def _signal(self, pids: list[int], signal_number: signal.Signals) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # a child may end meanwhile
                os.kill(pid, signal_number)

    def _pids(self) -> list[int]:
        main = int((self._data / "postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        return [main, *map(int, children)]

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            user=_USER,
            cwd="/",
            env={"PATH": os.environ["PATH"], "PGPASSWORD": PASSWORD, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            stderr=subprocess.PIPE if program != "pg_ctl" else subprocess.DEVNULL,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"


class SmallDisk:
    """File system of a few megabytes, mounted by root, and in it a tablespace of a server's.

    Args:
        server: The server.
        database: Its database, to which nobody is connected; it is moved there.
        path: Empty folder to mount it on.
    """

    def __init__(self, server: Server, database: str, path: Path) -> None:
        self._path = path
        (path / "space").mkdir()
        shutil.chown(path / "space", _USER or os.geteuid())
        server.execute(f"CREATE TABLESPACE small LOCATION '{path / 'space'}'")
        server.execute(f"ALTER DATABASE {database} SET TABLESPACE small")

    def fill(self) -> None:
        """Leave no byte free."""
        with contextlib.suppress(OSError), open(self._path / "filling", "wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def empty(self) -> None:
        """Free what `fill` has taken."""
        (self._path / "filling").unlink()


@contextlib.contextmanager
def small_disk(server: Server, database: str) -> Iterator[SmallDisk]:
    """Keep a database on a small disk for as long as a ``with`` block lasts; skips the test where none can be mounted.

    The database is lost at its end.
    """
    path = Path(tempfile.mkdtemp(prefix="autotune-disk-"))
    path.chmod(0o755)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "autotune", path], check=False, stderr=-3)
    if mounted.returncode:
        path.rmdir()
        pytest.skip("no small disk can be mounted here")
    try:
        yield SmallDisk(server, database, path)
    finally:
        subprocess.run(["umount", "-l", path], check=True)
        path.rmdir()


@contextlib.contextmanager
def running_server(networks: Mapping[str, str] | None = None) -> Iterator[Server]:
    """Run a server for as long as a ``with`` block lasts; skips the test where PostgreSQL is not installed.

    Args:
        networks: See `Server`.
    """
    bin_ = programs()
    if bin_ is None:
        pytest.skip("PostgreSQL is not installed")
    folder = Path(tempfile.mkdtemp(prefix="autotune-postgresql-"))
    shutil.chown(folder, _USER or os.geteuid())
    server = Server(bin_, folder, networks)
    try:
        yield server
    finally:
        with contextlib.suppress(OSError, ValueError):
            server.thaw()
        server.kill()
        shutil.rmtree(folder)
