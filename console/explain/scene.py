"""A Pod and its cluster, as a replica would see them: from a live cluster, a snapshot, or files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from allocator.request.devices import unknown_names
from allocator.request.unread import find_misspelt, find_misspelt_resources
from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.asks import largest
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import ORIGINAL_REQUEST, Mode
from allocator.wire import gang, nodeallocation
from console.cluster import (
    Cluster,
    Found,
    Raw,
    ReadCluster,
    Reading,
    checked,
    cluster_of,
    let_hold,
    mapping,
    priorities_of,
)
from console.explain.target import Target
from console.simulator.apiserver import with_defaults
from console.simulator.cluster import OfflineCluster
from console.simulator.documents import stated_among
from console.simulator.scheduler import unready
from webhook.scheduling.assumed import Assumed
from webhook.scheduling.ranking import Ranking
from webhook.settings import WebhookSettings, adoption_of, read_mix, types_of
from webhook.shadow.judge import as_submitted
from webhook.view.feed import GroupFeed
from webhook.view.podinfo import PodInfo, read_pod_info
from webhook.view.typical import learned

_BESIDE: Final = ("ResourceQuota", "Event")
_OF_NODE: Final = ("Node", "Device")
_SEEN: Final = ("RuntimeClass", "Node", "Device", "NodeResourceTopology", "ResourceSlice", "ResourceClaim")


@dataclass(slots=True)
class Scene:
    """A Pod, and its cluster without what this Pod holds."""

    given: Raw  # the Pod as it is
    pod: Raw  # the Pod as it would wait for a node now: translated, and bound to none
    info: PodInfo | None  # of the Pod, as decisions see it; None if it asks for nothing that koordgate gives
    refused: str  # why admission would refuse it; "" if it would not
    translated: bool  # whether it was translated here, because nobody had done that before
    cluster: Cluster
    seen: ReadCluster  # the cluster, without what the Pod holds
    ranking: Ranking  # filters and orders the nodes
    settings: WebhookSettings
    notes: list[str]  # what is not known, a sentence each
    misspelt: list[str]  # resources that nobody gives, and what may be meant, a sentence each
    existing: bool  # whether the API server has the Pod
    others: Mapping[str, Sequence[Raw]]  # kind -> objects that decisions do not read: quotas and Events
    held_on: Sequence[str]  # the nodes on whose ledger something is held for the Pod
    target: Target  # the Pod, and how many are like it
    adopted: ForeignHolding | None = None  # what it holds where it is by another product's statement; None if nothing

    @property
    def name(self) -> str:
        """Its namespace and name."""
        return f"{self.given['metadata']['namespace']}/{self.given['metadata']['name']}"

    @property
    def types(self) -> DeviceTypes:
        """The device types."""
        return types_of(self.settings)

    @property
    def mode(self) -> Mode:
        """The mode of its namespace."""
        return self.seen.mode(self.given["metadata"]["namespace"])

    def gang_size(self, gang: str) -> int:
        """How many Pods of a gang are needed at once, as far as anybody states it; else 0."""
        stated = [self.info.request.wishes.size] if self.info is not None else []
        return largest([*stated, self.seen.view.groups.size(gang)]).least

    @property
    def nodes(self) -> list[Raw]:
        """The Node objects, by name."""
        return sorted(self.cluster.objects("Node"), key=lambda node: str(node["metadata"]["name"]))


def _adopted(cluster: Cluster, given: Raw) -> ForeignHolding | None:
    """What a Pod holds by another product's statement, on its node as it is with the Pod."""
    name = given["spec"].get("nodeName")
    if not name:
        return None
    there = {kind: [one for one in cluster.objects(kind) if one["metadata"]["name"] == name] for kind in _OF_NODE}
    pods = [pod for pod in cluster.objects("Pod") if pod["spec"].get("nodeName") == name]
    alone = Cluster(of={**there, "Pod": [*pods, given]}, settings=cluster.settings)
    seen = ReadCluster(alone, adoption_of(cluster.settings))
    return seen.view.snapshot(name).foreign.get(given["metadata"]["uid"])


