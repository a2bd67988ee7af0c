"""A cluster on a fake API server, and one replica's parts: the test decides what the replica has seen."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import orjson
from builders import GIB, container, device_entry, device_object, pod
from fake_kube import FakeKube

from allocator.request.cpus import QOS_LABEL
from allocator.vocabulary.cputopology import CpuTopology
from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.wire.nodeallocation import read_spec
from allocator.wire.nodetopology import NodeTopology, NumaZone, write_node_topology
from koordgate.breaks import at_once
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import (
    DEVICES,
    EVENTS,
    NODE_ALLOCATIONS,
    NODES,
    PLUGIN_POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    TOPOLOGIES,
)
from webhook import patch
from webhook.admission.translate import TranslationPolicy, translate
from webhook.assembly import Parts
from webhook.ledger.kube import RecordHandler, cluster_store
from webhook.review import Request, Response
from webhook.scheduling.account import Occasion
from webhook.scheduling.fairness import Effort
from webhook.scheduling.ranking import Ranked, Ranking
from webhook.settings import WebhookSettings, types_of
from webhook.view.claimfeed import ClaimFeed, SliceFeed
from webhook.view.cluster import ClusterView, SeenObjects
from webhook.view.feed import (
    Complain,
    DeviceFeed,
    GroupFeed,
    NodeFeed,
    PodFeed,
    RecordFeed,
    RuntimeClassFeed,
    TopologyFeed,
)
from webhook.view.livepods import KubeLivePods
from webhook.view.podinfo import PodInfo

Raw = dict[str, Any]
SETTINGS: Final = WebhookSettings()
SCHEDULER: Final = SETTINGS.scheduler.username
US: Final = f"system:serviceaccount:{SETTINGS.identity.namespace}:koordgate"
TENANT: Final = "alice"
POLICY: Final = TranslationPolicy(
    SETTINGS.domain,
    charges=SETTINGS.quota.enabled,
    tolerations=SETTINGS.devices.tolerations,
)
BEGINNING: Final = 1_800_000_000


@dataclass
class Clock:
    """A clock in seconds since the epoch; only the test moves it.

    Attributes:
        now: the moment.
        ahead: by how much the replica's clock is ahead.
    """

    now: int = BEGINNING
    ahead: int = 0

    def __call__(self) -> int:
        return self.now + self.ahead

    def monotonic(self) -> float:
        return float(self.now)


# Objects


def admitted(obj: Raw, memory: int | None = None, policy: TranslationPolicy = POLICY) -> Raw:
    """The Pod as it is stored after `/mutate-pod`."""
    return patch.apply(obj, translate(obj, policy, memory).operations)


def gpu_pod(name: str, percent: int = 50, *, admit: bool = True, **about: Any) -> Raw:
    """A Pod of one container that requests this percentage of a GPU."""
    asked = container(limits={"kubernetes.io/gpu": str(percent)}, requests={"kubernetes.io/gpu": str(percent)})
    made = pod(asked, name=name, **{"uid": f"uid-{name}", **about})
    return admitted(made) if admit else made


def cpu_pod(name: str, cpus: int | str = 2, qos: str = "LSR", *, admit: bool = True, **about: Any) -> Raw:
    """A Pod of one container that requests CPUs (its own, if it is LSR or LSE) and `more` resources."""
    amounts = {"cpu": str(cpus), **about.pop("more", {})}
    labels = {QOS_LABEL: qos, **about.pop("labels", {})}
    made = pod(container(limits=amounts, requests=amounts), name=name, labels=labels, **{"uid": f"uid-{name}", **about})
    return admitted(made) if admit else made


def plain_pod(name: str, **about: Any) -> Raw:
    return pod(name=name, **{"uid": f"uid-{name}", **about})


def applied_again(stored: Raw, manifest: Raw) -> Raw:
    """The Pod as the API server would have it if somebody applied its manifest again, before admission.

    Maps are merged, and lists by name; what the manifest leaves out stays. A limit is the default of its request.
    """

    def merged(there: Any, wanted: Any, key: str = "") -> Any:
        if key in {"containers", "initContainers", "env"}:
            named = {one["name"]: one for one in wanted or ()}
            kept = [merged(one, named.pop(one["name"], {})) for one in there or ()]
            return [*kept, *named.values()] if there or wanted else there
        if not (isinstance(there, dict) and isinstance(wanted, dict)):
            return wanted
        return {
            name: merged(there.get(name), wanted[name], name) if name in wanted else there[name]
            for name in {**there, **wanted}
        }

    made: Raw = merged(stored, manifest)
    for one in (*made["spec"].get("initContainers", ()), *made["spec"]["containers"]):
        if "limits" in one.get("resources", {}):
            one["resources"]["requests"] = {**one["resources"]["limits"], **one["resources"].get("requests", {})}
    return made


def binding(
    name: str,
    node: str,
    *,
    uid: str | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
) -> Raw:
    """A Binding as kube-scheduler writes it: namespace, name, UID and target."""
    metadata: Raw = {"name": name, "namespace": namespace}
    if uid != "":
        metadata["uid"] = f"uid-{name}" if uid is None else uid
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def invalid_pods() -> dict[str, Raw]:
    """Pods whose device requests can never work, each for one reason; none may ever be admitted."""

    def asked(**amounts: Any) -> Raw:
        named = {key.replace("__", "/").replace("_", "-"): amount for key, amount in amounts.items()}
        return pod(container(limits={name.replace("k8s", "kubernetes.io"): a for name, a in named.items()}))

    good = gpu_pod("p")
    forged = gpu_pod("p", annotations={"scheduling.koordinator.sh/device-allocated": "{}"})
    env_lost = gpu_pod("p")
    env_lost["spec"]["containers"][0]["env"] = []
    return {
        "core without memory": asked(k8s__gpu_core="50"),
        "more than a card, not whole": asked(k8s__gpu="150"),
        "a fraction of a device": pod(container(limits={"nvidia.com/gpu": "0.5"})),
        "no number": asked(k8s__gpu="NaN"),
        "negative": asked(k8s__gpu="-50"),
        "nothing": asked(k8s__gpu="0"),
        "ratio and bytes": asked(k8s__gpu_memory_ratio="50", k8s__gpu_memory="8Gi"),
        "counts that disagree": asked(k8s__gpu_core="200", k8s__gpu_memory_ratio="100"),
        "more devices than any node": pod(container(limits={"nvidia.com/gpu": "129"})),
        "two dialects": pod(container(limits={"nvidia.com/gpu": "1", "kubernetes.io/gpu": "50"})),
        "two dialects in two containers": pod(
            container("a", limits={"nvidia.com/gpu": "1"}), container("b", limits={"koordinator.sh/gpu": "50"})
        ),
        "wrong in an init container": pod(container(), init=[container("init", limits={"kubernetes.io/gpu": "101"})]),
        "wrong in a sidecar": pod(
            container(), init=[container("side", limits={"kubernetes.io/gpu": "101"}, restartPolicy="Always")]
        ),
        "for the Pod as a whole": pod(container(), resources={"limits": {"nvidia.com/gpu": "1"}}),
        "request above limit": pod(container(requests={"kubernetes.io/gpu": "60"}, limits={"kubernetes.io/gpu": "50"})),
        "bound at birth": {**good, "spec": {**good["spec"], "nodeName": "n1"}},
        "not translated": pod(container(limits={"nvidia.com/gpu": "1"})),
        "an allocation at birth": forged,
        "without koordgate's environment": env_lost,
    }


# Searches


def rank(
    ranking: Ranking, pod: PodInfo, names: list[str], most: int | None, shunned: AbstractSet[str] = frozenset()
) -> Ranked:
    """Find nodes for a Pod at once."""
    return at_once(ranking.search(pod, names, most, shunned, Effort()))


# Reviews


def asks(
    obj: Mapping[str, Any],
    *,
    username: str = TENANT,
    groups: Iterable[str] = ("system:authenticated",),
    operation: str = "CREATE",
    resource: str = "pods",
    subresource: str = "",
    old: Mapping[str, Any] | None = None,
    dry_run: bool = False,
) -> Request:
    """A review of an object, decoded."""
    metadata = obj.get("metadata") or {}
    return Request(
        uid="review-1",
        operation=operation,
        resource=resource,
        subresource=subresource,
        namespace=metadata.get("namespace", "default"),
        name=metadata.get("name", ""),
        username=username,
        groups=tuple(groups),
        object=obj,
        old_object=old or {},
        dry_run=dry_run,
    )


def binds(
    obj: Mapping[str, Any], *, username: str = SCHEDULER, dry_run: bool = False, old_way: bool = False
) -> Request:
    """A review of a Binding, on pods/binding or (the old way) on bindings."""
    where = {"resource": "bindings"} if old_way else {"resource": "pods", "subresource": "binding"}
    return asks(obj, username=username, dry_run=dry_run, **where)  # type: ignore[arg-type] # two texts


def review(request: Request) -> Raw:
    """The review as the API server sends it."""
    group = {"group": "", "version": "v1", "resource": request.resource}
    asked: Raw = {
        "uid": request.uid,
        "kind": {"group": "", "version": "v1", "kind": request.object.get("kind", "Pod")},
        "resource": group,
        "requestKind": {"group": "", "version": "v1", "kind": request.object.get("kind", "Pod")},
        "requestResource": group,
        "name": request.name,
        "namespace": request.namespace,
        "operation": request.operation,
        "userInfo": {"username": request.username, "groups": list(request.groups)},
        "object": dict(request.object),
        "oldObject": dict(request.old_object) or None,
        "dryRun": request.dry_run,
        "options": None,
    }
    if request.subresource:
        asked["subResource"] = request.subresource
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}


def body(request: Request) -> bytes:
    return orjson.dumps(review(request))


def repeated(first: Response) -> Response:
    """The answer to the same bind once more: all of it is the same, but the audit log is told that it came before."""
    return first._replace(audit={**first.audit, "reason": Occasion.AGAIN})


class World:
    """A cluster and one replica of ours.

    Attributes:
        fake: the API server.
        kube: a client of it.
        clock: the replica's clock.
        parts: the replica's parts.
        complaints: unreadable objects: resource, name -> problems.
    """

    def __init__(self, fake: FakeKube, kube: KubeClient, settings: WebhookSettings = SETTINGS) -> None:
        self.fake = fake
        self.kube = kube
        self.clock = Clock()
        self.complaints: dict[tuple[str, str], tuple[str, ...]] = {}
        self.parts = Parts(
            settings,
            cluster_store(kube),
            KubeLivePods(kube, types_of(settings)),
            kube=kube,
            clock=self.clock,
            monotonic=self.clock.monotonic,
        )
        parts, reporter = self.parts, self.parts.reporter
        cluster, reconciler, assumed = parts.cluster, parts.reconciler, parts.ranking.assumed

        def ended(one: PodInfo) -> None:
            assumed.drop(one.uid)
            reconciler.ended(one)

        def bound(one: PodInfo) -> None:
            assumed.drop(one.uid, one.node)
            reconciler.bound(one)

        self._feeds: dict[Any, Any] = {
            RUNTIME_CLASSES: RuntimeClassFeed(cluster),
            NODES: NodeFeed(cluster, parts.types, parts.pools, self._complain("nodes")),
            DEVICES: DeviceFeed(cluster, parts.types, reporter.bad_object("devices")),
            TOPOLOGIES: TopologyFeed(cluster, reporter.bad_object("noderesourcetopologies")),
            NODE_ALLOCATIONS: RecordHandler(RecordFeed(cluster, parts.ledger, reporter.bad_object("nodeallocations"))),
            RESOURCE_SLICES: SliceFeed(cluster, self._complain("resourceslices")),
            RESOURCE_CLAIMS: ClaimFeed(cluster),
            PODS: PodFeed(cluster, ended, bound, parts.types, listed=reconciler.listed),
            PLUGIN_POD_GROUPS: GroupFeed(
                cluster, PLUGIN_POD_GROUPS.group, reporter.bad_object("podgroups.scheduling.x-k8s.io")
            ),
        }

    def _complain(self, resource: str) -> Complain:
        def complain(name: str, problems: tuple[str, ...]) -> None:
            self.complaints[resource, name] = problems

        return complain

    # The cluster

    def add_node(
        self,
        name: str = "n1",
        *entries: Any,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        cpu: CpuTopology | None = None,
        **topology: Any,
    ) -> None:
        """A Node with a Device object: by default, one GPU of 80Gi.

        Args:
            name: the node's name.
            *entries: entries of the Device object; GPUs get ids by the node's name.
            labels: the Node's labels.
            annotations: the Node's annotations.
            cpu: CPUs of its NodeResourceTopology object; without it, none is made.
            **topology: further fields of that object, as `NodeTopology` has them.
        """
        self.add_bare_node(name, labels=labels, annotations=annotations)
        listed = entries or (device_entry(0),)
        for entry in listed:
            if entry["type"] == "gpu":
                entry["id"] = f"GPU-{name}-{entry['minor']}"
        self.fake.put(DEVICES.path(), device_object(*listed, name=name))
        if cpu is not None:
            self.add_topology(name, cpu, **topology)

    def add_bare_node(
        self, name: str, *, labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None
    ) -> None:
        """A Node without objects that describe it."""
        metadata = {"name": name, "uid": f"uid-{name}", "labels": dict(labels or {})}
        if annotations:
            metadata["annotations"] = dict(annotations)
        self.fake.put(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def add_topology(self, name: str, cpu: CpuTopology, *, memory: int = 64 * GIB, **fields: Any) -> None:
        """A NodeResourceTopology; each NUMA node has its CPUs and this much memory to allocate."""
        zones = {at: {"cpu": 1000 * cpus.bit_count(), "memory": memory} for at, cpus in cpu.nodes.items()}
        told = {"zones": {at: NumaZone(has, has) for at, has in zones.items()}, **fields}
        self.fake.put(TOPOLOGIES.path(), write_node_topology(NodeTopology(name, cpu, **told)))

    def add_pod(self, obj: Raw) -> Raw:
        return self.fake.put(PODS.path(namespace=obj["metadata"]["namespace"]), obj)

    def show(self, obj: Raw) -> None:
        """Add a Pod; the replica lists everything."""
        self.add_pod(obj)
        self.see()

    def pod(self, name: str, namespace: str = "default") -> Raw:
        return self.fake.get(PODS.path(name, namespace))

    def remove_pod(self, name: str, namespace: str = "default") -> None:
        self.fake.remove(PODS.path(name, namespace))

    def change_pod(self, name: str, **changes: Any) -> Raw:
        """Change `metadata`, `spec` or `status`, member by member."""
        obj = self.pod(name)
        for part, members in changes.items():
            obj[part] = {**(obj.get(part) or {}), **members}
        return self.add_pod(obj)

    def holdings(self, node: str = "n1") -> dict[str, Holding]:
        """The API server's record; empty if there is none."""
        found = [obj for obj in self.fake.objects(NODE_ALLOCATIONS.path()) if obj["metadata"]["name"] == node]
        return read_spec(found[0]) if found else {}

    def holders(self, node: str = "n1") -> list[str]:
        return sorted(holding.name for holding in self.holdings(node).values())

    def audit(self) -> None:
        """Recount, from the API server alone, that nothing is given twice."""
        view = ClusterView(SeenObjects(self.clock))
        types = self.parts.types
        for resource, feed in (
            (NODES, NodeFeed(view, types, self.parts.pools)),
            (DEVICES, DeviceFeed(view, types, lambda _node, _problems: None)),
            (TOPOLOGIES, TopologyFeed(view, lambda _node, _problems: None)),
        ):
            for obj in self.fake.objects(resource.path()):
                feed.put(obj)
        for obj in self.fake.objects(NODES.path()):
            name = obj["metadata"]["name"]
            view.snapshot_on(name, self.holdings(name)).check_invariants()

    # The replica

    def see(self, *resources: Any) -> None:
        """The replica lists these resources, or all."""
        for resource, feed in self._feeds.items():
            if resources and resource not in resources:
                continue
            feed.begin_list()
            for obj in self.fake.objects(resource.path()):
                feed.put(obj)
            feed.end_list()
        self.parts.cluster.check_invariants()

    async def mutate(self, request: Request, deadline: float = 4.0) -> Response:
        return await self.parts.bindings.mutate(request, deadline)

    async def validate(self, request: Request, deadline: float = 4.0) -> Response:
        return await self.parts.bindings.validate(request, deadline)

    async def bind(self, name: str, node: str = "n1", *, see: bool = True, **options: Any) -> Response:
        """Handle a Binding of koord-scheduler as the API server does; returns the refusal, or the mutating answer."""
        asked = binding(name, node)
        mutated = await self.mutate(binds(asked, **options))
        if not mutated.allowed:
            return mutated
        asked = patch.apply(asked, mutated.patch)
        validated = await self.validate(binds(asked, **options))
        if not validated.allowed:
            return validated
        if not options.get("dry_run"):
            path = PODS.path(name, asked["metadata"]["namespace"], "binding")
            await self.kube.create(path, asked)
            if see:
                self.see(PODS)
        return mutated

    async def start(self, *pods: Raw, node: str = "n1") -> list[Response]:
        """Create and bind each."""
        for obj in pods:
            self.add_pod(obj)
        self.see(PODS)
        return [await self.bind(obj["metadata"]["name"], node) for obj in pods]

    def metric(self, name: str, **labels: str) -> float:
        """A metric of the replica; 0 where it has no such sample."""
        return self.parts.metrics._registry.get_sample_value(name, labels) or 0.0

    def events(self, reason: str) -> list[Raw]:
        """The Events of a reason that are written so far."""
        return [event for event in self.fake.objects(EVENTS.path()) if event["reason"] == reason]

    async def idle(self) -> None:
        """Wait until no background work is left."""
        await self.parts.ledger.idle()


