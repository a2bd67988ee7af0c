"""What a test needs of Kubernetes that older versions lack: `@pytest.mark.kubernetes(since="1.36", feature="...")`.

Such a test is skipped on older versions (`make test-matrix`), and never on the one that `make test` runs.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from localplane.versions import number


class Needed(NamedTuple):
    """A feature, and the version since which it is on by default or can be turned on as the test does."""

    since: str
    feature: str

    def lacking(self, version: str) -> bool:
        """Whether a version, such as v1.34.4, is older than the feature."""
        return number(version)[:2] < number(self.since)[:2]


TAINT_RULES: Final = pytest.mark.kubernetes(since="1.36", feature="DeviceTaintRules of a beta version or v1")


def needed(item: pytest.Item) -> Iterator[Needed]:
    """The features that a test, its class and its module name."""
    for marker in item.iter_markers("kubernetes"):
        yield Needed(**marker.kwargs)
