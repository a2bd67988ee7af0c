"""What a test needs of Kubernetes that older versions lack: `@pytest.mark.kubernetes(since="1.34", feature="...")`.

Such a test is skipped on older versions (`make test-matrix`), and never on the one that `make test` runs.
"""

from collections.abc import Iterator
from typing import NamedTuple

import pytest


class Needed(NamedTuple):
    """A feature, and the version since which it is on by default or can be turned on as the test does."""

    since: str
    feature: str


def needed(item: pytest.Item) -> Iterator[Needed]:
    """The features that a test, its class and its module name."""
    for marker in item.iter_markers("kubernetes"):
        yield Needed(**marker.kwargs)
