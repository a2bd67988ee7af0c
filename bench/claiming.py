"""Pods of koordgate and Pods with ResourceClaims that fill the same cards, and an auditor that reads Pods and claims.

A stand-in for a DRA driver lists the cards of each node in a ResourceSlice; nothing else of a driver is needed to
schedule. The stock kube-scheduler allocates claims, which the resource claim controller makes from a template.

The auditor shares no code with koordgate. It notes from which revision of etcd to which a Pod or a claim holds a card:
revisions order the events of both resources. At no revision may a card be held by more than there is of it.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from controlplane.gpu_cluster import DEVICE_ALLOCATED, add_gpu_node, metric, pod, pods_path, uuid_of

from localplane import chart, versions
from localplane.admin import AdminClient, JsonObject
from localplane.binaries import Binaries
from localplane.koord import NAME, start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

DRIVER: Final = "gpu.nvidia.com"
TEMPLATE: Final = "one-card"
STOCK: Final = "default-scheduler"
_USER: Final = "system:kube-scheduler"
_GROUP: Final = "/apis/resource.k8s.io/v1"
_SHARES: Final = (25, 50, 100)  # percent of a card, of koordgate's Pods
_WHOLE: Final = 100


class TaintRules(NamedTuple):
    """How an API server serves DeviceTaintRules: since 1.37 by itself, before that only if it is told to."""

    api_version: str
    gates: Mapping[str, bool]
    arguments: tuple[str, ...]

    @classmethod
    def of(cls, kubernetes: str) -> Self:
        """What a version of Kubernetes needs; before 1.36 nothing makes it serve them."""
        number = versions.number(kubernetes)[:2]
        if number >= (1, 37):
            return cls("resource.k8s.io/v1", {}, ())
        beta = "resource.k8s.io/v1beta2"
        if number < (1, 36):
            return cls(beta, {}, ())
        return cls(beta, {"DRADeviceTaintRules": True}, (f"--runtime-config={beta}=true",))

    @property
    def path(self) -> str:
        """Where the rules are."""
        return f"/apis/{self.api_version}/devicetaintrules"


@dataclass(frozen=True)
class Mix:
    """What is done.

    Attributes:
        pods: how many are bound in all, every other one with a claim.
        nodes: of 8 cards each.
        workers: each has one Pod at a time; more than cards, so that Pods wait.
        stay: the longest time for which a bound Pod stays, in seconds.
        replicas: of the webhook.
        taints: whether taints keep DRA from the cards that Pods hold.
        fail: whether an allocation fails that the webhook does not answer in time. Otherwise it is written unseen: a
            busy machine provokes that.
        seconds: after which it is given up.
        seed: of the choices.
    """

    pods: int = 1000
    nodes: int = 6
    workers: int = 80
    stay: float = 1.0
    replicas: int = 2
    taints: bool = True
    fail: bool = True
    seconds: float = 1800.0
    seed: int = 1


@dataclass
class Held:
    """What somebody holds of a card, from one revision to another (None: to the end)."""

    holder: str
    card: str
    percent: int
    since: int
    until: int | None = None


@dataclass
class Audit:
    """What was held when."""

    holds: dict[str, list[Held]] = field(default_factory=dict)
    bound: dict[str, bool] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def pod(self, kind: str, obj: JsonObject) -> None:
        """Take in an event about a Pod."""
        metadata = obj["metadata"]
        node = obj["spec"].get("nodeName")
        if node:
            self.bound.setdefault(metadata["uid"], bool(obj["spec"].get("resourceClaims")))
        stated = json.loads((metadata.get("annotations") or {}).get(DEVICE_ALLOCATED, "{}")).get("gpu") or ()
        shares = {one["id"]: int(one["resources"]["kubernetes.io/gpu-core"]) for one in stated} if node else {}
        self._note(f"Pod {metadata['name']}", metadata, shares if kind != "DELETED" else {})

    def claim(self, kind: str, obj: JsonObject) -> None:
        """Take in an event about a ResourceClaim."""
        metadata = obj["metadata"]
        allocation = (obj.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        shares = {uuid_of(one["pool"], int(one["device"].rpartition("-")[2])): _WHOLE for one in results}
        if shares:
            self.claims.add(metadata["uid"])
        self._note(f"ResourceClaim {metadata['name']}", metadata, shares if kind != "DELETED" else {})

    def _note(self, holder: str, metadata: Mapping[str, Any], shares: Mapping[str, int]) -> None:
        revision, holds = int(metadata["resourceVersion"]), self.holds.setdefault(metadata["uid"], [])
        now = {one.card: one for one in holds if one.until is None}
        for card, one in now.items():
            if card not in shares:
                one.until = revision
        holds += [Held(holder, card, percent, revision) for card, percent in shares.items() if card not in now]
        self.news.set()

    def twice(self) -> list[str]:
        """The cards of which more was held at one revision than there is, each with the holders."""
        of: dict[str, list[Held]] = defaultdict(list)
        for holds in self.holds.values():
            for one in holds:
                of[one.card].append(one)
        return [told for card, holds in sorted(of.items()) for told in _over(card, holds)]

    @property
    def shared(self) -> int:
        """How many cards were held by Pods of koordgate and by claims, one after the other."""
        kinds: dict[str, set[str]] = defaultdict(set)
        for holds in self.holds.values():
            for one in holds:
                kinds[one.card].add(one.holder.partition(" ")[0])
        return sum(len(of) > 1 for of in kinds.values())


def _over(card: str, holds: list[Held]) -> Iterator[str]:
    # What ends at a revision is free for what begins there.
    events = [(one.since, 1, one) for one in holds] + [(one.until, 0, one) for one in holds if one.until is not None]
    there: list[Held] = []
    for revision, begins, one in sorted(events, key=lambda event: event[:2]):
        if not begins:
            there.remove(one)
            continue
        there.append(one)
        if sum(other.percent for other in there) > _WHOLE:
            yield f"{card} at revision {revision}: {', '.join(f'{other.holder} {other.percent}' for other in there)}"


@dataclass
class Result:
    """What became of it.

    Attributes:
        audit: what was held when.
        bound: Pods bound by kind.
        seconds: that it took.
        refused: allocations that the webhook refused.
        unfinished: Pods that were not bound in time.
        left: what is reserved for claims in the ledger after all were deleted.
    """

    audit: Audit
    bound: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    refused: float = 0.0
    unfinished: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


async def run_mix(mix: Mix, binaries: Binaries, say: Callable[[str], None], workdir: Path) -> Result:
    """Start a cluster, and have all Pods bound and deleted again."""
    rules = TaintRules.of(binaries.kubernetes)
    plane = ControlPlane(
        binaries,
        workdir=workdir / "plane",
        controller_manager=True,
        controllers="*,-node-lifecycle-controller",
        users={_USER: ()},
        feature_gates=rules.gates if mix.taints else {},
        apiserver_args=rules.arguments if mix.taints else (),
    )
    async with plane, _installed(plane, binaries, mix, workdir) as replicas, plane.admin() as admin:
        for number in range(mix.nodes):
            await add_dra_node(plane, admin, f"n{number}")
        await plane.ensure_namespace("mixed")
        await admin.apply(device_class())
        await admin.apply(template("mixed"))
        audit = Audit()
        async with _watched(admin, audit):
            result = await _worked(mix, admin, audit, say)
            result.refused = await metric(
                replicas, "koordgate_requests_total", path="/validate-claim", outcome="denied"
            )
            await _emptied(admin)
            result.left = await _reserved(admin)
        return result


@contextlib.asynccontextmanager
async def _installed(plane: ControlPlane, binaries: Binaries, mix: Mix, workdir: Path) -> AsyncIterator[Replicas]:
    """The chart, replicas of the webhook, koord-scheduler, and the stock kube-scheduler with its own rights."""
    policy = "Fail" if mix.fail else "Ignore"
    objects = chart.render(binaries, {"dra": {"taints": mix.taints, "failurePolicy": policy}})
    await chart.install(plane, objects)
    replicas = await Replicas.installed(plane, objects, workdir / "webhook", count=mix.replicas)
    async with replicas:
        await start_koord_scheduler(plane, objects, replicas.extender)
        await plane.start_scheduler(STOCK, "", plane.kubeconfig(plane.tokens[_USER], workdir / "stock.yaml"))
        try:
            yield replicas
        finally:
            await plane.stop_scheduler(STOCK)
            await plane.stop_scheduler(NAME)


async def add_dra_node(plane: ControlPlane, admin: AdminClient, name: str, gpus: int = 8) -> None:
    """A node with cards that koordgate and a DRA driver both list."""
    await add_gpu_node(plane, admin, name, gpus)
    await admin.apply(resource_slice(name, listed_cards(name, gpus)))


def listed_cards(node: str, gpus: int) -> list[JsonObject]:
    """The cards of a node as a driver lists them."""
    return [{"name": f"gpu-{minor}", "attributes": {"uuid": {"string": uuid_of(node, minor)}}} for minor in range(gpus)]


def resource_slice(node: str, devices: list[JsonObject], **spec: Any) -> JsonObject:
    """A slice of a node's devices."""
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    body = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices, **spec}
    return _dra("ResourceSlice", f"{node}-{DRIVER}", body)


