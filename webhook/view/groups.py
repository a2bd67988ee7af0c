"""The sizes of gangs, as PodGroup objects state them."""

from allocator.vocabulary.gangs import UNSTATED, GangSize, largest


class GroupTable:
    """The PodGroups. Those of different API groups may have the same name: the largest size counts."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[str, GangSize]] = {}  # gang -> API group -> size

    def put(self, group: str, gang: str, size: GangSize) -> None:
        """Take in a PodGroup of an API group."""
        if size == UNSTATED:
            self.drop(group, gang)
        else:
            self._sizes.setdefault(gang, {})[group] = size

    def drop(self, group: str, gang: str) -> None:
        """Take in that a PodGroup is gone, or states no size."""
        stated = self._sizes.get(gang, {})
        stated.pop(group, None)
        if not stated:
            self._sizes.pop(gang, None)

    def size(self, gang: str) -> GangSize:
        """The size that PodGroups state for a gang."""
        stated = self._sizes.get(gang)
        return largest(stated.values()) if stated else UNSTATED