async def scene(read: Reading, target: Target, configured: WebhookSettings | None) -> Scene:
    """Make the scene of a Pod among objects that were checked, or of one that is still to be created there.

    `configured`: settings to be used instead of those among the objects. In manifests, running Pods hold what
    `simulate` lets them hold, idle devices for Pods of a device plugin among that. Raises InputError: an object is none
    that an API server would send.
    """
    new = [checked(target.where, target.pod, "Pod")] if target.where else []
    listed = [*read.objects, *new]
    given = new[0][1] if new else target.pod
    space = given["metadata"]["namespace"]
    uid = given["metadata"]["uid"]
    # Without the Pod: it holds nothing, wherever that is recorded.
    others = [one for one in listed if one[2] != "Pod" or one[1]["metadata"]["uid"] != uid]
    cluster = cluster_of(replace(read, objects=[_without_holding(one, uid) for one in others]), configured)
    types = types_of(cluster.settings)
    if read.manifests:
        let_hold(cluster, counted=configured is not None or stated_among(listed) is not None)
    existing = given["metadata"].get("creationTimestamp") is not None
    was = existing or given["spec"].get("nodeName")  # what a new Pod states that it holds, admission must see
    submitted = with_defaults({**(as_submitted(given) if was else given), "kind": "Pod"})
    refused = "" if was else priorities_of(listed, lambda _text: None).write(submitted)  # the reader has reported it
    pod, translated = submitted, False
    mode = ReadCluster(Cluster(of={"Namespace": cluster.objects("Namespace")}, settings=cluster.settings)).mode(space)
    info = read_pod_info(pod, types=types)
    if (
        not refused
        and info is not None
        and mode is not Mode.OFF
        and ORIGINAL_REQUEST not in (pod["metadata"].get("annotations") or {})
    ):
        refused, pod = await admitted(cluster, submitted)
        translated = pod["spec"] != submitted["spec"]
        info = read_pod_info(pod, types=types)
    cluster.take("Pod", pod)
    seen = ReadCluster(cluster, adoption_of(cluster.settings))
    groups = GroupFeed(seen.view, "", lambda _name, _problems: None)
    for group in cluster.objects(gang.KIND):
        groups.put(group)
    known = seen.view.pods.by_uid(uid)
    notes = [*cluster.notes, *(problem for problems in seen.problems.values() for problem in problems)]
    notes += unready(cluster.objects("Node"))
    notes += find_misspelt(given, types, ())
    reported = {
        name for node in cluster.objects("Node") for name in mapping(node.get("status")).get("allocatable") or ()
    }
    unknown = [one for one in unknown_names(given["spec"], types) if one.name not in reported]
    return Scene(
        target=target,
        adopted=_adopted(cluster, given),
        given=given,
        pod=pod,
        info=known or info,
        refused=refused,
        translated=translated,
        cluster=cluster,
        seen=seen,
        ranking=_ranking(seen),
        settings=cluster.settings,
        notes=notes,
        misspelt=find_misspelt_resources(unknown, types),
        existing=existing,
        others={of: [obj for _, obj, kind in listed if kind == of] for of in _BESIDE},
        held_on=sorted(
            _holding(obj, uid) for _, obj, kind in listed if kind == nodeallocation.KIND and _holding(obj, uid)
        ),
    )


def conditions(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The conditions of a Pod's status."""
    listed = mapping(pod.get("status")).get("conditions")
    return [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []


def _ranking(seen: ReadCluster) -> Ranking:
    settings, types = seen.settings, types_of(seen.settings)
    mix = read_mix(settings.scheduler.mix, types) or learned(seen.view.pods.all())
    return Ranking(
        seen.view,
        types,
        settings.scheduler.preference,
        Assumed(time.monotonic, settings.scheduler.assume_seconds),
        order=settings.devices.order,
        counted=settings.scheduler.preference_classes,
        mix=lambda: mix,
    )


def _without_holding(found: Found, uid: str) -> Found:
    """An object without what a Pod holds by it; a NodeAllocation that cannot be read stays as it is."""
    where, obj, kind = found
    listed = _allocations(obj) if kind == nodeallocation.KIND else []
    if not any(_is_of(one, uid) for one in listed):
        return found
    left = [one for one in listed if not _is_of(one, uid)]
    return where, {**obj, "spec": {**obj["spec"], "allocations": left}}, kind


def _holding(obj: Raw, uid: str) -> str:
    """The node of a NodeAllocation in which a Pod holds something; else ""."""
    return str(obj["metadata"]["name"]) if any(_is_of(one, uid) for one in _allocations(obj)) else ""


def _allocations(obj: Raw) -> list[object]:
    spec = obj.get("spec")
    listed = spec.get("allocations") if isinstance(spec, Mapping) else None
    return listed if isinstance(listed, list) else []


def _is_of(allocation: object, uid: str) -> bool:
    return isinstance(allocation, Mapping) and allocation.get("uid") == uid


async def admitted(cluster: Cluster, pod: Raw) -> tuple[str, Raw]:
    """Show a Pod to the webhook's own admission; returns why it is refused, and the Pod as it would be stored."""
    offline = OfflineCluster.in_process(cluster.settings)
    await offline.load([{"apiVersion": "v1", **obj} for kind in _SEEN for obj in cluster.objects(kind)])
    verdict = await offline.review(pod)
    return verdict.refusal, verdict.object