def device_class(**spec: Any) -> JsonObject:
    """The class of the driver's devices."""
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    return _dra("DeviceClass", DRIVER, {"selectors": selectors, **spec})


def claim_spec(count: int = 1) -> JsonObject:
    """The spec of a claim for cards."""
    return {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": DRIVER, "count": count}}]}}


def template(namespace: str) -> JsonObject:
    """A template of claims for one card."""
    return _dra("ResourceClaimTemplate", TEMPLATE, {"spec": claim_spec()}, namespace=namespace)


def claim(name: str, namespace: str, count: int = 1) -> JsonObject:
    """A claim for cards."""
    return _dra("ResourceClaim", name, claim_spec(count), namespace=namespace)


def _dra(kind: str, name: str, spec: JsonObject, **metadata: str) -> JsonObject:
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def claiming_pod(name: str, namespace: str, **source: str) -> JsonObject:
    """A Pod with a claim, of the template unless another source is named."""
    made = pod(name, namespace, {"cpu": "10m"})
    made["spec"]["resourceClaims"] = [{"name": "card", **(source or {"resourceClaimTemplateName": TEMPLATE})}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "card"}]
    return made


@contextlib.asynccontextmanager
async def _watched(admin: AdminClient, audit: Audit) -> AsyncIterator[None]:
    """Follow Pods and claims; what fails there ends everything."""

    async def follow(path: str, take: Callable[[str, JsonObject], None]) -> None:
        revision = ""
        while True:  # an API server ends watches from time to time
            async for event in admin.watch(path, resourceVersion=revision):
                if event["type"] == "ERROR":
                    raise RuntimeError(f"the watch of {path} failed: {event['object']}")
                revision = event["object"]["metadata"]["resourceVersion"]
                take(event["type"], event["object"])

    async with asyncio.TaskGroup() as tasks:
        following = [
            tasks.create_task(follow(pods_path("mixed"), audit.pod)),
            tasks.create_task(follow(f"{_GROUP}/namespaces/mixed/resourceclaims", audit.claim)),
        ]
        yield
        for one in following:
            one.cancel()


