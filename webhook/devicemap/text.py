"""Text of objects for the device map: what UTF-8 cannot encode is replaced, and none is long."""

from typing import Final

_SHORT: Final = 256  # characters; names of Kubernetes have at most 253
LONGEST: Final = 1024
"""Characters of an explanation."""


def cut(text: str, most: int = _SHORT) -> str:
    """Make text that any reader of JSON takes, of at most so many characters."""
    whole = text.encode("utf-8", "replace").decode()
    return whole if len(whole) <= most else f"{whole[: most - 1]}…"
