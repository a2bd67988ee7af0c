"""The cluster view: Nodes, Device objects, Pods and NodeAllocations, kept small, and snapshots made of them.

Everything here is memory; what fills it are the handlers of the Reflectors (or, offline, the loader). A node's
snapshot and the verdicts on it are remembered until something about the node changes.
"""

import itertools
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from allocator.holdings import Holding, NodeSnapshot
from allocator.names import GPU_MEMORY, TYPE_GPU
from allocator.outcome import Refusal
from allocator.place import Placement, place
from allocator.request import PodRequest
from allocator.score import score
from allocator.wire.deviceobject import NodeDevices
from koordgate.ledger.ledger import Ledger
from webhook.nodeselection import may_land, selects
from webhook.podinfo import PodInfo, annotated_holding

_MOST_REQUESTS: Final = 4096  # distinct requests remembered; beyond it the older half is forgotten and learnt again
_MOST_VERDICTS: Final = 150_000  # likewise of verdicts, some 500 bytes each
_MOST_SELECTIONS: Final = 4096  # likewise of nodes, which authors of Pods write as they like


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is kept of a Node."""

    uid: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What `place()` says of one request on one node, with its score (0-100) where it fits."""

    outcome: Placement | Refusal
    score: int


@dataclass(eq=False, slots=True)
class _NodeState:
    devices: NodeDevices | None = None
    pods: dict[str, PodInfo] = field(default_factory=dict)
    blocked: str = ""  # why nothing may be placed here, whatever is free
    snapshot: NodeSnapshot | None = None
    verdicts: dict[int, Verdict] = field(default_factory=dict)


