"""Promises of the reader of a collector's file: whatever is in it, what is whole arrives once."""

import json

from autotune.measure.gpu.samples import (
    CapabilityOff,
    GpuFound,
    GpuLost,
    GpuState,
    ReadingCounts,
    StreamStarted,
    of_line,
    to_line,
)
from autotune.trial.gpu_collector import GpuStream

STARTED = StreamStarted(t_s=1.0, v=1, pid=47, driver="565.57.01")
FOUND = GpuFound(t_s=2.0, uuid="GPU-1", name="H100", memory_bytes=1)
LOST = GpuLost(t_s=5.0, uuid="GPU-1", name="GPU lost", why="it fell off the bus")


def write(path, *what):
    """Appends records, and other text as it is."""
    with path.open("a") as file:
        for one in what:
            file.write(one if isinstance(one, str) else to_line(one))


def records(stream):
    """Return the new records."""
    return [record for record, _ in stream.read()]


def test_records_arrive_once_and_a_torn_line_waits_for_its_end(tmp_path):
    """A line counts when it is whole; until the file is there, nothing does."""
    path = tmp_path / "gpu.jsonl"
    stream = GpuStream(path)
    assert records(stream) == []
    line = to_line(FOUND)
    write(path, STARTED, line[:20])
    assert records(stream) == [STARTED]
    assert records(stream) == []
    write(path, line[20:])
    assert records(stream) == [FOUND]
    stream.close()
    stream.close()


def test_garbage_is_left_out(tmp_path):
    """Text, torn and nested JSON, records of a later version, bytes: none of it stops the reader."""
    path = tmp_path / "gpu.jsonl"
    stream = GpuStream(path)
    rubbish = ["hello\n", to_line(FOUND)[10:], "[" * 100_000 + "\n", '{"k":"busy"}\n', "[1]\n", "null\n", "\0\n"]
    write(path, STARTED, *rubbish, json.dumps({"k": "of the future", "t_s": 3.0}) + "\n", FOUND)
    with path.open("ab") as file:
        file.write(b"\xff\xfe\n" + b"x" * (3 << 20))
    assert records(stream) == [STARTED, FOUND]
    write(path, "\n", LOST)
    assert records(stream) == [LOST]
    stream.close()


def test_what_still_holds_is_there_for_who_comes_later(tmp_path):
    """The devices, what they never tell, their newest state and loss; what a device says of a moment is not."""
    path = tmp_path / "gpu.jsonl"
    stream = GpuStream(path)
    off = CapabilityOff(t_s=3.0, uuid="GPU-1", capability="energy", why="Not Supported")
    states = [GpuState(t_s=t_s, uuid="GPU-1", memory_bytes=7) for t_s in (3.0, 4.0)]
    counts = ReadingCounts(t_s=4.0, uuid="GPU-1", tried=(), failed=())
    write(path, STARTED, FOUND, off, *states, counts, LOST)
    stream.read()
    assert [of_line(line) for line in stream.standing] == [STARTED, FOUND, off, states[1], LOST]
    back = GpuFound(t_s=9.0, uuid="GPU-1", name="H100", memory_bytes=1)
    write(path, back)
    stream.read()
    assert [of_line(line) for line in stream.standing] == [STARTED, off, states[1], back]
    stream.close()
