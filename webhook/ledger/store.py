"""Where a node's holdings are kept: one contract, in memory and in the cluster.

The contract (tests/ledger holds both to it): a record carries the revision it was read at; a write succeeds only on
that revision and yields the next one; otherwise it changes nothing and raises `LostRaceError`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import API_VERSION, KIND, read_spec, write_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, Conflict, NotFound
from koordgate.kube.resource import NODE_ALLOCATIONS

ABSENT = 0  # the revision of a record that does not exist yet


class LostRaceError(Exception):
    """The record is at another revision than the write was decided on: read again and decide again."""


@dataclass(frozen=True, slots=True)
class Record:
    """One node's holdings at one revision.

    Attributes:
        node: its name.
        revision: grows with every write; ABSENT where nothing was ever written.
        holdings: by Pod UID.
    """

    node: str
    revision: int = ABSENT
    holdings: Mapping[str, Holding] = field(default_factory=dict)


class Store(Protocol):
    """Keeps records."""

    async def read(self, node: str, deadline: float) -> Record:
        """Read a node's record as it stands now, within so many seconds."""

    async def write(self, record: Record, holdings: Mapping[str, Holding], deadline: float) -> Record:
        """Put these holdings in place of the record's.

        Raises:
            LostRaceError: somebody else wrote since the record was read.
        """


class MemoryStore:
    """Records in memory, for the embedded mode and fast tests."""

    def __init__(self) -> None:
        self._records: dict[str, Record] = {}
        self._revision = ABSENT

    async def read(self, node: str, deadline: float) -> Record:  # noqa: ARG002 the contract's
        """Read a node's record."""
        return self._records.get(node, Record(node))

    async def write(self, record: Record, holdings: Mapping[str, Holding], deadline: float) -> Record:  # noqa: ARG002
        """Compare and swap."""
        if self._records.get(record.node, Record(record.node)).revision != record.revision:
            raise LostRaceError(record.node)
        self._revision += 1
        written = Record(record.node, self._revision, dict(holdings))
        self._records[record.node] = written
        return written


class KubeStore:
    """Records as NodeAllocation objects; the API server arbitrates by resourceVersion.

    Args:
        kube: the open client.
        node_uid: a node's UID where it is known: the object is then deleted with its Node.
        annotations: what the object carries beside the holdings, which a write would take away.
    """

    def __init__(
        self,
        kube: KubeClient,
        node_uid: Callable[[str], str | None],
        annotations: Callable[[str, Mapping[str, Holding]], Mapping[str, str]] = lambda _node, _holdings: {},
    ) -> None:
        self._kube = kube
        self._node_uid = node_uid
        self._annotations = annotations

    async def read(self, node: str, deadline: float) -> Record:
        """Read a node's record from the API server."""
        try:
            return read_record(await self._kube.get(NODE_ALLOCATIONS.path(node), deadline=deadline))
        except NotFound:
            return Record(node)

    async def write(self, record: Record, holdings: Mapping[str, Holding], deadline: float) -> Record:
        """Create the object, or replace it on the record's resourceVersion."""
        body: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": record.node, "annotations": dict(self._annotations(record.node, holdings))},
            "spec": write_spec(holdings.values()),
        }
        uid = self._node_uid(record.node)
        if uid is not None:
            owner = {"apiVersion": "v1", "kind": "Node", "name": record.node, "uid": uid}
            body["metadata"]["ownerReferences"] = [owner]
        try:
            if record.revision == ABSENT:
                written = await self._kube.create(NODE_ALLOCATIONS.path(), body, deadline=deadline)
            else:
                body["metadata"]["resourceVersion"] = str(record.revision)
                # Nobody else writes here, and working out who owns which field would cost the API server much: one
                # empty entry tells it not to (Kubernetes' server-side apply, "Clearing managedFields").
                body["metadata"]["managedFields"] = [{}]
                path = NODE_ALLOCATIONS.path(record.node)
                written = await self._kube.replace(path, body, deadline=deadline)
        except (AlreadyExists, Conflict) as error:
            raise LostRaceError(record.node) from error
        except NotFound as error:
            if record.revision == ABSENT:
                raise  # not the object is missing but its type: the CRD is not installed
            raise LostRaceError(record.node) from error
        return Record(record.node, revision_of(written), dict(holdings))


def read_record(obj: Mapping[str, Any]) -> Record:
    """Read a NodeAllocation object.

    Raises:
        RecordError: it is not of the format.
    """
    return Record(str(obj["metadata"]["name"]), revision_of(obj), read_spec(obj))


def revision_of(obj: Mapping[str, Any]) -> int:
    """Read an object's resourceVersion: an ordered integer, by Kubernetes' API conventions since 1.35."""
    return int(obj["metadata"]["resourceVersion"])
