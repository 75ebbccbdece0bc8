"""``autotune study``: studies that are kept, and that travel between machines."""

from autotune.commands.lazy_group import LazyGroup

command = LazyGroup(
    name="study",
    package="autotune.commands.study",
    table={
        "list": "the studies of a storage",
        "show": "one study: its machines, searches and trials, and who works on it",
        "export": "write a study into a file that another machine imports",
        "import": "add the trials of exported files to a study",
        "repair": "mend what can be mended in a study, and say what cannot be read",
        "delete": "move a study to the trash",
    },
    homes={"show": "list", "export": "transfer", "import": "transfer", "repair": "delete"},
    help="Studies that are kept in a storage, and that travel between machines.",
)
