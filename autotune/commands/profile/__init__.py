"""``autotune profile``: how long the parts of a training step take."""

from autotune.commands.lazy_group import LazyGroup

command = LazyGroup(
    name="profile",
    package="autotune.commands.profile",
    table={"step": "data, copy to device, forward, loss, backward, optimizer, the rest"},
    help="How long the parts of a training step take.",
)
