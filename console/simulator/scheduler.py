"""The stand-in for kube-scheduler: which nodes a Pod may go to, and whom it would preempt.

It considers spec.unschedulable, taints, nodeSelector, required node affinity and sums of resources. It ignores Pod
affinity, topology spread, volumes, host ports, priorities and preemption. Only the extender scores.

Nobody is evicted in a simulation. When victims end, and what then becomes of them, follows from their grace periods and
their controllers, which take time that a simulation does not have. What would be evicted is reported.

The imitated part is Kubernetes' DefaultPreemption (pkg/scheduler/framework/plugins/defaultpreemption): on each node all
Pods of lower priority are taken away, as many as possible are put back, the highest first, and nodes are compared by
the highest priority among the victims, the sum of their priorities, and their number. PodDisruptionBudgets are not
read.
"""

import hashlib
import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import orjson

from allocator.amounts import CPU, Amounts, node_amounts, pod_amounts
from allocator.quantity import in_gib
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import BUILT_IN, FULL, DeviceTypes
from console.simulator import api
from console.simulator.workloads import only_node
from console.terminal import some
from webhook.settings import SchedulerNames
from webhook.view.nodeselection import UNSCHEDULABLE, may_land, selects, tolerated


def allocatable(node: Mapping[str, Any], devices: Iterable[Device]) -> dict[str, int]:
    """The amounts that a Node has for Pods; device resources that it does not state are sums over its devices.

    Raises:
        BadQuantityError: an amount is not a quantity.
    """
    return {**_of_devices(devices), **node_amounts(node)}


def _of_devices(devices: Iterable[Device]) -> dict[str, int]:
    """Sum up healthy devices under every name of their resources, as the reporter would state them.

    The administrator's own types are stated nowhere; only the extender accounts for them (`managed`).
    """
    total: Counter[str] = Counter()
    for device in devices:
        if not device.healthy:
            continue
        for name, meaning in BUILT_IN.resources.items():
            if meaning.type.name == device.type and (meaning.dialect.own or meaning.counts_devices):
                # No device states gpu and gpu.shared. Each device counts as a whole one of both, as in Koordinator.
                total[name] += 1 if meaning.counts_devices else device.capacity.get(meaning.tail, FULL)
    return dict(total)


def managed(types: DeviceTypes) -> frozenset[str]:
    """The resources of own types, which kube-scheduler leaves to the extender if a node does not state them."""
    return frozenset(name for name, meaning in types.resources.items() if not meaning.type.domains)


def shortages(asked: Amounts, has: Amounts, used: Amounts) -> Iterable[tuple[str, int, int, int]]:
    """Find what a node lacks: resource, amount asked, free, and in total."""
    for name in sorted(asked):
        total = has.get(name, 0)
        free = total - used.get(name, 0)
        if asked[name] > max(free, 0):
            yield name, asked[name], max(free, 0), total


_CORDONED: Final = "the node is cordoned (spec.unschedulable)"
_TAINTED: Final = "the Pod does not tolerate the taint"
_UNSELECTED: Final = "the Pod's nodeSelector or required node affinity does not match the node's labels"
_UNREADY: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_HARD: Final = frozenset({"NoSchedule", "NoExecute"})
_MILLI: Final = 1000
_MAX_NAMED: Final = 16
_BYTES: Final = ("memory", "ephemeral-storage", "gpu-memory")


@dataclass(frozen=True, slots=True)
class NodeCandidate:
    """The part of a node that the predicates read.

    `allocatable` has amounts by resource, in milli-CPUs, bytes and units.
    """

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    unschedulable: bool
    allocatable: Mapping[str, int]


def candidate(node: Mapping[str, Any], allocatable: Mapping[str, int]) -> NodeCandidate:
    """Make a candidate from a Node object."""
    metadata, spec = node["metadata"], node.get("spec") or {}
    taints = tuple(spec.get("taints") or ())
    unschedulable = bool(spec.get("unschedulable"))
    return NodeCandidate(metadata["name"], metadata.get("labels") or {}, taints, unschedulable, allocatable)


