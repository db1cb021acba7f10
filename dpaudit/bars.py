"""Progress on a terminal: how far, how fast, and how long to go."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dpaudit import hosts

if TYPE_CHECKING:
    from rich.progress import Progress


@contextmanager
def bars_on_terminal() -> Iterator["Progress | None"]:
    """Bars on standard error where that is the first process's terminal; None, and silence, elsewhere."""
    if not (sys.stderr.isatty() and hosts.first()):
        yield None
        return
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Steps a second, those that an earlier run has made left out."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s", style="progress.data.speed")

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TaskProgressColumn(),
        Rate(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        yield bars
