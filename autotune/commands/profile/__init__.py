"""``autotune profile``: how long the parts of a training step take, and its batches."""

from autotune.commands.lazy_group import LazyGroup

command = LazyGroup(
    name="profile",
    package="autotune.commands.profile",
    table={
        "pipeline": "times of batches, waits for them, their cycle",
        "step": "data, copy to device, forward, loss, backward, optimizer, the rest",
    },
    help="How long the parts of a training step take, and its batches.",
)
