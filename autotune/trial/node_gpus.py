"""GPUs of the other nodes of a training: a rank there starts a collector."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.measure.gpu.records import GpuFound, Record, of_line
from autotune.measure.gpu.timeline import GpuTimeline, usage_of_trial
from autotune.measure.probe import GpuUsage, TrialGpus
from autotune.records import TraineeEvent
from autotune.trial.step_files import LineTail

_LINE_BYTES = 1 << 18
_READ_BYTES = 1 << 26  # at once; an hour of eight GPUs


class NodeGpus:
    """GPUs of other nodes during one trial, from ``gpus.<node>`` in its folder (autotune/trainee/node_gpus.py)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[str, _Node] = {}

    def watch(self, events: Sequence[TraineeEvent]) -> None:
        """Take the trial's new events, of which those of ranks name their node."""
        for event in events:
            if event.offset_s is not None and event.rank is not None:
                name = re.sub(r"[^a-zA-Z0-9_.-]", "_", event.rank.node)
                if name not in self._nodes:
                    tail = LineTail(self._folder / f"gpus.{name}", longest_bytes=_LINE_BYTES)
                    self._nodes[name] = _Node(tail=tail, offset_s=event.offset_s)
                self._nodes[name].pids.add(event.pid)

    def between(self, t0_s: float, t1_s: float, *, started_s: float) -> list[GpuUsage]:
        """Return the usage of each node over a past stretch of our monotonic time; none of nodes without readings."""
        usages = (node.usage(t0_s, t1_s, started_s) for node in self._nodes.values())
        return [usage for usage in usages if usage is not None]


@dataclass(kw_only=True)
class _Node:
    """Collector of one node.

    Attributes:
        offset_s: Our monotonic time less the node's.
        pids: Its ranks.
    """

    tail: LineTail
    offset_s: float
    pids: set[int] = field(default_factory=set)
    records: list[Record] = field(default_factory=list)
    timeline: GpuTimeline | None = None

    def usage(self, t0_s: float, t1_s: float, started_s: float) -> GpuUsage | None:
        self._read()
        if self.timeline is None:
            return None
        own = [t_s - self.offset_s for t_s in (t0_s, t1_s, started_s)]
        usage = self.timeline.between(own[0], own[1], own_pids=self.pids, started_s=own[2])
        return usage_of_trial(usage, TrialGpus())

    def _read(self) -> None:
        """Read new records, and make the timeline of all again if there are any: they may be of further GPUs."""
        new = [record for line in self.tail.read(_READ_BYTES) if (record := of_line(line)) is not None]
        self.records += new
        uuids = dict.fromkeys(record.uuid for record in self.records if isinstance(record, GpuFound)) if new else ()
        if uuids:
            self.timeline = GpuTimeline(tuple(uuids), since_s=0.0)
            for record in self.records:
                self.timeline.add(record)
