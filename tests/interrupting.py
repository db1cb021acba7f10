"""A run that dies on its way, as by a kill."""

from collections.abc import Callable


class Killed(Exception):
    pass


def killed_at(least: int) -> Callable[[int], None]:
    """A ``progress`` that ends the run once so much of it is done."""

    def progress(done: int) -> None:
        if done >= least:
            raise Killed

    return progress