@asynccontextmanager
async def running(*services: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """These services run; the test fails if one of them ends before it does."""
    tasks = [asyncio.create_task(service()) for service in services]
    try:
        yield
        assert not any(task.done() for task in tasks), "none has failed"
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def releasing(*worlds: World) -> AbstractAsyncContextManager[None]:
    """These replicas release what Pods and claims held as they see them end."""
    parts = [world.parts for world in worlds]
    services = [(one.reconciler.run_releases, one.claim_controller.run_releases) for one in parts]
    return running(*chain.from_iterable(services))


def annotation_of(operations: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The annotations that a patch of a Binding adds."""
    added: dict[str, str] = {}
    for operation in operations:
        if operation["path"] == "/metadata/annotations":
            added |= operation["value"]
        elif operation["path"].startswith("/metadata/annotations/"):
            key = operation["path"].removeprefix("/metadata/annotations/").replace("~1", "/").replace("~0", "~")
            added[key] = operation["value"]
    return added


def koordinator_annotation(*entries: tuple[int, Mapping[str, str], str]) -> dict[str, str]:
    """`device-allocated` as Koordinator's scheduler writes it: minor, resources, id ("" to leave it out)."""
    devices = [
        {"minor": minor, "resources": dict(resources), **({"id": identity} if identity else {})}
        for minor, resources, identity in entries
    ]
    return {DEVICE_ALLOCATED: orjson.dumps({"gpu": devices}).decode()}
