"""The progress of long work: a bar on a terminal, a line now and then elsewhere."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from console import terminal

EACH: Final = 10_000
"""Off a terminal there is a line for each so many; what is shorter is done soon."""


@contextlib.contextmanager
def progress(name: str) -> Iterator[tuple[Callable[[int], object], Callable[[int], object]]]:
    """Show it on standard error: what sets the length, and what says how many are done."""
    console = terminal.errors()
    if not console.is_terminal:
        lines = _Lines(name, console)
        yield lines.begin, lines.tell
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield (lambda length: bar.update(task, total=length)), (lambda over: bar.update(task, completed=over))


class _Lines:
    """Writes a line each time that `EACH` more are done."""

    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._console = console
        self._length = 0
        self._told = 0

    def begin(self, length: int) -> None:
        self._length = length

    def tell(self, over: int) -> None:
        if over - self._told >= EACH:
            self._told = over - over % EACH
            self._console.print(f"{self._name}: {over:,} of {self._length:,}", soft_wrap=True)
