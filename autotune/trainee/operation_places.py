"""Devices that the operations of a compiled function of TensorFlow run on."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any, Callable

_PLUMBING = frozenset(
    (
        "_Arg",
        "_DeviceArg",
        "_DeviceRetval",
        "_HostRecv",
        "_HostSend",
        "_Recv",
        "_Retval",
        "_Send",
        "Case",
        "Const",
        "Identity",
        "IdentityN",
        "If",
        "NoOp",
        "PartitionedCall",
        "Placeholder",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
    )
)
"""Operations that hold others, or hand results on; they compute nothing."""


def placed_operations(function: Callable[[Any], object], batch: Any) -> list[dict[str, Any]]:
    """Call a function that was never called, and return a row for each device that some of its operations run on.

    These are the operations of the graph as it is executed: placed, optimized and divided among the devices. An
    operation that XLA has compiled others into counts as one.
    """
    context = import_module("tensorflow.python.eager.context").context()
    context.enable_graph_collection()
    try:
        function(batch)
        metadata = context.export_run_metadata()
    finally:
        context.disable_graph_collection()
    operations: dict[str, Counter[str]] = {}
    for graphs in metadata.function_graphs:
        for graph in graphs.partition_graphs:
            for node in graph.node:
                if node.op not in _PLUMBING:
                    operations.setdefault(node.device.rpartition("device:")[2], Counter())[node.op] += 1
    return [
        {
            "what": "operations",
            "device": device,
            "count": sum(counts.values()),
            "names": [name for name, _ in counts.most_common(5)],
        }
        for device, counts in sorted(operations.items())
    ]
