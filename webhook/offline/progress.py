"""A progress bar on a terminal for what takes long."""

import contextlib
from collections.abc import Callable, Iterator

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from webhook import terminal


@contextlib.contextmanager
def progress(name: str) -> Iterator[tuple[Callable[[int], object], Callable[[int], object]]]:
    """A bar on a terminal: what sets its length, and what moves it."""
    console = terminal.errors()
    if not console.is_terminal:
        yield (lambda _length: None), (lambda _over: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield (lambda length: bar.update(task, total=length)), (lambda over: bar.update(task, completed=over))