async def _worked(mix: Mix, admin: AdminClient, audit: Audit, say: Callable[[str], None]) -> Result:
    result, chance, numbers = Result(audit), random.Random(mix.seed), iter(range(mix.pods))
    began = time.monotonic()

    async def work() -> None:
        for number in numbers:
            kind = ("claim", "share")[number % 2]
            if kind == "claim":
                made = claiming_pod(f"p{number}", "mixed")
            else:
                made = pod(f"p{number}", "mixed", {"kubernetes.io/gpu": str(chance.choice(_SHARES))})
            uid = (await admin.create(pods_path("mixed"), made))["metadata"]["uid"]
            while uid not in audit.bound:
                audit.news.clear()
                left = mix.seconds - (time.monotonic() - began)
                try:
                    await asyncio.wait_for(audit.news.wait(), max(left, 0.1))
                except TimeoutError:
                    result.unfinished.append(made["metadata"]["name"])
                    return
            result.bound[kind] += 1
            if result.bound.total() % 100 == 0:
                say(f"{result.bound.total()} Pods bound in {time.monotonic() - began:.0f} s")
            await asyncio.sleep(chance.random() * mix.stay)
            await admin.delete(pods_path("mixed", made["metadata"]["name"]), {"gracePeriodSeconds": 0})

    await asyncio.gather(*(work() for _ in range(mix.workers)))
    result.seconds = time.monotonic() - began
    return result


async def _emptied(admin: AdminClient) -> None:
    """Delete what is left, and wait until no claim is."""
    await admin.delete(pods_path("mixed"), {"gracePeriodSeconds": 0})

    async def no_claims() -> bool:
        return not await admin.items(f"{_GROUP}/namespaces/mixed/resourceclaims")

    await until(no_claims, "all claims are gone", deadline_s=120)


async def _reserved(admin: AdminClient) -> list[str]:
    """What the ledger still has for claims, once it had time to follow."""

    async def of_claims() -> list[str]:
        records = await admin.items("/apis/koordgate.io/v1alpha1/nodeallocations")
        held = (one for record in records for one in record["spec"].get("allocations") or ())
        return [one["name"] for one in held if one.get("claimRevision")]

    async def nothing() -> bool:
        return not await of_claims()

    with contextlib.suppress(TimeoutError):
        await until(nothing, "nothing is reserved for claims", deadline_s=60)
    return await of_claims()
