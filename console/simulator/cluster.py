"""A cluster in memory: runs the webhook's own code, and stands in for the API server and kube-scheduler."""

import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, Self

import msgspec

from allocator.amounts import BadQuantityError, pod_amounts
from allocator.request.pod import is_ours
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import GANG_GATE, Mode, is_allocation_annotation
from allocator.wire import gang, nodetopology
from console.simulator import api, apiserver
from console.simulator.account import Account, ClusterObjects
from console.simulator.apiserver import AddedDefault
from console.simulator.documents import InputError
from console.simulator.running import MAX_TEMPLATES, Admitted, PodReader, assume, template_of, unnamed_products
from console.simulator.scheduler import KubeScheduler, Plain, Preemption, allocatable, finished, managed
from koordgate.kube.resource import PLUGIN_POD_GROUPS
from webhook.assembly import Parts
from webhook.boundedcache import BoundedCache
from webhook.ledger.store import MemoryStore
from webhook.settings import WebhookSettings, adoption_of, types_of, without_gathering
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.feed import Complain, DeviceFeed, GroupFeed, NodeFeed, PodFeed, TopologyFeed
from webhook.view.livepods import LivePods
from webhook.view.podinfo import OtherPod, PodInfo, read_either

Raw = dict[str, Any]
_STOCK_SCHEDULER: Final = "system:kube-scheduler"
_DEFAULTS: Final = WebhookSettings()
_MAX_PREEMPTING: Final = 1000  # templates of Pods that fit nowhere for which victims are named


