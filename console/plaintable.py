"""Tables without lines, as commands write their findings."""

from rich.table import Table


def plain_table(*headers: str, whole: bool = False) -> Table:
    """Make a table of columns; longer text goes on in the next line. With `whole`, only the last column is wrapped."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    *others, last = headers
    for header in others:
        made.add_column(header, overflow="fold", no_wrap=whole)
    made.add_column(last, overflow="fold")
    return made
