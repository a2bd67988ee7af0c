"""What would have become of the Pods that exist, if koordgate had created and placed them: `koordgate adopt report`.

The Pods go through the webhook's own admission, scheduling and binding, in memory, onto the nodes as they are without
them.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from allocator.vocabulary.holdings import Holding
from allocator.vocabulary.mode import Mode
from allocator.vocabulary.names import DEVICES_CHECKPOINTS
from allocator.wire.values import MOST_OF_NODE, UNREADABLE, parse_json
from console.adopt.findings import OURS, ClusterFindings, DevicePod
from console.adopt.objects import Cluster
from console.adopt.view import AdoptView
from console.simulator.cluster import OfflineCluster, PodFate, Result
from webhook.settings import types_of
from webhook.shadow.judge import as_submitted
from webhook.view.podinfo import annotated_holding, read_pod_info

Raw = dict[str, Any]
_OTHERS: Final = ("NodeResourceTopology", "ResourceSlice", "ResourceClaim", "PodGroup")
_MOST_REASONS: Final = 10  # that are listed for each namespace


class PlacedOn(NamedTuple):
    """A device of which a Pod would hold some."""

    type: str
    minor: int
    id: str


@dataclass(frozen=True, slots=True)
class NamespaceReport:
    """One namespace.

    Attributes:
        namespace: its name.
        mode: its mode.
        pods: how many ask for devices.
        translated: how many would be translated.
        refused: reason -> number of Pods that would be refused.
        waiting: reason -> number of Pods that would wait.
        placed: Pod -> node and devices: type, minor, id.
        same_node: how many are on the node where they would be.
        cards_now: how many cards they have now, as far as it is stated.
        cards_then: how many they would have.
    """

    namespace: str
    mode: Mode
    pods: int
    translated: int
    refused: Mapping[str, int]
    waiting: Mapping[str, int]
    placed: Mapping[str, tuple[str, tuple[PlacedOn, ...]]]
    same_node: int
    cards_now: int
    cards_then: int


async def report(
    cluster: Cluster, seen: AdoptView, found: ClusterFindings, namespaces: Collection[str]
) -> list[NamespaceReport]:
    """Place the Pods of these namespaces as koordgate would, in the order of their creation.

    Args:
        cluster: its objects.
        seen: the same, as a replica would see them.
        found: in them.
        namespaces: whose Pods are placed; those that are enforced already keep their Pods.
    """
    moved = {pod.uid: pod for pod in found.pods if pod.namespace in namespaces and pod.product != OURS}
    offline = OfflineCluster.in_process(msgspec.structs.replace(seen.settings, mode=Mode.ENFORCE))
    standing = [pod for pod in cluster.objects("Pod") if pod["metadata"].get("uid") not in moved]
    standing = [pod for pod in map(_running, standing) if pod is not None]
    devices = [_without_kubelet(obj, moved.keys()) for obj in cluster.objects("Device")]
    devices += cluster.unlisted
    others = [obj for kind in _OTHERS for obj in cluster.objects(kind)]
    await offline.load([*cluster.objects("Node"), *devices, *others, *standing])
    chosen = [pod for pod in cluster.objects("Pod") if pod["metadata"].get("uid") in moved]
    chosen.sort(key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", _name(pod)))
    results = await offline.settle([await offline.submit(as_submitted(pod)) for pod in chosen])
    told: dict[str, list[tuple[DevicePod, Result]]] = {namespace: [] for namespace in sorted(namespaces)}
    for pod, result in zip(chosen, results, strict=True):
        told[pod["metadata"]["namespace"]].append((moved[pod["metadata"]["uid"]], result))
    types = types_of(seen.settings)

    def held(result: Result) -> Holding | None:
        pod = read_pod_info(result.pod, types=types)
        return None if pod is None else annotated_holding(pod, seen.view.devices(pod.node), 0)

    now = {pod.uid: pod.node for pod in found.pods}
    cards: dict[str, set[str]] = {}
    for node in found.nodes:
        for one in node.held:
            cards.setdefault(one.uid, set()).add(one.device)
    return [_sum_up(namespace, seen.mode(namespace), pairs, held, now, cards) for namespace, pairs in told.items()]


def _sum_up(
    namespace: str,
    mode: Mode,
    pairs: Iterable[tuple[DevicePod, Result]],
    held: Callable[[Result], Holding | None],
    now: Mapping[str, str],
    cards: Mapping[str, Collection[str]],
) -> NamespaceReport:
    refused: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    placed: dict[str, tuple[str, tuple[PlacedOn, ...]]] = {}
    then: set[str] = set()
    have: set[str] = set()
    pods = same = translated = 0
    for pod, result in pairs:
        pods += 1
        have.update(cards.get(pod.uid, ()))
        if result.state is PodFate.DENIED:
            refused[_about(result.message, pod)] += 1
            continue
        translated += bool(result.pod["metadata"].get("annotations", {}).keys() - _given(result))
        if result.state is not PodFate.BOUND:
            waiting[_about(result.message, pod)] += 1
            continue
        node = result.pod["spec"]["nodeName"]
        holding = held(result)
        shares = holding.shares if holding is not None else ()
        placed[str(pod)] = (node, tuple(PlacedOn(share.type, share.minor, share.id) for share in shares))
        then.update(share.id for share in shares)
        same += node == now.get(pod.uid)
    return NamespaceReport(
        namespace,
        mode,
        pods,
        translated,
        dict(refused.most_common(_MOST_REASONS)),
        dict(waiting.most_common(_MOST_REASONS)),
        placed,
        same,
        len(have),
        len(then),
    )


def _given(result: Result) -> set[str]:
    return set(((result.given or {}).get("metadata") or {}).get("annotations") or ())


def _about(message: str, pod: DevicePod) -> str:
    """A reason, without the name of the Pod, so that equal ones are counted together."""
    return message.replace(f"Pod {pod}: ", "").replace(str(pod), "the Pod")


def _name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}"


def _running(pod: Raw) -> Raw | None:
    """A Pod that stays where it is; one that waits takes no part."""
    return pod if (pod.get("spec") or {}).get("nodeName") else None


def _without_kubelet(device: Raw, moved: Collection[str]) -> Raw:
    """A Device object on which the kubelet has given these Pods nothing; what cannot be read stays as it is."""
    annotations = dict(device["metadata"].get("annotations") or {})
    for key in DEVICES_CHECKPOINTS:
        try:
            entries = parse_json(annotations[key], MOST_OF_NODE)
            kept = [one for one in entries if one.get("podUID") not in moved]
        except (KeyError, AttributeError, *UNREADABLE):
            continue
        annotations[key] = json.dumps(kept)
    return {**device, "metadata": {**device["metadata"], "annotations": annotations}}
