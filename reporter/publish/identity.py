"""The reporter's Node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from allocator.vocabulary.names import REPORTER_MANAGER

MANAGER: Final = REPORTER_MANAGER  # the owner of our fields


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The part of a Node that matters here."""

    name: str
    uid: str
    # its annotations; the administrator's are copied to the NodeResourceTopology
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> dict[str, Any]:
        """An owner reference: objects that have it are deleted with the Node."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}


def read_node(obj: Mapping[str, Any]) -> NodeIdentity:
    """Read a Node object."""
    metadata = obj["metadata"]
    return NodeIdentity(metadata["name"], metadata["uid"], dict(metadata.get("annotations") or {}))
