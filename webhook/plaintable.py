"""Tables without lines, as commands write their findings."""

from rich.table import Table


def plain_table(*headers: str) -> Table:
    """Make a table of columns; longer text goes on in the next line."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for header in headers:
        made.add_column(header, overflow="fold")
    return made