def closed_to_some(node: NodeCandidate) -> bool:
    """Whether a node may refuse a Pod that has no node selection and for which it has enough."""
    return node.unschedulable or any(taint.get("effect") in _HARD for taint in node.taints)


def why_not(
    spec: Mapping[str, Any], asked: Mapping[str, int], node: NodeCandidate, used: Mapping[str, int]
) -> str | None:
    """Why a Pod does not fit on a node; None if it does.

    `asked` is the sum of the Pod's requests, `used` that of the node's Pods.
    """
    tolerations = spec.get("tolerations") or ()
    if node.unschedulable and not tolerated(UNSCHEDULABLE, tolerations):
        return _CORDONED
    for taint in node.taints:
        if taint.get("effect") in _HARD and not tolerated(taint, tolerations):
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"{_TAINTED} {taint['key']}{value}:{taint['effect']}"
    if not may_land(spec, node.name, node.labels):
        return _UNSELECTED
    short = [
        _lacks(name, amount, free, total)
        if name in node.allocatable
        else f"{name}: {_told(name, amount)} requested, and the node states none in status.allocatable"
        for name, amount, free, total in shortages(asked, node.allocatable, used)
    ]
    return f"not enough {'; '.join(short)}" if short else None


def _lacks(name: str, amount: int, free: int, total: int) -> str:
    alike = _told(name, amount) == _told(name, free)  # they differ by less than what is rounded
    requested, left = (_told(name, one, exact=alike) for one in (amount, free))
    return f"{name}: {requested} requested, {left} of {_told(name, total)} free"


def _told(name: str, amount: int, *, exact: bool = False) -> str:
    if name == CPU:
        whole, rest = divmod(amount, _MILLI)
        return f"{amount}m" if rest else str(whole)
    return in_gib(amount, stated=exact) if name.rpartition("/")[2] in _BYTES else str(amount)


