"""A cluster on a fake API server, and one replica's parts, fed by hand: a test says what the replica has seen."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from builders import container, device_entry, device_object, pod
from fake_kube import FakeKube

from allocator.holdings import Holding, NodeSnapshot
from allocator.names import DEVICE_ALLOCATED
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodeallocation import read_spec
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS
from koordgate.ledger.store import KubeStore
from koordgate.settings import Settings
from webhook import patch
from webhook.assembly import assemble
from webhook.feed import AllocationFeed, DeviceFeed, NodeFeed, PodFeed
from webhook.livepods import KubeLivePods
from webhook.review import Request, Response
from webhook.translate import Policy, translate

Raw = dict[str, Any]
SETTINGS: Final = Settings()
SCHEDULER: Final = SETTINGS.scheduler.username
US: Final = SETTINGS.identity.username
TENANT: Final = "alice"
POLICY: Final = Policy(SETTINGS.domain, SETTINGS.scheduler.name)
BEGINNING: Final = 1_800_000_000


@dataclass
class Clock:
    """Seconds since the epoch; moved by the test alone."""

    now: int = BEGINNING

    def __call__(self) -> int:
        return self.now


# Objects


def admitted(obj: Raw, memory: int | None = None) -> Raw:
    """The Pod as it is stored after `/mutate-pod`."""
    return patch.apply(obj, translate(obj, POLICY, memory).operations)


def gpu_pod(name: str, percent: int = 50, *, admit: bool = True, **about: Any) -> Raw:
    """A Pod of one container that asks for so much of a GPU."""
    asked = container(limits={"kubernetes.io/gpu": str(percent)}, requests={"kubernetes.io/gpu": str(percent)})
    made = pod(asked, name=name, **{"uid": f"uid-{name}", **about})
    return admitted(made) if admit else made


def plain_pod(name: str, **about: Any) -> Raw:
    return pod(name=name, **{"uid": f"uid-{name}", **about})


def binding(
    name: str,
    node: str,
    *,
    uid: str | None = None,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "default",
) -> Raw:
    """As kube-scheduler writes it: namespace, name, UID and target."""
    metadata: Raw = {"name": name, "namespace": namespace}
    if uid != "":
        metadata["uid"] = f"uid-{name}" if uid is None else uid
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    target = {"kind": "Node", "name": node}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}


def invalid_pods() -> dict[str, Raw]:
    """Pods that ask for devices in a way that can never work, each for one reason; none may ever be admitted."""

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
    """The same as the API server sends it."""
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


class World:
    """A cluster and one replica of ours.

    Attributes:
        fake: the API server.
        kube: a client of it.
        clock: of the replica.
        parts: the replica's.
        complaints: about objects that cannot be read: resource, name -> problems.
    """

    def __init__(self, fake: FakeKube, kube: KubeClient, settings: Settings = SETTINGS) -> None:
        self.fake = fake
        self.kube = kube
        self.clock = Clock()
        self.complaints: dict[tuple[str, str], tuple[str, ...]] = {}
        self.parts = assemble(
            settings,
            lambda cluster: KubeStore(kube, cluster.node_uid),
            KubeLivePods(kube),
            kube=kube,
            clock=self.clock,
        )
        cluster, reporter = self.parts.cluster, self.parts.reporter
        self._feeds = {
            NODES: NodeFeed(cluster),
            DEVICES: DeviceFeed(cluster, reporter.bad_object("devices")),
            NODE_ALLOCATIONS: AllocationFeed(cluster, self.parts.ledger, reporter.bad_object("nodeallocations")),
            PODS: PodFeed(cluster, self.parts.reconciler.ended, self.parts.reconciler.bound),
        }

    # The cluster

    def add_node(self, name: str = "n1", *entries: Any, labels: Mapping[str, str] | None = None) -> None:
        """A Node with a Device object: one GPU of 80Gi if nothing else is said."""
        metadata = {"name": name, "uid": f"uid-{name}", "labels": dict(labels or {})}
        self.fake.put(NODES.path(), {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
        listed = entries or (device_entry(0),)
        for entry in listed:
            entry["id"] = f"GPU-{name}-{entry['minor']}"
        self.fake.put(DEVICES.path(), device_object(*listed, name=name))

    def add_pod(self, obj: Raw) -> Raw:
        return self.fake.put(PODS.path(namespace=obj["metadata"]["namespace"]), obj)

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
        """What the API server has; empty where there is no record."""
        found = [obj for obj in self.fake.objects(NODE_ALLOCATIONS.path()) if obj["metadata"]["name"] == node]
        return read_spec(found[0]) if found else {}

    def holders(self, node: str = "n1") -> list[str]:
        return sorted(holding.name for holding in self.holdings(node).values())

    def audit(self) -> None:
        """Recount, from the API server alone, that nothing is given twice."""
        for obj in self.fake.objects(DEVICES.path()):
            read = read_device_object(obj)
            NodeSnapshot(read.node, read.devices, self.holdings(read.node)).check_invariants()

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

    async def mutate(self, request: Request, deadline: float = 4.0) -> Response:
        return await self.parts.bindings.mutate(request, deadline)

    async def validate(self, request: Request, deadline: float = 4.0) -> Response:
        return await self.parts.bindings.validate(request, deadline)

    async def bind(self, name: str, node: str = "n1", *, see: bool = True, **options: Any) -> Response:
        """Do what the API server does with a Binding of koord-scheduler; the refusal, or what mutating answered."""
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

    async def idle(self) -> None:
        """Wait until nothing goes on in the background."""
        await self.parts.ledger.idle()


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
