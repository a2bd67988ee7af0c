"""The Node that everything is told about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MANAGER: Final = "koordgate-reporter"  # owner of our fields, by which the API server tells them from others'


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A Node as far as it matters here.

    Attributes:
        name: of the Node.
        uid: its identity.
        annotations: those of the administrator are copied to the NodeResourceTopology.
    """

    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def owner(self) -> dict[str, Any]:
        """An owner reference: what has it goes with the Node."""
        return {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self.uid}


def read_node(obj: Mapping[str, Any]) -> NodeIdentity:
    """Read a Node object."""
    metadata = obj["metadata"]
    return NodeIdentity(metadata["name"], metadata["uid"], dict(metadata.get("annotations") or {}))
