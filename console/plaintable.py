"""Tables without lines, as commands write their findings."""

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from console.terminal import printable


def plain_table(*headers: str, whole: bool = False) -> Table:
    """Make a table of columns; longer text goes on in the next line. With `whole`, only the last column is wrapped."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    *others, last = headers
    for header in others:
        made.add_column(header, overflow="fold", no_wrap=whole)
    made.add_column(last, overflow="fold")
    return made


def add_row(table: Table, *cells: str | Iterable[str]) -> None:
    """Add a row; a cell is one text, or several lines. Unprintable characters are replaced."""
    texts = ([cell] if isinstance(cell, str) else list(cell) for cell in cells)
    table.add_row(*(Text("\n".join(printable(line) for line in lines) or "-") for lines in texts))
