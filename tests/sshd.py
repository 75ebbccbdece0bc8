"""ssh server of a test's own, on loopback, with keys of its own, and a client that knows it by a name."""

import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.until import until

HOST = "node-a"
"""Name by which the client knows the server."""

_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
_CLIENT = """\
Host {host}
    Port {port}
    HostName 127.0.0.1
    IdentityFile "{folder}/user_key"
    IdentitiesOnly yes
    UserKnownHostsFile "{folder}/known_hosts"
    StrictHostKeyChecking accept-new
"""


@contextlib.contextmanager
def running_sshd() -> Iterator[str]:
    """Run a server for as long as a ``with`` block lasts; skips the test where none is installed.

    Yields:
        The ``PATH`` of clients, on which ``ssh`` is one that knows the server.
    """
    server = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    client = shutil.which("ssh")
    if server is None or client is None:
        pytest.skip("no ssh server is installed")
    folder = Path(tempfile.mkdtemp(prefix="autotune-sshd-"))
    separation = Path("/run/sshd")  # sshd started by root needs it, and services make it at their start
    was_there = separation.exists() or os.geteuid() != 0
    try:
        if not was_there:
            separation.mkdir(mode=0o755)
        for name in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        (folder / "server").write_text(_SERVER.format(port=port, folder=folder))
        text = _CLIENT.format(host=HOST, port=port, folder=folder)
        (folder / "client").write_text(text)
        (folder / "bin").mkdir()
        wrapper = folder / "bin" / "ssh"
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(client)} -F {shlex.quote(str(folder / "client"))} "$@"\n')
        wrapper.chmod(0o755)
        log = folder / "log"
        process = subprocess.Popen(
            [server, "-D", "-f", str(folder / "server"), "-E", str(log)], stdin=subprocess.DEVNULL
        )
        try:
            until(lambda: _listens(port), lambda: log.read_text() if log.exists() else "sshd does not listen")
            yield f"{folder / 'bin'}:{os.environ['PATH']}"
        finally:
            process.terminate()
            process.wait(10)
    finally:
        shutil.rmtree(folder)
        if not was_there:
            separation.rmdir()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True
    return False