def unready(nodes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say which Nodes are not Ready and yet take Pods, because no taint says so; one sentence, or none.

    kube-scheduler looks at taints alone. The control plane adds them to a Node that is not Ready.
    """
    found = []
    for node in nodes:
        conditions = (node.get("status") or {}).get("conditions") or ()
        ready = next((one.get("status") for one in conditions if one.get("type") == "Ready"), "True")
        taints = (node.get("spec") or {}).get("taints") or ()
        if ready != "True" and not any(taint.get("key") in _UNREADY for taint in taints):
            found.append(node["metadata"]["name"])
    match sorted(found):
        case []:
            return
        case [one]:
            what = f"Node {one} is"
        case several:
            what = f"Nodes {some(several, _MAX_NAMED)} are"
    yield (
        f"{what} not Ready, without the taint {_UNREADY[0]}: counted as taking Pods, because kube-scheduler looks at "
        "taints alone; add the taint if that is wrong"
    )


def best(scores: Mapping[str, int], among: Callable[[Sequence[str]], str] = min) -> str:
    """Choose the node with the highest score.

    `among` chooses among the sorted names of nodes with equal scores.
    """
    highest = max(scores.values())
    return among(sorted(name for name, score in scores.items() if score == highest))


def grouped(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Write reasons as lines; nodes with the same reason share one.

    Nodes that are not meant for the Pod come last: what the others lack says more than a control plane's taint.
    """
    nodes: dict[str, list[str]] = {}
    for node in sorted(reasons):
        nodes.setdefault(reasons[node].removeprefix(f"{node}: "), []).append(node)
    ordered = sorted(nodes.items(), key=lambda one: one[0].startswith((_CORDONED, _TAINTED, _UNSELECTED)))
    return tuple(f"{some(names, _MAX_NAMED)}: {reason}" for reason, names in ordered)


Plain = Callable[[Mapping[str, Any], Mapping[str, int], Sequence[NodeCandidate], Mapping[str, Mapping[str, int]]], str]
"""Of a Pod's spec, the sum of its requests, the nodes on which it fits, and what is requested on nodes: a name."""

_Ask = tuple[str, int, bool]  # a resource, an amount, and whether a node that does not state it has enough
_MAX_ASKED: Final = 64  # what Pods ask for, and for which the nodes are remembered (make bench NAME=simulate)
_FINISHED: Final = ("Succeeded", "Failed")


def finished(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod has ended and therefore holds nothing."""
    return (pod.get("status") or {}).get("phase") in _FINISHED


def _told_apart(pod: Mapping[str, Any], only: str | None) -> bytes:
    """What distinguishes a Pod from another one in the search for a node; Pods of one template are alike."""
    metadata = pod["metadata"]
    about = {key: metadata.get(key) for key in ("namespace", "labels", "annotations")}
    return hashlib.sha256(orjson.dumps([only, about, pod["spec"]], option=orjson.OPT_SORT_KEYS)).digest()


class KubeScheduler:
    """Finds nodes for Pods.

    `managed` are resources that only the extender accounts for if a Node does not state them. `plain` chooses a
    node for a Pod of another scheduler among those on which it fits; by default it is the first by name. `kinds` has
    the device type of each resource of devices: of what a node lacks of one type, one resource is told.
    """

    def __init__(
        self,
        way: api.Api,
        schedulers: SchedulerNames,
        among: Callable[[Sequence[str]], str],
        managed: frozenset[str] = frozenset(),
        plain: Plain | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self._api = way
        self._kinds = kinds or {}
        self._schedulers = schedulers
        self._among = among
        self._managed = managed
        self._plain = plain
        self._candidates: dict[str, NodeCandidate] = {}
        self._names: list[str] = []
        self._used: dict[str, Counter[str]] = {}
        # What a Pod asks for -> the nodes that have enough for it, by name.
        self._enough: dict[frozenset[_Ask], list[str]] = {}
        self._fussy: set[str] = set()  # nodes that may refuse a Pod for which they have enough
        # A Pod -> why it fits nowhere; forgotten when a Node or what is requested there changes.
        self._refused: dict[bytes, tuple[str, ...]] = {}

    def put_node(self, node: Mapping[str, Any], devices: Iterable[Device]) -> None:
        """Add a Node.

        Raises:
            BadQuantityError: one of its amounts is not a quantity.
        """
        name = node["metadata"]["name"]
        if name not in self._candidates:
            insort(self._names, name)
        self._candidates[name] = new = candidate(node, allocatable(node, devices))
        if closed_to_some(new):
            self._fussy.add(name)
        else:
            self._fussy.discard(name)
        self._changed(name)

    def count(self, pod: Mapping[str, Any]) -> None:
        """Count a Pod's requests on its node, if it is bound and not finished.

        Raises:
            BadQuantityError: a request is not a quantity.
        """
        self._add(pod, 1)

    def forget(self, pod: Mapping[str, Any]) -> None:
        """Stop counting a Pod's requests."""
        self._add(pod, -1)

    def _add(self, pod: Mapping[str, Any], times: int) -> None:
        node = pod["spec"].get("nodeName")
        if not node or finished(pod):
            return
        used = self._used.setdefault(node, Counter())
        for name, amount in pod_amounts(pod["spec"]).items():
            used[name] += amount * times
        self._changed(node)

    def _changed(self, node: str) -> None:
        """A Node, or what is requested there, is another one."""
        self._refused.clear()
        if node not in self._candidates:
            return
        for asks, names in self._enough.items():
            at = bisect_left(names, node)
            known, enough = names[at : at + 1] == [node], self._has(node, asks)
            if enough and not known:
                names.insert(at, node)
            elif known and not enough:
                del names[at]

    def _has(self, node: str, asks: Iterable[_Ask]) -> bool:
        """Whether a node has enough left for these asks."""
        total = self._candidates[node].allocatable
        used: Mapping[str, int] = self._used.get(node, {})
        return all(
            unstated if what not in total else used.get(what, 0) + much <= total[what] for what, much, unstated in asks
        )

    def extends(self, pod: Mapping[str, Any]) -> bool:
        """Whether the extender is called for a Pod."""
        return pod["spec"]["schedulerName"] in self._schedulers

    def would_fit(self, pod: Mapping[str, Any], node: str, without: Iterable[Mapping[str, Any]]) -> bool:
        """Whether a Pod would fit on a node if some of its Pods left, by all that kube-scheduler judges itself."""
        known = self._candidates.get(node)
        if known is None:
            return False
        used = Counter(self._used.get(node, {}))
        for one in without:
            used.subtract(pod_amounts(one["spec"]))
        left = self._managed if self.extends(pod) else frozenset()
        asked = pod_amounts(pod["spec"])
        counted = {what: much for what, much in asked.items() if what in known.allocatable or what not in left}
        return why_not(pod["spec"], counted, known, used) is None

    async def find(self, pod: Mapping[str, Any], only: str | None = None) -> str | tuple[str, ...]:
        """Find a node for a Pod.

        Returns:
            The node's name, or why there is none, a line each.
        """
        spec = pod["spec"]
        if spec.get("schedulingGates"):
            gates = ", ".join(str(gate.get("name")) for gate in spec["schedulingGates"])
            return (f"the Pod waits for its schedulingGates: {gates}",)
        alike = _told_apart(pod, only)
        known = self._refused.get(alike)
        if known is not None:
            return known
        found = await self._find(pod, only)
        if isinstance(found, tuple):
            self._refused[alike] = found
        return found

    async def _find(self, pod: Mapping[str, Any], only: str | None) -> str | tuple[str, ...]:
        spec = pod["spec"]
        asked = pod_amounts(spec)
        left = self._managed if self.extends(pod) else frozenset()
        names = self._candidates_of(spec, only)
        fitting = self._fitting(spec, asked, left, names)
        reasons: dict[str, str] = {}
        if fitting and self.extends(pod):
            scores = await self._extend(pod, fitting, reasons)
            if scores:
                return best(scores, self._among)
        elif fitting and self._plain is not None:
            return self._plain(spec, asked, [self._candidates[name] for name in fitting], self._used)
        elif fitting:
            return self._among(fitting)
        for name in set(names).difference(fitting):
            node = self._candidates[name]
            counted = {what: much for what, much in asked.items() if what in node.allocatable or what not in left}
            used: Mapping[str, int] = self._used.get(name, {})
            told = set[str]()
            for what, *_ in shortages(counted, node.allocatable, used):
                kind = self._kinds.get(what, what)
                if kind in told:  # another amount of the same devices
                    del counted[what]
                told.add(kind)
            why = why_not(spec, counted, node, used)
            if why is not None:
                reasons[name] = why
        return grouped(reasons) or ("there is no Node",)

    def _candidates_of(self, spec: Mapping[str, Any], only: str | None) -> Sequence[str]:
        """The nodes that are looked at: of a DaemonSet's Pod its own alone."""
        wanted = only_node(spec)
        if wanted in self._candidates and only in {None, wanted}:
            return [wanted]
        return self._names if only is None else [only]

    def _fitting(
        self, spec: Mapping[str, Any], asked: Mapping[str, int], left: AbstractSet[str], names: Iterable[str]
    ) -> Sequence[str]:
        """The nodes on which a Pod fits, by name; `why_not` has the reason for each of the others.

        `left` are resources that do not count on a node that does not state them.
        """
        asks = frozenset((what, much, what in left) for what, much in asked.items() if much)
        if names is self._names:
            fitting: Sequence[str] = self._with_enough(asks)
        else:
            fitting = [name for name in names if self._has(name, asks)]
        asked_of = set(fitting) if selects(spec) else self._fussy
        if not asked_of:
            return fitting
        return [
            name for name in fitting if name not in asked_of or why_not(spec, {}, self._candidates[name], {}) is None
        ]

    def _with_enough(self, asks: frozenset[_Ask]) -> tuple[str, ...]:
        """The nodes that have enough for these asks, by name; remembered, because many Pods ask for the same."""
        if asks not in self._enough:
            if len(self._enough) >= _MAX_ASKED:
                self._enough.clear()
            self._enough[asks] = [name for name in self._names if self._has(name, asks)]
        return tuple(self._enough[asks])

    async def _extend(self, pod: Mapping[str, Any], names: Sequence[str], reasons: dict[str, str]) -> dict[str, int]:
        """Call the extender as kube-scheduler does: filter these nodes, and score the rest."""
        answer = await self._api.post(api.FILTER, {"Pod": pod, "Nodes": None, "NodeNames": names})
        if answer.get("Error"):
            reasons.update(dict.fromkeys(names, f"the extender failed: {answer['Error']}"))
            return {}
        reasons.update(answer["FailedNodes"])
        reasons.update(answer["FailedAndUnresolvableNodes"])
        left = answer["NodeNames"]
        if len(left) <= 1:  # which kube-scheduler does not have scored
            return dict.fromkeys(left, 0)
        scored = await self._api.post(api.PRIORITIZE, {"Pod": pod, "Nodes": None, "NodeNames": left})
        return {entry["Host"]: entry["Score"] for entry in scored}


Raw = dict[str, Any]
_MAX_NODES: Final = 100  # candidates that are compared, as in kube-scheduler's defaults for up to 1,000 nodes
_MAX_NAMED_VICTIMS: Final = 4
_NEVER: Final = "Never"


class Preemption:
    """Finds whom Pods would evict, in a cluster that does not change meanwhile."""

    def __init__(self, way: api.Api, scheduler: KubeScheduler, pods: Iterable[Raw]) -> None:
        self._api = way
        self._scheduler = scheduler
        self._there: dict[str, list[Raw]] = {}
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node and not finished(pod) and pod["metadata"].get("deletionTimestamp") is None:
                self._there.setdefault(node, []).append(pod)
        self._least = min((_priority(pod) for on in self._there.values() for pod in on), default=math.inf)

    async def told(self, pod: Raw, only: str | None) -> str:
        """Say whom a Pod would evict, and from which node; "" if that would not help it, or it evicts nobody."""
        spec = pod["spec"]
        if spec.get("preemptionPolicy") == _NEVER or _priority(pod) <= self._least or spec.get("schedulingGates"):
            return ""
        chosen: dict[str, list[Raw]] = {}
        for node in sorted(self._there) if only is None else [only]:
            victims = self._victims(pod, node)
            if victims is not None and self._scheduler.extends(pod):
                victims = await self._extended(pod, node, victims)
            if victims:
                chosen[node] = victims
                if len(chosen) == _MAX_NODES:
                    break
        if not chosen:
            return ""
        node = min(chosen, key=lambda name: _cost(chosen[name], name))
        names = sorted(f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in chosen[node])
        more = f" and {len(names) - _MAX_NAMED_VICTIMS} more Pods" if len(names) > _MAX_NAMED_VICTIMS else ""
        return (
            f"would fit on {node} by preempting {', '.join(names[:_MAX_NAMED_VICTIMS])}{more}; nobody is evicted here"
        )

    def _victims(self, pod: Raw, node: str) -> list[Raw] | None:
        """Those that must go for what kube-scheduler counts itself; None if that would not suffice."""
        lower = [one for one in self._there.get(node, ()) if _priority(one) < _priority(pod)]
        if not lower or not self._scheduler.would_fit(pod, node, lower):
            return None
        gone = list(lower)
        by_uid = sorted(lower, key=lambda one: str(one["metadata"]["uid"]))
        for one in sorted(by_uid, key=_priority, reverse=True):
            rest = [other for other in gone if other is not one]
            if self._scheduler.would_fit(pod, node, rest):
                gone = rest
        return gone

    async def _extended(self, pod: Raw, node: str, victims: Sequence[Raw]) -> list[Raw]:
        """The victims that the extender chooses; none where that would not help."""
        uids = {"Pods": [{"UID": one["metadata"]["uid"]} for one in victims], "NumPDBViolations": 0}
        answer = await self._api.post(api.PREEMPT, {"Pod": pod, "NodeNameToMetaVictims": {node: uids}})
        chosen = answer["NodeNameToMetaVictims"].get(node, {"Pods": []})
        by_uid = {one["metadata"]["uid"]: one for one in self._there[node]}
        return [by_uid[one["UID"]] for one in chosen["Pods"]]


def _cost(victims: Sequence[Raw], node: str) -> tuple[int, int, int, str]:
    priorities = [_priority(one) for one in victims]
    return max(priorities), sum(priorities), len(victims), node


def _priority(pod: Mapping[str, Any]) -> int:
    priority = pod["spec"].get("priority")
    return priority if isinstance(priority, int) else 0
