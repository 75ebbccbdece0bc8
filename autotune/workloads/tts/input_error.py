"""What stops the trainer before it starts."""


class InputError(Exception):
    """The config or the data cannot be used: what is wrong, where, and what to do about it."""

    def __init__(self, message: str, *, where: str, remedy: str) -> None:
        super().__init__(f"{where}: {message}\n{remedy}")
