"""What would have become of the Pods that exist, if koordgate had created and placed them: `koordgate adopt report`.

The Pods go through the webhook's own admission, scheduling and binding, in memory, onto the nodes as they are without
them.
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from allocator.vocabulary.names import DEVICES_CHECKPOINTS, Mode
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, parse_json
from console.adopt.findings import OURS, ClusterFindings, DevicePod
from console.cluster import Cluster, ReadCluster
from console.simulator.cluster import OfflineCluster, PodFate, Result
from webhook.settings import types_of
from webhook.shadow.judge import as_submitted
from webhook.view.podinfo import annotated_holding, read_pod_info

Raw = dict[str, Any]
_OTHERS: Final = ("NodeResourceTopology", "ResourceSlice", "ResourceClaim", "PodGroup")
_MAX_REASONS: Final = 10  # that are listed for each namespace


class PlacedOn(msgspec.Struct, frozen=True):
    """A device of which a Pod would hold some."""

    type: str
    minor: int
    id: str


class PlacedPod(msgspec.Struct, frozen=True):
    """Where a Pod would be, and on what."""

    node: str
    devices: tuple[PlacedOn, ...]


class NamespaceReport(msgspec.Struct, rename="camel"):
    """One namespace.

    `refused` and `waiting` are reason -> number of Pods. `cards_now` is as far as it is stated. `same_node` counts the
    Pods that are on the node where they would be.
    """

    namespace: str
    mode: Mode
    pods: int = 0
    translated: int = 0
    refused: dict[str, int] = {}
    waiting: dict[str, int] = {}
    placed: dict[str, PlacedPod] = {}
    same_node: int = 0
    cards_now: int = 0
    cards_then: int = 0


async def report(
    cluster: Cluster, seen: ReadCluster, found: ClusterFindings, namespaces: Collection[str]
) -> list[NamespaceReport]:
    """Place the Pods of these namespaces as koordgate would, in the order of their creation.

    Pods of namespaces that are enforced already stay.
    """
    moved = {pod.uid: pod for pod in found.pods if pod.namespace in namespaces and pod.product != OURS}
    offline = OfflineCluster.in_process(msgspec.structs.replace(seen.settings, mode=Mode.ENFORCE))
    pods = cluster.objects("Pod")
    standing = [  # who waits takes no part
        pod
        for pod in pods
        if pod["metadata"].get("uid") not in moved
        and (pod.get("spec") or {}).get("nodeName")  # who waits takes no part
    ]
    devices = [_without_kubelet(obj, moved.keys()) for obj in cluster.objects("Device")]
    devices += cluster.unlisted
    others = [obj for kind in _OTHERS for obj in cluster.objects(kind)]
    await offline.load([*cluster.objects("Node"), *devices, *others, *standing])
    chosen = [pod for pod in pods if pod["metadata"].get("uid") in moved]
    chosen.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", _name(pod)))
    results = await offline.settle([await offline.submit(as_submitted(pod)) for pod in chosen])
    cards: dict[str, set[str]] = {}
    for one in (one for node in found.nodes for one in node.held):
        cards.setdefault(one.uid, set()).add(one.device)
    pairs = [(moved[given["metadata"]["uid"]], result) for given, result in zip(chosen, results, strict=True)]
    return [
        _report(seen, namespace, [pair for pair in pairs if pair[0].namespace == namespace], cards)
        for namespace in sorted(namespaces)
    ]


def _report(
    seen: ReadCluster, namespace: str, pairs: Sequence[tuple[DevicePod, Result]], cards: Mapping[str, Collection[str]]
) -> NamespaceReport:
    made = NamespaceReport(namespace, seen.mode(namespace), len(pairs))
    refused, waiting = Counter[str](), Counter[str]()
    then: set[str] = set()
    for pod, result in pairs:
        if result.state is PodFate.DENIED:
            refused[_about(result.message, pod)] += 1
            continue
        before = ((result.given or {}).get("metadata") or {}).get("annotations") or {}
        made.translated += bool(result.pod["metadata"].get("annotations", {}).keys() - before.keys())
        if result.state is not PodFate.BOUND:
            waiting[_about(result.message, pod)] += 1
            continue
        node, info = result.pod["spec"]["nodeName"], read_pod_info(result.pod, types=types_of(seen.settings))
        holding = None if info is None else annotated_holding(info, seen.view.devices(info.node), 0)
        shares = holding.shares if holding is not None else ()
        made.placed[str(pod)] = PlacedPod(node, tuple(PlacedOn(one.type, one.minor, one.id) for one in shares))
        then.update(share.id for share in shares)
        made.same_node += node == pod.node
    made.refused, made.waiting = (dict(one.most_common(_MAX_REASONS)) for one in (refused, waiting))
    made.cards_now, made.cards_then = len({card for pod, _ in pairs for card in cards.get(pod.uid, ())}), len(then)
    return made


def _about(message: str, pod: DevicePod) -> str:
    """A reason, without the name of the Pod, so that equal ones are counted together."""
    return message.replace(f"Pod {pod}: ", "").replace(str(pod), "the Pod")


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _without_kubelet(device: Raw, moved: Collection[str]) -> Raw:
    """A Device object on which the kubelet has given these Pods nothing; what cannot be read stays as it is."""
    annotations = dict(device["metadata"].get("annotations") or {})
    for key in DEVICES_CHECKPOINTS:
        try:
            entries = parse_json(annotations[key], MAX_OF_NODE)
            kept = [one for one in entries if one.get("podUID") not in moved]
        except (KeyError, AttributeError, *UNREADABLE):
            continue
        annotations[key] = json.dumps(kept)
    return {**device, "metadata": {**device["metadata"], "annotations": annotations}}
