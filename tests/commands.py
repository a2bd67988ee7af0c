"""A `koordgate` command in the process of the test, so that it runs beside a server of the test."""

from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple


class Said(NamedTuple):
    """The exit status, and what was written to standard output and standard error."""

    status: int
    out: str
    err: str


Koordgate = Callable[..., Coroutine[Any, Any, Said]]
