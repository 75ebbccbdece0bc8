"""``autotune daemon``: the service that tunes while GPUs are idle, and watches what trains."""

from autotune.commands.lazy_group import LazyGroup

command = LazyGroup(
    name="daemon",
    package="autotune.commands.daemon",
    table={
        "run": "run the daemon in this terminal",
        "install": "write a systemd unit that starts the daemon at your login",
        "uninstall": "take that unit away",
        "status": "whether the daemon runs, how it is hosted, and what it does",
        "url": "an address of the page of a daemon that runs with --web",
        "explain": "what an advice is based on",
    },
    homes={"install": "service", "uninstall": "service", "url": "status", "explain": "status"},
    help="Tunes configs while the machine is idle, watches trainings, and says what to do.",
)
