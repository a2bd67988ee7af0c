"""Objects as they stand in the cluster: what a watch says, and what our own writes were answered."""

from collections.abc import Callable
from typing import Any

Raw = dict[str, Any]


class LiveObject:
    """One object that is watched by name; a Reflector's handler.

    Args:
        name: of the object.
        changed: called when it came, changed or went.

    Attributes:
        obj: as it stands; None where it does not exist, or is not known yet.
    """

    def __init__(self, name: str, changed: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._changed = changed
        self._listed: bool | None = None  # None: no list is going on
        self.obj: Raw | None = None

    def begin_list(self) -> None:
        """A list begins."""
        self._listed = False

    def put(self, obj: Raw) -> None:
        """It is there; an older state than what our write was answered with is passed over."""
        if obj["metadata"]["name"] != self._name:
            return
        if self._listed is not None:
            self._listed = True
        self.take(obj)

    def drop(self, obj: Raw) -> None:
        """It is gone."""
        if obj["metadata"]["name"] == self._name:
            self._gone()

    def end_list(self) -> None:
        """The list is complete."""
        if self._listed is False:
            self._gone()
        self._listed = None

    def take(self, obj: Raw) -> None:
        """Take a state in, unless what is known is newer."""
        if self.obj is None or not _older(obj, self.obj):
            self.obj = obj
            self._changed()

    def _gone(self) -> None:
        if self.obj is not None:
            self.obj = None
            self._changed()


def _older(one: Raw, other: Raw) -> bool:
    """Compare revisions, which the API server counts up; of another object (its UID) none is older."""
    if one["metadata"].get("uid") != other["metadata"].get("uid"):
        return False
    versions = [str(obj["metadata"].get("resourceVersion")) for obj in (one, other)]
    return all(version.isdecimal() for version in versions) and int(versions[0]) < int(versions[1])
