"""The cluster view: Nodes, Devices, NodeResourceTopologies, Pods and holdings, kept small, and snapshots of them.

Everything here is memory; what fills it are the handlers of the Reflectors (or, offline, the loader). A node's
snapshot is remembered until something about the node changes.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from allocator.cpu.resolve import CpuDefaults, resolve
from allocator.vocabulary.cpunode import CpuNode, CpuShare
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import DEVICE_ORDER, GPU_MEMORY, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.preference import DeviceOrder
from allocator.vocabulary.wiring import UNWIRED
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.nodetopology import NodeTopology
from webhook.ledger.ledger import Ledger
from webhook.view.classes import beside
from webhook.view.nodeselection import PREFER_NO_SCHEDULE, may_land, selects, tolerated
from webhook.view.podinfo import PodInfo, annotated_holding

_MOST_ENDED: Final = 4096  # UIDs of ended Pods, before those that the ledger has let go of are forgotten
_MOST_SELECTIONS: Final = 4096  # nodes' memories remembered by what Pods select, which authors write as they like


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is kept of a Node.

    Attributes:
        uid: its identity.
        labels: its labels.
        classes: its software classes, as devices.
        shunning: its taints of effect PreferNoSchedule, as key and value.
    """

    uid: str
    labels: Mapping[str, str]
    classes: tuple[Device, ...] = ()
    shunning: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds on nodes that say nothing themselves.

    Attributes:
        order: which of the devices that fit comes first.
        cpu: CPU orchestration.
    """

    order: DeviceOrder = DeviceOrder.MOST_USED
    cpu: CpuDefaults = field(default_factory=CpuDefaults)


@dataclass(eq=False, slots=True)
class _NodeState:
    devices: NodeDevices | None = None
    topology: NodeTopology | None = None
    pods: dict[str, PodInfo] = field(default_factory=dict)
    blocked: str = ""  # why nothing may be placed here, whatever is free
    fixed: NodeSnapshot | None = None  # all but the holdings
    snapshot: NodeSnapshot | None = None


class ClusterView:
    """What this replica knows of the cluster.

    Args:
        clock: seconds since the epoch.
        defaults: for nodes that say nothing themselves.
        refitted: called with a node when something of what it is, or has, changed: who waits may fit there now.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        defaults: Defaults | None = None,
        refitted: Callable[[str], object] = lambda _node: None,
    ) -> None:
        self._clock = clock
        self._defaults = defaults or Defaults()
        self._refitted = refitted
        self._ledger: Ledger | None = None
        self._nodes: dict[str, NodeFacts] = {}
        self._states: dict[str, _NodeState] = {}
        self._pods: dict[tuple[str, str], PodInfo] = {}
        self._by_uid: dict[str, PodInfo] = {}
        self._waiting: set[str] = set()  # UIDs of those that ask and are not bound
        self._news: asyncio.Future[None] | None = None
        self._ended: set[str] = set()  # UIDs of those that ended, whose holding may not have left the ledger yet
        self._gangs: dict[str, dict[str, str]] = {}  # gang -> UID of each of its Pods -> node, "" while unbound
        self._strangers: dict[str, str] = {}  # namespace/name -> UID of Pods that are none of ours
        self._memories: Counter[int] = Counter()
        self._reach: dict[bytes, tuple[int | None, int]] = {}
        self._shunned: defaultdict[tuple[tuple[str, str], ...], set[str]] = defaultdict(set)  # by their taints
        self.touched: set[str] = set()  # nodes that changed since somebody emptied this

    def attach(self, ledger: Ledger) -> None:
        """Take holdings from this ledger, whose `watched` must be our `touch`."""
        self._ledger = ledger

    # Nodes and devices

    def put_node(self, name: str, facts: NodeFacts) -> None:
        """A Node is there."""
        known = self._nodes.get(name)
        if known != facts:
            self._shun(name, known.shunning if known else (), facts.shunning)
            self._nodes[name] = facts
            self._reach.clear()
            if facts.classes:
                self._state(name)
            self._refit(name)

    def drop_node(self, name: str) -> None:
        """A Node is gone."""
        known = self._nodes.pop(name, None)
        self._shun(name, known.shunning if known else (), ())
        self._reach.clear()
        self._refit(name)
        self._prune(name)

    def _shun(self, name: str, before: tuple[tuple[str, str], ...], now: tuple[tuple[str, str], ...]) -> None:
        if before:
            self._shunned[before].discard(name)
            if not self._shunned[before]:
                del self._shunned[before]
        if now:
            self._shunned[now].add(name)

    def shunned(self, tolerations: object) -> AbstractSet[str]:
        """The nodes with a taint PreferNoSchedule that these tolerations of a Pod do not cover."""
        nodes: AbstractSet[str] = frozenset()
        for taints, names in self._shunned.items():
            told = ({"key": key, "value": value, "effect": PREFER_NO_SCHEDULE} for key, value in taints)
            if not all(tolerated(taint, tolerations) for taint in told):
                nodes |= names
        return nodes

    def node_uid(self, name: str) -> str | None:
        """A Node's UID, where it is known."""
        facts = self._nodes.get(name)
        return facts.uid if facts else None

    def put_devices(self, devices: NodeDevices) -> None:
        """A node's Device object is there."""
        state = self._state(devices.node)
        if state.devices == devices:
            return  # only what is not kept of it was written
        self._memories.subtract(_memories(state.devices))
        self._memories.update(_memories(devices))
        self._memories += Counter()  # drops what is no more
        state.devices = devices
        self._reach.clear()
        self._refit(devices.node)

    def drop_devices(self, node: str) -> None:
        """A node's Device object is gone: nothing new lands there, what is held stays held."""
        self.put_devices(NodeDevices(node, ()))
        self._state(node).devices = None
        self._prune(node)

    def put_topology(self, topology: NodeTopology) -> None:
        """A node's NodeResourceTopology is there."""
        state = self._state(topology.node)
        if state.topology != topology:
            state.topology = topology
            self._refit(topology.node)

    def drop_topology(self, node: str) -> None:
        """A node's NodeResourceTopology is gone: no CPUs are given there any more, what is held stays held."""
        state = self._states.get(node)
        if state is not None:
            state.topology = None
            self._refit(node)
            self._prune(node)

    def devices(self, node: str) -> NodeDevices | None:
        """A node's devices, where it has a Device object."""
        state = self._states.get(node)
        return state.devices if state else None

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
            self._refitted(node)
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
        held = self._ledger.record(pod.node).holdings.get(pod.uid) if self._ledger and pod.holds else None
        if held is not None and held.shares == pod.shares and _cpus(held.cpus) == _cpus(pod.cpus):
            pod = replace(pod, shares=held.shares, cpus=held.cpus)  # one copy of what ledger and annotation say alike
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
        if known is not None and known.node and (pod is None or pod.uid != known.uid):
            self._end(known)
        elif pod is not None and pod.node and pod.finished:
            self._end(pod)
        self._regroup(known, pod)
        for changed in (known, pod):
            if changed is not None and changed.node and changed.holds:
                self.touch(changed.node)

    def _end(self, pod: PodInfo) -> None:
        """Take in that a Pod ended: what it held is free from now on for those who look for a node.

        The ledger follows within milliseconds, before any bind can come of that; but kube-scheduler is as quick, and
        sends who was refused to sleep.
        """
        self._ended.add(pod.uid)
        if len(self._ended) > _MOST_ENDED:
            self._ended = {uid for uid in self._ended if any(self.nodes_holding(uid))}
        self.touch(pod.node)

    def _regroup(self, known: PodInfo | None, pod: PodInfo | None) -> None:
        """Keep the gangs' members."""
        if known is not None and (gang := known.request.wishes.gang):
            members = self._gangs.get(gang, {})
            members.pop(known.uid, None)
            if not members:
                self._gangs.pop(gang, None)
        if pod is not None and not pod.finished and (gang := pod.request.wishes.gang):
            self._gangs.setdefault(gang, {})[pod.uid] = pod.node

    def gang(self, name: str) -> Mapping[str, str]:
        """The Pods of a gang by UID, and the node of each; "" for one that is not bound."""
        return self._gangs.get(name, {})

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
            self.touched.add(node)
            if self._news is not None and not self._news.done():
                self._news.set_result(None)

    async def news(self) -> None:
        """Wait until something about a node changes."""
        if self._news is None or self._news.done():
            self._news = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._news)

    def _refit(self, node: str) -> None:
        """What a node is changed, not only who holds what there."""
        state = self._states.get(node)
        if state is not None:
            state.fixed = None
            self.touch(node)
            self._refitted(node)

    def nodes_holding(self, uid: str) -> Iterable[str]:
        """The nodes on which the ledger holds something for a Pod."""
        return self._ledger.nodes_of(uid) if self._ledger else ()

    def knows(self, node: str) -> bool:
        """Whether anything is known of a node that could be given."""
        return node in self._states

    def blocked(self, node: str) -> str:
        """Why nothing may be placed on a node, for users; "" where it may."""
        state = self._states.get(node)
        return state.blocked if state is not None else ""

    def snapshot(self, node: str) -> NodeSnapshot:
        """A node as it stands, on the ledger as last seen; without devices and CPUs while it is blocked."""
        state = self._states.get(node)
        if state is None or state.blocked:
            return NodeSnapshot(node, ())
        if state.snapshot is None:
            holdings = self._ledger.record(node).holdings if self._ledger else {}
            if not self._ended.isdisjoint(holdings):
                holdings = {uid: held for uid, held in holdings.items() if uid not in self._ended}
            state.snapshot = self.snapshot_on(node, holdings)
        return state.snapshot

    def snapshot_on(self, node: str, holdings: Mapping[str, Holding]) -> NodeSnapshot:
        """A node with these holdings of the ledger, and those that only annotations of its live Pods tell of.

        The second part matters where a ledger was lost or Koordinator bound before us: what a running Pod's
        annotations name is never given again, whatever the ledger says.
        """
        state = self._state(node)
        if state.fixed is None:
            state.fixed = self._fixed(node, state)
        fixed = state.fixed
        known = dict(holdings)
        for uid, pod in state.pods.items():
            if uid not in known and pod.holds and not pod.finished:
                adopted = annotated_holding(pod, fixed.devices, self._clock())
                if adopted is not None:
                    known[uid] = adopted
        return fixed.holding_all(known)

    def _fixed(self, node: str, state: _NodeState) -> NodeSnapshot:
        """A node without anybody on it."""
        listed, facts = state.devices, self._nodes.get(node)
        labels: Mapping[str, str] = facts.labels if facts else {}
        devices = listed.devices if listed else ()
        if facts is not None and facts.classes:
            devices = beside(devices, facts.classes)
        order = labels.get(DEVICE_ORDER, "")
        return NodeSnapshot(
            node,
            devices,
            kubelet_held=listed.kubelet_held if listed else frozenset(),
            wiring=listed.wiring(labels) if listed else UNWIRED,
            cpu=self._cpu(state.topology, labels),
            order=order if order in list(DeviceOrder) else self._defaults.order,
        )

    def _cpu(self, topology: NodeTopology | None, labels: Mapping[str, str]) -> CpuNode | None:
        return None if topology is None else resolve(topology, labels, self._defaults.cpu)

    def _prune(self, node: str) -> None:
        """Forget a node of which nothing is known any more."""
        state = self._states.get(node)
        if state is None or state.devices is not None or state.topology is not None or state.pods or state.blocked:
            return
        if node not in self._nodes:
            del self._states[node]
            self.touched.add(node)

    def _state(self, node: str) -> _NodeState:
        state = self._states.get(node)
        if state is None:
            state = self._states[node] = _NodeState()
        return state


def _cpus(share: CpuShare | None) -> int | None:
    """Which CPUs a share has: all of it that an annotation tells as well."""
    return None if share is None else share.cpus


def _memories(devices: NodeDevices | None) -> list[int]:
    listed = devices.devices if devices else ()
    return [device.capacity[GPU_MEMORY] for device in listed if device.type == TYPE_GPU]
