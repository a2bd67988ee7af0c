"""One replica in memory, which targets feed and ask: the same parts as in a cluster, without an API server."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from allocator.vocabulary.names import KOORD_SCHEDULER
from webhook import review
from webhook.assembly import Parts
from webhook.edge import Draining, Edge, _Patience
from webhook.ledger.kube import RecordHandler
from webhook.ledger.store import MemoryStore
from webhook.settings import WebhookSettings, types_of, without_gathering
from webhook.shapes import BindingShape, ClaimShape, PodShape
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.feed import DeviceFeed, GroupFeed, NodeFeed, PodFeed, RecordFeed, TopologyFeed
from webhook.view.livepods import LivePods
from webhook.view.podinfo import OtherPod, PodInfo, read_either

T = TypeVar("T")
Raw = Mapping[str, Any]
NOW: Final = 1_800_000_000
SETTINGS: Final = without_gathering(WebhookSettings())
SCHEDULER: Final = SETTINGS.scheduler.username
SCHEDULER_NAME: Final = KOORD_SCHEDULER
_SHAPES: Final = {"pod": PodShape, "binding": BindingShape, "claim": ClaimShape}
_LOOP: Final = asyncio.new_event_loop()
_PATIENCE_S: Final = 60.0  # of a decision: no target waits for anything, and the bound of a trial is shorter


def run(work: Coroutine[Any, Any, T]) -> T:
    return _LOOP.run_until_complete(work)


class Replica(LivePods):
    """The parts of a replica, and the objects that it was fed.

    Attributes:
        parts: of the replica.
        pods: the live Pods, as the API server has them.
    """

    def __init__(self, settings: WebhookSettings = SETTINGS) -> None:
        self.pods: dict[tuple[str, str], Raw] = {}
        self._types = types_of(settings)
        self.parts = parts = Parts(settings, MemoryStore(), self, clock=lambda: NOW)
        self._edge = Edge(settings.serve, parts.metrics, Draining())
        cluster = parts.cluster

        def heard(_name: str, _problems: tuple[str, ...]) -> None:
            """Problems are told to nobody here."""

        def settled(pod: PodInfo) -> None:
            parts.ranking.assumed.drop(pod.uid, pod.node)

        self._feeds: dict[Any, Any] = {
            "nodes": NodeFeed(cluster, parts.types, parts.pools, heard),
            "devices": DeviceFeed(cluster, parts.types, heard),
            "topologies": TopologyFeed(cluster, heard),
            "groups": GroupFeed(cluster, "scheduling.x-k8s.io", heard),
            "records": RecordHandler(RecordFeed(cluster, parts.ledger, heard)),
            "pods": PodFeed(cluster, settled, settled, parts.types),
            "slices": SliceFeed(cluster, heard),
            "claims": ClaimFeed(cluster),
        }
        self._fed: list[tuple[str, Raw]] = []

    async def find(self, namespace: str, name: str, deadline: float) -> PodInfo | OtherPod | None:  # noqa: ARG002
        """Read a live Pod."""
        obj = self.pods.get((namespace, name))
        return None if obj is None else read_either(obj, self._types)

    def feed(self, resource: str, obj: Raw) -> None:
        """Take in an object, as from a watch."""
        if resource == "pods":
            self.pods[obj["metadata"].get("namespace", ""), obj["metadata"]["name"]] = obj
        self._fed.append((resource, obj))
        self._feeds[resource].put(dict(obj))

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Forget afterwards what was fed and held meanwhile."""
        kept, self._fed = self._fed, []
        try:
            yield
        finally:
            ledger = self.parts.ledger
            for node in [record.node for record in ledger.records()]:
                run(ledger.change(node, lambda _: ({}, None), _PATIENCE_S))
                run(ledger.discard(node, _PATIENCE_S))
            for resource, obj in reversed(self._fed):
                if resource == "claims":  # one that was deleted would be remembered by its UID
                    metadata = obj["metadata"]
                    self._feeds[resource].gone(metadata["namespace"], metadata["name"])
                else:
                    self._feeds[resource].drop(dict(obj))
            self._fed = kept
            self.pods.clear()
            for uid in list(self.parts.ranking.assumed._by_uid):
                self.parts.ranking.assumed.drop(uid)

    def kept(self) -> dict[str, int]:
        """How much is kept in each table that must be empty between inputs."""
        parts = self.parts
        pods = parts.cluster.pods
        tables = {
            "records": parts.ledger.records(),
            "nodes of Pods": parts.ledger._nodes_of,
            "pending changes": parts.ledger._pending,
            "unsure nodes": parts.ledger._unsure,
            "Pods": list(pods.all()),
            "unaccounted_cards": pods._strangers,
            "Pods by UID": pods._by_uid,
            "Pods by node": pods._on,
            "waiting Pods": pods._waiting,
            "gangs": pods._gangs,
            "whole gangs": pods._all_or_nothing,
            "requests": parts.cluster.loads._requested,
            "assumed": parts.ranking.assumed._by_uid,
            "nodes": list(parts.cluster.nodes.known()),
            "claims": list(parts.cluster.claims.all()),
            "claims by node": parts.cluster.claims._on,
            "claims by pool": parts.cluster.claims._users,
        }
        return {name: len(table) for name, table in tables.items()}

    def answer(self, path: str, question: review.Request) -> review.Response:
        """Answer a review by its handler; what that raises is not caught."""
        return run(self._handle(path, question, _PATIENCE_S))

    async def _handle(self, path: str, question: review.Request, deadline: float) -> review.Response:
        pods, bindings = self.parts.pods, self.parts.bindings
        if path.endswith("-pod"):
            return (pods.mutate if path == "mutate-pod" else pods.validate)(question)
        if path == "validate-claim":
            return await self.parts.claims.validate(question, deadline)
        return await (bindings.mutate if path == "mutate-binding" else bindings.validate)(question, deadline)

    def answer_at_the_edge(self, path: str, question: review.Request) -> review.Response:
        """Answer a review as the server does: what the handler raises becomes an answer."""

        async def handler(asked: review.Request, patience: _Patience) -> review.Response:
            return await self._handle(path, asked, patience.left)

        async def serve() -> review.Response:
            shape: Any = _SHAPES[path.partition("-")[2]]
            return await self._edge._answer(path, handler, question, _Patience(_PATIENCE_S), shape)

        return run(serve())
