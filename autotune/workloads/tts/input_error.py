"""Error of the trainer's inputs, raised before training starts."""


class InputError(Exception):
    """Unusable config or data: the fault, its place, and the remedy."""

    def __init__(self, message: str, *, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {message}\n{remedy}")
