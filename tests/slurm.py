"""Slurm cluster of a test's own: a controller and nodes as processes on one host, with a config and keys of their own.

Nothing of the system is touched: no service, no file outside of a temporary folder.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.until import DEADLINE_S, until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
_CONFIG = """\
ClusterName=autotune
SlurmctldHost=localhost
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=10
MinJobAge=300
SlurmdTimeout=300
SwitchType=switch/none
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""


def missing() -> str | None:
    """Return the name of a program that is not installed; None if all are."""
    return next((name for name in _PROGRAMS if _program(name) is None), None)


class Cluster:
    """Running cluster.

    Args:
        folder: Empty folder.
        nodes: Number of its nodes, each with all cores of this host.

    Attributes:
        environment: Variables that its commands need.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.names = tuple(f"node{number}" for number in range(1, nodes + 1))
        ports = _free_ports(nodes + 1)
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        (folder / "state").mkdir()
        for name in self.names:
            (folder / f"spool.{name}").mkdir()
        rows = [
            f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={os.cpu_count()} State=UNKNOWN"
            for name, port in zip(self.names, ports[1:], strict=True)
        ]
        user = pwd.getpwuid(os.geteuid()).pw_name
        text = _CONFIG.format(port=ports[0], user=user, folder=folder, nodes="\n".join(rows))
        (folder / "slurm.conf").write_text(text)
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={_no_cgroups()}\n")
        self.environment: Mapping[str, str] = {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start all its processes, and wait until the nodes take jobs."""
        place = self._folder
        self._start("munged", "--foreground", "--force", "--key-file", f"{place}/munge.key", "--socket",
                    f"{place}/munge.socket", "--pid-file", f"{place}/munge.pid", "--log-file", f"{place}/munge.log",
                    "--seed-file", f"{place}/munge.seed")  # fmt: skip
        until(lambda: (place / "munge.socket").exists(), self.logs)
        self._start("slurmctld", "-D", "-f", f"{place}/slurm.conf")
        for name in self.names:
            self._start("slurmd", "-D", "-N", name, "-f", f"{place}/slurm.conf")
        idle = [f"{name} idle" for name in self.names]
        until(lambda: self.run("sinfo", "-h", "-N", "-o", "%N %T").split("\n")[:-1] == idle, self.logs)

    def run(self, program: str, *arguments: str) -> str:
        """Run one of its commands; return what it printed, also where it failed."""
        done = subprocess.run(
            [program, *arguments],
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return done.stdout

    def logs(self) -> str:
        """Return the ends of its logs, for messages."""
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self._folder.glob("*.log")))

    def stop(self) -> None:
        """End its processes, the last one first, and those of jobs that are left."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()

    def _start(self, program: str, *arguments: str) -> None:
        path = _program(program)
        assert path is not None, program
        with open(self._folder / f"{program}.{len(self._processes)}.out.log", "wb") as output:
            self._processes.append(
                subprocess.Popen(
                    [path, *arguments],
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )


@contextlib.contextmanager
def running_cluster(nodes: int = 2) -> Iterator[Cluster]:
    """Run a cluster for as long as a ``with`` block lasts; skips the test where Slurm is not installed."""
    if name := missing():
        pytest.skip(f"Slurm is not installed: there is no {name}")
    folder = Path(tempfile.mkdtemp(prefix="autotune-slurm-"))  # munge refuses a socket that others could replace
    cluster = Cluster(folder, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _no_cgroups() -> str:
    """Return the plugin that leaves cgroups alone; before version 23.02 that is the one that nothing here asks."""
    slurmd = _program("slurmd")
    assert slurmd is not None, "it is installed"
    said = subprocess.run([slurmd, "-V"], capture_output=True, text=True, check=True).stdout
    version = tuple(map(int, re.findall(r"\d+", said)[:2]))
    return "disabled" if version >= (23, 2) else "cgroup/v1"


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_:
        sockets = [open_.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
