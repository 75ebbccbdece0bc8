"""``autotune queue``: searches that wait for an idle machine."""

from autotune.commands.lazy_group import LazyGroup

command = LazyGroup(
    name="queue",
    package="autotune.commands.queue",
    table={
        "add": "ask for a search: when the machine is idle, now, or at a time of the day",
        "list": "the entries, and what each of them waits for",
        "remove": "take entries out of the queue; a search that runs is ended",
        "pause": "keep entries from starting; a search that runs is ended, its trials and the rest of its budget stay",
        "resume": "let paused entries go on, and apply what is held",
        "wait": "return when entries are done",
        "log": "what the searches of an entry printed",
    },
    homes={"pause": "change", "remove": "change", "resume": "change", "log": "list", "wait": "list"},
    help="Searches that wait for their turn, and are made by the daemon (autotune daemon run).",
)
