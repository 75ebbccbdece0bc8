"""Hosts of a test's own: network namespaces with a name and a boot id, each joined to this machine by a cable.

Needs root. Nothing of this machine's own network is touched; a cable is a pair of virtual interfaces.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

_START = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && hostname "$2" && shift 2 && exec "$@"'


class Host:
    """Machine in a namespace of its own.

    Args:
        name: Its host name.
        number: Number of its network, 1 to 200.
        folder: Folder for what it needs.

    Attributes:
        near: Address of this machine, as the host sees it.
        network: Its network.
    """

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.near, self.network = f"10.79.{number}.1", f"10.79.{number}.0/24"
        self._space = f"at{os.getpid()}-{number}"
        self._cable = f"at{os.getpid() % 100000}n{number}"
        self._boot_id = folder / f"boot id of {name}"
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        _ip("netns", "add", self._space)
        far = f"{self._cable}f"
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "netns", self._space)
        _ip("addr", "add", f"{self.near}/24", "dev", self._cable)
        _ip("-n", self._space, "addr", "add", f"10.79.{number}.2/24", "dev", far)
        _ip("-n", self._space, "link", "set", far, "up")
        _ip("-n", self._space, "link", "set", "lo", "up")
        self.plug()

    def plug(self) -> None:
        """Connect its cable."""
        _ip("link", "set", self._cable, "up")

    def unplug(self) -> None:
        """Cut its cable: nothing is told to either side."""
        _ip("link", "set", self._cable, "down")

    def command(self, *words: str) -> tuple[str, ...]:
        """Return the command that runs another one on this host."""
        inside = ("unshare", "--uts", "--mount", "sh", "-c", _START, "sh", str(self._boot_id), self.name, *words)
        return ("ip", "netns", "exec", self._space, *inside)

    def remove(self) -> None:
        """Take it away."""
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._cable)
        _ip("netns", "del", self._space)


@contextlib.contextmanager
def hosts(names: Sequence[str]) -> Iterator[list[Host]]:
    """Make hosts for as long as a ``with`` block lasts; skips the test where that is not possible."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("no network namespaces can be made: that needs root and iproute2")
    folder = Path(tempfile.mkdtemp(prefix="autotune-hosts-"))
    made: list[Host] = []
    try:
        taken = _ip("-br", "addr")  # of a test beside this one, or of one that was killed
        free = (number for number in range(1, 200) if f"10.79.{number}." not in taken)
        for number, name in zip(free, names, strict=False):
            try:
                made.append(Host(name, number, folder))
            except subprocess.CalledProcessError as error:
                pytest.skip(f"no network namespaces can be made: {error.stderr.strip()}")
        yield made
    finally:
        for host in made:
            host.remove()
        shutil.rmtree(folder)


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
