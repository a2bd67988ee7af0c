"""What a message repeats of a text that somebody else wrote."""

from typing import Final

_MAX: Final = 80  # characters; a container's id with its runtime has 77


def excerpt(text: object) -> str:
    """The first 80 characters of `text`, or of how Python writes another value."""
    return str(text)[:_MAX]