class ClusterView:
    """What this replica knows of the cluster.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._ledger: Ledger | None = None
        self._nodes: dict[str, NodeFacts] = {}
        self._states: dict[str, _NodeState] = {}
        self._pods: dict[tuple[str, str], PodInfo] = {}
        self._by_uid: dict[str, PodInfo] = {}
        self._waiting: set[str] = set()  # UIDs of those that ask and are not bound
        self._strangers: dict[str, str] = {}  # namespace/name -> UID of Pods that are none of ours
        self._requests: OrderedDict[PodRequest, int] = OrderedDict()  # the one asked for last is the last
        self._numbers = itertools.count()
        self._judged = 0  # verdicts remembered, over all nodes
        self._memories: Counter[int] = Counter()
        self._reach: dict[bytes, tuple[int | None, int]] = {}

    def attach(self, ledger: Ledger) -> None:
        """Take holdings from this ledger, whose `watched` must be our `touch`."""
        self._ledger = ledger

    # Nodes and devices

    def put_node(self, name: str, facts: NodeFacts) -> None:
        """A Node is there."""
        known = self._nodes.get(name)
        if known != facts:
            self._nodes[name] = facts
            self._reach.clear()

    def drop_node(self, name: str) -> None:
        """A Node is gone."""
        self._nodes.pop(name, None)
        self._reach.clear()
        self._prune(name)

    def node_uid(self, name: str) -> str | None:
        """A Node's UID, where it is known."""
        facts = self._nodes.get(name)
        return facts.uid if facts else None

    def put_devices(self, devices: NodeDevices) -> None:
        """A node's Device object is there."""
        state = self._state(devices.node)
        self._memories.subtract(_memories(state.devices))
        self._memories.update(_memories(devices))
        self._memories += Counter()  # drops what is no more
        state.devices = devices
        self._reach.clear()
        self.touch(devices.node)

    def drop_devices(self, node: str) -> None:
        """A node's Device object is gone: nothing new lands there, what is held stays held."""
        self.put_devices(NodeDevices(node, (), frozenset(), ()))
        self._state(node).devices = None
        self._prune(node)

    def devices(self, node: str) -> NodeDevices | None:
        """A node's devices, where it has a Device object."""
        state = self._states.get(node)
        return state.devices if state else None

    def nodes_with_devices(self) -> list[str]:
        """Names of the nodes that have a Device object."""
        return sorted(name for name, state in self._states.items() if state.devices is not None)

    def block(self, node: str, reason: str) -> None:
        """Place nothing on a node until `unblock`: who holds what there cannot be known, and each bind there fails.

        Args:
            node: its name.
            reason: for users, with what an administrator must do.
        """
        self._state(node).blocked = reason
        self.touch(node)

    def unblock(self, node: str) -> None:
        """A node's record can be read again, or is gone."""
        state = self._states.get(node)
        if state is not None and state.blocked:
            state.blocked = ""
            self.touch(node)
            self._prune(node)

    def memory_in_reach(self, pod: Mapping[str, Any]) -> tuple[int | None, int]:
        """Find the memory of the GPUs that a Pod could land on.

        Returns:
            Bytes, where all have the same, else None; and the bytes of the largest, 0 where none is known.
        """
        spec = pod.get("spec") or {}
        key = orjson.dumps((spec.get("nodeSelector"), spec.get("affinity"))) if selects(spec) else b""
        found = self._reach.get(key)
        if found is None:
            memories = set(self._memories) if not key else self._memories_for(spec)
            found = (next(iter(memories)) if len(memories) == 1 else None, max(memories, default=0))
            if len(self._reach) >= _MOST_SELECTIONS:
                self._reach.clear()
            self._reach[key] = found
        return found

    def _memories_for(self, spec: Mapping[str, Any]) -> set[int]:
        memories: set[int] = set()
        for name, state in self._states.items():
            facts = self._nodes.get(name)
            if state.devices is not None and facts is not None and may_land(spec, name, facts.labels):
                memories.update(_memories(state.devices))
        return memories

    # Pods

    def put_pod(self, pod: PodInfo) -> None:
        """A Pod that asks for devices or holds some is there."""
        held = self._ledger.record(pod.node).holdings.get(pod.uid) if self._ledger and pod.shares else None
        if held is not None and held.shares == pod.shares:
            pod = replace(pod, shares=held.shares)  # one copy of what ledger and annotation say alike
        self._replace(self._pods.get((pod.namespace, pod.name)), pod)
        self._strangers.pop(f"{pod.namespace}/{pod.name}", None)

    def put_stranger(self, namespace: str, name: str, uid: str) -> None:
        """A Pod that is none of ours is there."""
        self._replace(self._pods.get((namespace, name)), None)
        self._strangers[f"{namespace}/{name}"] = uid

    def drop_pod(self, namespace: str, name: str) -> PodInfo | None:
        """A Pod is gone; returns what was known of it, if it was ours."""
        self._strangers.pop(f"{namespace}/{name}", None)
        known = self._pods.get((namespace, name))
        self._replace(known, None)
        return known

    def _replace(self, known: PodInfo | None, pod: PodInfo | None) -> None:
        if known is not None:
            del self._pods[known.namespace, known.name]
            self._by_uid.pop(known.uid, None)
            self._waiting.discard(known.uid)
            if known.node:
                self._state(known.node).pods.pop(known.uid, None)
        if pod is not None:
            self._pods[pod.namespace, pod.name] = pod
            self._by_uid[pod.uid] = pod
            if pod.asks and not pod.node and not pod.finished:
                self._waiting.add(pod.uid)
            if pod.node:
                self._state(pod.node).pods[pod.uid] = pod
        for changed in (known, pod):
            if changed is not None and changed.node and changed.shares:
                self.touch(changed.node)

    def pod(self, namespace: str, name: str) -> PodInfo | None:
        """One of our Pods, by name."""
        return self._pods.get((namespace, name))

    def pod_by_uid(self, uid: str) -> PodInfo | None:
        """One of our Pods, by UID."""
        return self._by_uid.get(uid)

    def is_stranger(self, namespace: str, name: str, uid: str) -> bool:
        """Whether a Pod is known to be none of ours; without a UID, whether one of that name is."""
        known = self._strangers.get(f"{namespace}/{name}")
        return known is not None and uid in {"", known}

    def anybody_waits(self) -> bool:
        """Whether one of our Pods is not bound yet."""
        return bool(self._waiting)

    def pods(self) -> Iterable[PodInfo]:
        """All our Pods."""
        return self._pods.values()

    # Snapshots

    def touch(self, node: str) -> None:
        """Something about a node changed: forget what was derived from it."""
        state = self._states.get(node)
        if state is not None:
            state.snapshot = None
            self._judged -= len(state.verdicts)
            state.verdicts.clear()

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it stands, on the ledger as last seen; without devices while it is blocked."""
        state = self._state(node)
        if state.blocked:
            return NodeSnapshot(node, ())
        if state.snapshot is None:
            holdings = self._ledger.record(node).holdings if self._ledger else {}
            state.snapshot = self.snapshot_on(node, holdings)
        return state.snapshot

    def snapshot_on(self, node: str, holdings: Mapping[str, Holding]) -> NodeSnapshot:
        """A node with these holdings of the ledger, and those that only annotations of its live Pods tell of.

        The second part matters where a ledger was lost or Koordinator bound before us: what a running Pod's
        annotation names is never given again, whatever the ledger says.
        """
        state = self._state(node)
        listed = state.devices
        devices = listed.devices if listed else ()
        known = dict(holdings)
        for uid, pod in state.pods.items():
            if uid not in known and pod.shares and not pod.finished:
                adopted = annotated_holding(pod, devices, self._clock())
                if adopted is not None:
                    known[uid] = adopted
        return NodeSnapshot(node, devices, known, listed.kubelet_held if listed else frozenset())

    def number(self, request: PodRequest) -> int:
        """A small number for a request, the same for equal ones: the key under which verdicts are remembered."""
        number = self._requests.get(request)
        if number is None:
            number = self._requests[request] = next(self._numbers)
        else:
            self._requests.move_to_end(request)
        if len(self._requests) > _MOST_REQUESTS or self._judged > _MOST_VERDICTS:
            self._forget_half()
        return number

    def _forget_half(self) -> None:
        """Forget the requests not asked for longest, and the verdicts on them."""
        gone = {self._requests.popitem(last=False)[1] for _ in range(len(self._requests) // 2)}
        self._judged = 0
        for state in self._states.values():
            state.verdicts = {number: verdict for number, verdict in state.verdicts.items() if number not in gone}
            self._judged += len(state.verdicts)

    def verdict(self, node: str, request: PodRequest, number: int, uid: str) -> Verdict:
        """What `place()` says of a request on a node; what the Pod itself holds there already counts as free."""
        state = self._states.get(node)
        if state is None:
            return _judge(request, NodeSnapshot(node, ()))
        if state.blocked:
            return Verdict(Refusal(f"{node}: {state.blocked}", permanent=True), 0)
        snapshot = state.snapshot or self.snapshot(node)
        if uid in snapshot.holdings:
            return _judge(request, snapshot.without([uid]))
        verdict = state.verdicts.get(number)
        if verdict is None:
            verdict = state.verdicts[number] = _judge(request, snapshot)
            self._judged += 1
        return verdict

    def _prune(self, node: str) -> None:
        """Forget a node of which nothing is known any more."""
        state = self._states.get(node)
        if state is None or state.devices is not None or state.pods or state.blocked:
            return
        if node not in self._nodes:
            self._judged -= len(state.verdicts)
            del self._states[node]

    def _state(self, node: str) -> _NodeState:
        state = self._states.get(node)
        if state is None:
            state = self._states[node] = _NodeState()
        return state


def _judge(request: PodRequest, snapshot: NodeSnapshot) -> Verdict:
    outcome = place(request, snapshot)
    return Verdict(outcome, 0 if isinstance(outcome, Refusal) else score(outcome, snapshot))


def _memories(devices: NodeDevices | None) -> list[int]:
    listed = devices.devices if devices else ()
    return [device.capacity[GPU_MEMORY] for device in listed if device.type == TYPE_GPU]
