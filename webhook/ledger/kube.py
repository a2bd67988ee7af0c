"""The store in NodeAllocation objects."""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

import orjson

from allocator.vocabulary.holdings import Holding
from allocator.wire.nodeallocation import API_VERSION, KIND, RecordError, read_spec, write_spec, write_status
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import AlreadyExists, Conflict, NotFound, TooLarge
from koordgate.kube.resource import NODE_ALLOCATIONS
from koordgate.kube.watch import Happening, Reflector
from webhook.ledger.store import ABSENT, FullRecordError, Listener, LostRaceError, Record, Store, UnreadableError

Raw = dict[str, Any]
MAX_BYTES: Final = 768 * 1024  # of a record's holdings, as JSON; etcd refuses objects of 1.5 MiB by default
_PAGE: Final = 100  # objects a page: a node of many devices is some 50 KB


class KubeStore:
    """A `Store` in the cluster.

    The objects have no owner. Kubernetes would delete them with their Node, and with them what a bind was answered with
    that the API server may still perform. `Discarder` deletes the record of a Node that is gone once it is empty.
    """

    kind: Final = NODE_ALLOCATIONS.plural

    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def read(self, node: str, deadline: float) -> Record:
        """Read a node's record from the API server."""
        try:
            obj = await self._kube.get(NODE_ALLOCATIONS.path(node), deadline=deadline)
        except NotFound:
            return Record(node)
        return read_record(obj)

    async def records(self) -> AsyncIterator[Record | UnreadableError]:
        """List all records, page by page.

        Raises NotFound: the CRD is not installed.
        """
        async for page, _ in self._kube.list_pages(NODE_ALLOCATIONS.path(), limit=_PAGE):
            for obj in page:
                yield record_or_error(obj)

    async def write(self, record: Record, holdings: Mapping[str, Holding], deadline: float) -> Record:
        """Create the object, or replace it at the record's resourceVersion.

        A record larger than `MAX_BYTES` is not written, unless that makes it smaller than it was.
        """
        spec = orjson.dumps(write_spec(holdings.values()))
        if len(spec) > MAX_BYTES and len(spec) > len(orjson.dumps(write_spec(record.holdings.values()))):
            raise _full(record.node, f"{len(spec)} bytes, and {MAX_BYTES} are allowed")
        metadata: Raw = {"name": record.node}
        body = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": metadata,
            "spec": orjson.Fragment(spec),
            "status": write_status(holdings.values()),
        }
        try:
            if record.revision == ABSENT:
                written = await self._kube.create(NODE_ALLOCATIONS.path(), body, deadline=deadline)
            else:
                metadata["resourceVersion"] = str(record.revision)
                # Nobody else writes here, and tracking the owner of each field costs the API server much: one empty
                # entry turns it off (Kubernetes' server-side apply, "Clearing managedFields").
                metadata["managedFields"] = [{}]
                path = NODE_ALLOCATIONS.path(record.node)
                written = await self._kube.replace(path, body, deadline=deadline)
        except (AlreadyExists, Conflict) as error:
            raise LostRaceError(record.node) from error
        except TooLarge as error:
            raise _full(record.node, f"{len(spec)} bytes, and the API server refuses it ({error})") from error
        except NotFound as error:
            if record.revision == ABSENT:
                raise  # it is not the object that is missing but its type: the CRD is not installed
            raise LostRaceError(record.node) from error
        return Record(record.node, revision_of(written), dict(holdings))

    async def delete(self, record: Record, deadline: float) -> None:
        """Delete the object at the record's resourceVersion."""
        path = NODE_ALLOCATIONS.path(record.node)
        try:
            await self._kube.delete(path, revision=str(record.revision), deadline=deadline)
        except NotFound:
            pass
        except Conflict as error:
            raise LostRaceError(record.node) from error

    def watch(
        self,
        listener: Listener,
        count: Callable[[Happening], None] = lambda _happening: None,
        on_error: Callable[[str, Exception], None] = lambda _about, _error: None,
    ) -> Reflector:
        """Make a watch of all records."""
        return Reflector(self._kube, NODE_ALLOCATIONS, RecordHandler(listener), count=count, on_error=on_error)


def _full(node: str, size: str) -> FullRecordError:
    return FullRecordError(
        f"the record of what Pods hold on node {node} would have {size}: bind Pods with fewer containers and devices "
        "there, or wait until others end"
    )


class RecordHandler:
    """A Reflector's handler of NodeAllocation objects; reports the records in them to a listener."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.begin_list = listener.begin_list
        self.end_list = listener.end_list

    def put(self, obj: Raw) -> None:
        """An object was listed, created or changed."""
        self._listener.put(str(obj["metadata"]["name"]), revision_of(obj), lambda: read_record(obj))

    def drop(self, obj: Raw) -> None:
        """An object was deleted."""
        self._listener.drop(str(obj["metadata"]["name"]), revision_of(obj))


def record_or_error(obj: Mapping[str, Any]) -> Record | UnreadableError:
    """Read a NodeAllocation object; an unreadable one becomes the error about it."""
    try:
        return read_record(obj)
    except UnreadableError as error:
        return error


def read_record(obj: Mapping[str, Any]) -> Record:
    """Read a NodeAllocation object.

    Raises UnreadableError: it is malformed.
    """
    name = str(obj["metadata"]["name"])
    try:
        return Record(name, revision_of(obj), read_spec(obj))
    except RecordError as error:
        raise UnreadableError(str(error), name) from error


def revision_of(obj: Mapping[str, Any]) -> int:
    """Read an object's resourceVersion: an ordered integer, by Kubernetes' API conventions since 1.35."""
    return int(obj["metadata"]["resourceVersion"])


def cluster_store(kube: KubeClient) -> Store:
    """Open the cluster's store."""
    return KubeStore(kube)