class PodFate(StrEnum):
    """The stage that a Pod reached."""

    STANDING = "was there"
    ADMITTED = "admitted"
    BOUND = "bound"
    DENIED = "refused at admission"
    NOT_CREATED = "not created"
    UNSCHEDULABLE = "no node"
    BIND_REFUSED = "refused at bind"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome for a Pod.

    Attributes:
        pod: the Pod as it is in the cluster; as given if admission refused it.
        state: how far it got.
        reasons: why it got no further, a line each; empty if it is bound.
        warnings: admission's warnings for its author.
        given: the Pod as its author wrote it.
        added: devices that LimitRanges added to that.
    """

    pod: Raw
    state: PodFate
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    given: Mapping[str, Any] | None = None
    added: tuple[AddedDefault, ...] = ()

    @property
    def message(self) -> str:
        """The reasons as one line."""
        return "; ".join(self.reasons)


def stands(pod: Mapping[str, Any]) -> bool:
    """Whether a Pod exists already and must not be created: it is bound, finished, or being deleted."""
    return bool(pod["spec"].get("nodeName")) or finished(pod) or pod["metadata"].get("deletionTimestamp") is not None


def gates(pod: Mapping[str, Any]) -> list[Raw]:
    """The scheduling gates of a Pod."""
    return list(pod["spec"].get("schedulingGates") or ())


class Pods(LivePods):
    """The Pods of the cluster, in place of the API server from which the webhook reads live Pods."""

    def __init__(self, types: DeviceTypes) -> None:
        self._types = types
        self.by_name: dict[tuple[str, str], Raw] = {}

    async def find(self, namespace: str, name: str, deadline: float) -> PodInfo | OtherPod | None:  # noqa: ARG002
        """Read a Pod."""
        pod = self.by_name.get((namespace, name))
        return None if pod is None else read_either(pod, self._types)


class OfflineCluster:
    """A cluster in memory. Make one with `in_process` or `over_https`, which differ in how the webhook is called.

    `among` chooses among the sorted names of nodes with equal scores, `plain` nodes for Pods of other schedulers.
    `only` is the one node that is a candidate; `notes` has what could not be used, a sentence each.
    """

    def __init__(
        self,
        parts: Parts,
        pods: Pods,
        way: api.Api,
        among: Callable[[Sequence[str]], str] = min,
        plain: Plain | None = None,
    ) -> None:
        self.parts = parts
        self.only: str | None = None
        self.notes: list[str] = []
        self._pods = pods
        self._api = way
        self._nodes: dict[str, Raw] = {}
        self._devices: dict[str, Raw] = {}
        self._topologies: dict[str, Raw] = {}
        scheduler = parts.settings.scheduler
        kinds = {name: known.type.name for name, known in parts.types.resources.items()}
        self._scheduler = KubeScheduler(way, scheduler.names, among, managed(parts.types), plain, kinds)
        view, types = parts.cluster, parts.types
        topology_feed = TopologyFeed(view, self._complain(nodetopology.KIND))
        self._feeds = {
            "Node": (self._nodes, NodeFeed(view, types, parts.pools, self._complain("Node"))),
            "Device": (self._devices, DeviceFeed(view, types, self._complain("Device"))),
            nodetopology.KIND: (self._topologies, topology_feed),
        }
        self._claim_feeds = {
            "ResourceSlice": SliceFeed(view, self._complain("ResourceSlice")),
            "ResourceClaim": ClaimFeed(view),
        }
        self._group_feed = GroupFeed(view, PLUGIN_POD_GROUPS.group, self._complain(gang.KIND))
        self._pod_feed = PodFeed(view, parts.reconciler.ended, parts.reconciler.bound, types, PodReader())
        # A template -> what admission made of its Pods; forgotten when Nodes or namespaces change.
        self._admissions: BoundedCache[bytes, Admitted] = BoundedCache(MAX_TEMPLATES)
        self._plugins = apiserver.ApiPlugins(parts, self._complain("LimitRange"), self.notes.append)
        parts.gang_controller.lift = self._lift

    @classmethod
    def in_process(
        cls, settings: WebhookSettings = _DEFAULTS, seed: int | None = None, plain: Plain | None = None
    ) -> Self:
        """Make a cluster whose webhook is called directly.

        Args:
            settings: the webhook's settings.
            seed: chooses at random among nodes of equal score, as kube-scheduler does if the extender names all nodes
                that fit (scheduler.mostNodes 0), which it then does here. If None, the first by name is chosen.
            plain: chooses nodes for the Pods of other schedulers; None for the first by name on which they fit.
        """
        parts, pods = _assembled(settings if seed is None else _naming_all(settings))
        return cls(parts, pods, api.InProcess(parts), _chooser(seed), plain)

    @classmethod
    @contextlib.asynccontextmanager
    async def over_https(cls, settings: WebhookSettings = _DEFAULTS) -> AsyncIterator[tuple[Self, api.Https]]:
        """Serve the webhook on loopback, and yield a cluster that calls it over HTTPS, with the client."""
        parts, pods = _assembled(settings)
        async with api.serving(parts) as way:
            yield cls(parts, pods, way), way

    @property
    def standing(self) -> ClusterObjects:
        """All objects of the cluster, Pods in the order of their creation."""
        found = ([*self._nodes.values()], [*self._devices.values()], [*self._topologies.values()])
        return ClusterObjects(*found, [*self._pods.by_name.values()])

    def account(self) -> Account:
        """Count who holds what."""
        return Account(self.standing, self.parts.types, self.parts.pools, adoption_of(self.parts.settings))

    @property
    def node_names(self) -> list[str]:
        """The names of the Nodes."""
        return sorted(self._nodes)

    @property
    def pods(self) -> list[Raw]:
        """All Pods, in the order of their creation."""
        return list(self._pods.by_name.values())

    async def load(self, objects: Iterable[Mapping[str, Any]]) -> list[Result]:
        """Load the cluster's objects, and Pods that are bound already.

        These Pods hold what their annotations state, those of other products if the settings count them; for Pods of a
        device plugin, idle devices are assumed.

        Returns:
            The loaded Pods.

        Raises:
            InputError: an amount of a Node, or of a Pod on it, is not a quantity.
        """
        loaded = [(apiserver.with_defaults(obj), obj) for obj in objects]
        try:
            self._take_in(obj for obj, _ in loaded)
            for name, node in self._nodes.items():
                devices = self.parts.cluster.snapshot(name).devices
                self._scheduler.put_node(node, devices)
                self.parts.cluster.loads.put_node(name, allocatable(node, devices))
            results = [Result(pod, PodFate.STANDING, given=given) for pod, given in loaded if pod["kind"] == "Pod"]
            for result in results:
                self._plugins.priorities.complete(result.pod)
                self._put(result.pod)
            pods = [result.pod for result in results]
            self.notes.extend(unnamed_products(pods, adoption_of(self.parts.settings)))
            found = assume(pods, self.parts.cluster.snapshot, self.parts.types)
            assumed = {pod["metadata"]["uid"]: pod for pod in found}
            for pod in found:
                self._put(pod)
            results = [
                replace(result, pod=assumed.get(result.pod["metadata"]["uid"], result.pod)) for result in results
            ]
        except BadQuantityError as error:
            raise InputError(f"{error}; correct it") from error
        await self.parts.reconciler.reconcile()
        return results

    def _take_in(self, objects: Iterable[Raw]) -> None:
        """Show all objects but Pods to the webhook, as its watches would."""
        self._admissions.clear()
        for obj in objects:
            if obj["kind"] in apiserver.KINDS:
                self._plugins.put(obj)
            elif obj["kind"] == gang.KIND:
                self._group_feed.put(obj)
            elif obj["kind"] in self._claim_feeds:
                self._claim_feeds[obj["kind"]].put(obj)
            elif obj["kind"] in self._feeds:
                known, feed = self._feeds[obj["kind"]]
                known[obj["metadata"]["name"]] = obj
                feed.put(obj)

    async def submit(self, pod: Mapping[str, Any]) -> Result:
        """Create a Pod: admit it, find a node, bind it."""
        result = await self.admit(pod)
        return await self.schedule(result) if result.state is PodFate.ADMITTED else result

    async def settle(self, results: Iterable[Result]) -> list[Result]:
        """Hold room for the gangs that are bound as a whole, as far as there is any, and schedule their Pods.

        Then the reasons of each Pod that fits nowhere say whom it would evict.

        Returns:
            The same, with what has become of these Pods.
        """
        if self.parts.settings.gangs.all_or_nothing:
            await self.parts.gang_controller.round()
        settled = []
        for result in results:
            metadata = result.pod["metadata"]
            now = self._pods.by_name.get((metadata.get("namespace", ""), metadata["name"]))
            if now is not None and result.state is PodFate.UNSCHEDULABLE and gates(result.pod) != gates(now):
                settled.append(await self.schedule(replace(result, pod=now, reasons=())))
            else:
                settled.append(result)
        return await self._with_victims(settled)

    async def _with_victims(self, results: Iterable[Result]) -> list[Result]:
        """Add to the reasons of Pods that fit nowhere whom each would evict."""
        preemption = Preemption(self._api, self._scheduler, self._pods.by_name.values())
        known: dict[bytes, str] = {}
        told = []
        for result in results:
            why = ""
            if result.state is PodFate.UNSCHEDULABLE:
                template = template_of(result.pod)
                if template not in known and len(known) < _MAX_PREEMPTING:
                    known[template] = await preemption.told(result.pod, self.only)
                why = known.get(template, "")
            told.append(replace(result, reasons=(*result.reasons, why)) if why else result)
        return told

    async def _lift(self, pod: PodInfo) -> None:
        """Remove koordgate's scheduling gate from a Pod."""
        known = self._pods.by_name[pod.namespace, pod.name]
        left = [gate for gate in gates(known) if gate != {"name": GANG_GATE}]
        self._put({**known, "spec": {**known["spec"], "schedulingGates": left}})

    async def schedule(self, result: Result) -> Result:
        """Find a node for an admitted Pod, and bind it."""
        metadata = result.pod["metadata"]
        found = await self._scheduler.find(result.pod, self.only)
        if isinstance(found, tuple):
            return replace(result, state=PodFate.UNSCHEDULABLE, reasons=found)
        bound = await self.bind(metadata["namespace"], metadata["name"], found)
        return replace(result, pod=bound.pod, state=bound.state, reasons=bound.reasons)

    async def admit(self, pod: Mapping[str, Any]) -> Result:
        """Create a Pod as the API server does, without scheduling it."""
        metadata = pod["metadata"]
        namespace, name = metadata.get("namespace") or "default", metadata["name"]
        if (namespace, name) in self._pods.by_name:
            return Result(dict(pod), PodFate.DENIED, (f"Pod {namespace}/{name} exists already",), given=pod)
        template = template_of(pod)
        known = self._admissions.get(template)
        if known is None:
            made = apiserver.with_defaults(pod)
            refusal, added = self._plugins.before(made)
            if refusal:
                return Result(dict(pod), PodFate.DENIED, (refusal,), given=pod)
            reviewed = await self._reviewed_new(made, pod)
            if isinstance(reviewed, Result):
                return replace(reviewed, added=added)
            made, warnings = reviewed.object, reviewed.warnings
            self._admissions.put(template, Admitted(made, warnings, added))
        else:
            uid = metadata.get("uid") or apiserver.uid("Pod", namespace, name)
            made, warnings, added = known.for_another(pod, uid), known.warnings, known.added
        refusal = self._plugins.after(made)
        if refusal:
            return Result(dict(pod), PodFate.DENIED, (refusal,), warnings, pod, added)
        self._put(made)
        return Result(made, PodFate.ADMITTED, (), warnings, pod, added)

    async def _reviewed_new(self, made: Raw, given: Mapping[str, Any]) -> apiserver.ReviewVerdict | Result:
        """Show a new Pod to the webhooks; a Result where it is refused."""
        verdict = await self.review(made)
        if verdict.refusal:
            return Result(dict(given), PodFate.DENIED, (verdict.refusal,), verdict.warnings, given)
        if refusal := self._plugins.runtimes.write(verdict.object):
            return Result(dict(given), PodFate.DENIED, (refusal,), verdict.warnings, given)
        try:
            pod_amounts(verdict.object["spec"])
        except BadQuantityError as error:
            about = f"Pod {made['metadata']['namespace']}/{made['metadata']['name']}: {error}"
            return Result(dict(given), PodFate.DENIED, (about,), verdict.warnings, given)
        return verdict

    async def review(self, pod: Raw) -> apiserver.ReviewVerdict:
        """Show a new Pod, which has a name and a namespace, to the webhooks that the chart calls for it."""
        mode = self.parts.modes.of(pod["metadata"]["namespace"])
        if mode is Mode.OFF:
            return apiserver.ReviewVerdict("", pod)
        if mode is Mode.SHADOW:
            told = await self._ask(api.SHADOW_POD, pod, apiserver.AUTHOR) if self._reviewed(pod) else None
            return apiserver.ReviewVerdict("", pod, told.warnings if told is not None else ())
        warnings: tuple[str, ...] = ()
        for path in (api.MUTATE_POD, api.VALIDATE_POD) if self._reviewed(pod) else (api.WARN_POD,):
            verdict = await self._ask(path, pod, apiserver.AUTHOR)
            warnings += verdict.warnings
            if verdict.refusal:
                return replace(verdict, warnings=warnings)
            pod = verdict.object
        return apiserver.ReviewVerdict("", pod, warnings)

    async def bind(self, namespace: str, name: str, node: str, username: str | None = None) -> Result:
        """Bind an admitted Pod to a node.

        `username` is the binder: by default the Pod's own scheduler.
        """
        pod = self._pods.by_name[namespace, name]
        made = apiserver.binding(pod, node)
        ours = self.parts.settings.scheduler
        own = ours.username if pod["spec"]["schedulerName"] == ours.name else _STOCK_SCHEDULER
        who = username or own
        for path in self._binding_reviews(namespace, ours=who == ours.username):
            verdict = await self._ask(path, made, who)
            if verdict.refusal:
                return Result(pod, PodFate.BIND_REFUSED, (verdict.refusal,))
            made = verdict.object
        bound = apiserver.bound(pod, made)
        self._put(bound)
        return Result(bound, PodFate.BOUND)

    def _binding_reviews(self, namespace: str, *, ours: bool) -> tuple[str, ...]:
        """The webhooks that the chart calls for a Binding: our scheduler's is decided in every mode."""
        if namespace in self.parts.modes.exempt:
            return ()
        guarded = (api.VALIDATE_BINDING,) if self.parts.modes.enforced(namespace) else ()
        return (api.MUTATE_BINDING, api.VALIDATE_BINDING) if ours else guarded

    async def delete(self, namespace: str, name: str) -> None:
        """Delete a Pod, and release what it held."""
        await self.delete_all([(namespace, name)])

    async def delete_all(self, names: Iterable[tuple[str, str]], *, settle: bool = True) -> None:
        """Delete Pods by namespace and name, and release what they held; without `settle`, they held nothing."""
        for name in names:
            pod = self._pods.by_name.pop(name)
            self._plugins.quotas.drop(pod)
            self._scheduler.forget(pod)
            self._pod_feed.drop(pod)
        if settle:
            await self.parts.reconciler.reconcile()

    def taints(self, node: str) -> Sequence[Mapping[str, Any]]:
        """The taints of a Node."""
        return (self._nodes[node].get("spec") or {}).get("taints") or ()

    def taint(self, node: str, taints: Sequence[Mapping[str, Any]]) -> None:
        """Give a Node these taints in place of those it has."""
        known, feed = self._feeds["Node"]
        known[node] = obj = {**known[node], "spec": {**(known[node].get("spec") or {}), "taints": [*taints]}}
        feed.put(obj)
        devices = self.parts.cluster.snapshot(node).devices
        self._scheduler.put_node(obj, devices)
        self.parts.cluster.loads.put_node(node, allocatable(obj, devices))
        self._admissions.clear()

    async def _ask(self, path: str, obj: Raw, username: str) -> apiserver.ReviewVerdict:
        return apiserver.verdict(obj, await self._api.post(path, apiserver.review(obj, path, username)))

    def _reviewed(self, pod: Mapping[str, Any]) -> bool:
        """Whether the chart's webhooks are called for a Pod that is created."""
        annotations = pod["metadata"].get("annotations") or {}
        namespace = pod["metadata"]["namespace"]
        types = self.parts.types.within(namespace)
        ours = is_ours(pod, types) or any(is_allocation_annotation(key) for key in annotations)
        return ours or self.parts.scope.includes(namespace, pod, types)

    def _put(self, pod: Raw) -> None:
        """Store a Pod, and pass it to the webhook as a watch would."""
        key = pod["metadata"]["namespace"], pod["metadata"]["name"]
        known = self._pods.by_name.get(key)
        if known is not None:
            self._scheduler.forget(known)
        self._scheduler.count(pod)
        self._plugins.quotas.put(pod, ended=finished(pod))
        self._pods.by_name[key] = pod
        self._pod_feed.put(pod)

    def _complain(self, kind: str) -> Complain:
        """Make the function that notes what could not be read of objects of a kind."""

        def complain(name: str, problems: tuple[str, ...]) -> None:
            self.notes.extend(f"{kind} {name}: {problem}" for problem in problems)

        return complain


def _assembled(settings: WebhookSettings) -> tuple[Parts, Pods]:
    pods = Pods(types_of(settings))
    return Parts(without_gathering(settings), MemoryStore(), pods, clock=lambda: 0), pods


def _naming_all(settings: WebhookSettings) -> WebhookSettings:
    return msgspec.structs.replace(settings, scheduler=msgspec.structs.replace(settings.scheduler, most_nodes=0))


def _chooser(seed: int | None) -> Callable[[Sequence[str]], str]:
    return min if seed is None else random.Random(seed).choice  # noqa: S311 - no secret
