"""What is wrong with devices that Pods hold, as far as somebody must act (pure).

Nothing is decided here. What is disputed is closed by the snapshot; a device that a node lacks or that two nodes list
is not known to be in either place.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from allocator.budget import Steps
from allocator.disputed import Dispute
from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.device import pci_address
from allocator.vocabulary.names import TYPE_GPU
from webhook.ledger.ledger import Ledger
from webhook.ledger.store import Record
from webhook.view.cluster import ClusterView
from webhook.view.podinfo import PodInfo

_MAX_NAMED: Final = 8


class Wrong(StrEnum):
    """The reason of an Event."""

    DISPUTED = "AllocationDisputed"
    VANISHED = "DeviceVanished"
    LISTED_TWICE = "DeviceListedTwice"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong."""

    reason: Wrong  # of the Event about it
    message: str  # what is wrong and what to do, for people
    node: str  # that it is about
    pod: PodInfo | None = None  # that it is about; None if it is about the Node


def troubles(cluster: ClusterView, ledger: Ledger) -> Steps[list[Trouble]]:
    """Find what is wrong: by kind, node, and Pod; yields between two nodes."""
    found: list[Trouble] = []
    for record in ledger.records():
        found += _disputed(cluster, record.node)
        found += _vanished(cluster, record)
        yield 0
    return sorted([*found, *(yield from _listed_twice(cluster))], key=_order)


def _order(one: Trouble) -> tuple[str, str, str]:
    return one.reason, one.node, str(one.pod or "")


def _disputed(cluster: ClusterView, node: str) -> list[Trouble]:
    """Pods whose own annotation and the ledger differ."""
    pods = cluster.pods.on(node)
    return [
        Trouble(
            Wrong.DISPUTED,
            f"its annotation and the NodeAllocation {node} state different devices or CPUs for it: "
            f"{_differs(dispute)}{_unread(pods[uid])}. What either states is held, and nothing new lands on these "
            f"devices. Find out who edited one of the two; correct the entry of UID {uid} by the annotation, or delete "
            "the Pod",
            node,
            pods[uid],
        )
        for uid, dispute in cluster.disputes(node).items()
        if uid in pods
    ]


def _unread(pod: PodInfo) -> str:
    if pod.annotation_problem:
        return f" (the annotation cannot be read: {pod.annotation_problem})"
    return "" if pod.holds else " (the annotation is gone)"


def _differs(dispute: Dispute) -> str:
    ids = sorted(dispute.devices)
    more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
    cpus = f"CPUs {format_cpuset(dispute.cpus)}" if dispute.cpus else ""
    return "; ".join(filter(None, (", ".join(ids[:_MAX_NAMED]) + more, cpus)))


def _vanished(cluster: ClusterView, record: Record) -> list[Trouble]:
    """Pods that hold devices which their node does not list any more, although it lists others or none."""
    listed = cluster.nodes.devices(record.node)
    if listed is None or listed.problems:
        return []  # the whole object is missing, or cannot be read: that is told elsewhere
    there = {(device.type, device.id) for device in cluster.devices(record.node)}
    pods = cluster.pods.on(record.node)
    found = []
    for uid, holding in record.holdings.items():
        gone = [f"{share.type} {share.id}" for share in holding.shares if (share.type, share.id) not in there]
        pod = pods.get(uid)
        if gone and pod is not None and not pod.finished:
            message = (
                f"node {record.node} does not list {', '.join(gone[:_MAX_NAMED])} any more, which this Pod holds: "
                "look at the node (a card that fell off the bus, was removed, or was partitioned anew); delete the Pod "
                "if it does not work, so that it gets other devices"
            )
            found.append(Trouble(Wrong.VANISHED, message, record.node, pod))
    return found


def _listed_twice(cluster: ClusterView) -> Steps[list[Trouble]]:
    """Nodes that list a GPU of another node; a device that is named by its place, a PCI address, has no identity."""
    of: dict[str, list[str]] = {}
    for node in sorted(cluster.nodes.known()):
        listed = cluster.nodes.devices(node)
        for device in listed.devices if listed is not None else ():
            if device.type == TYPE_GPU and pci_address(device.id) is None:
                of.setdefault(device.id, []).append(node)
        yield 0
    twice: dict[tuple[str, str], list[str]] = {}
    for identity, nodes in of.items():
        for node in nodes if len(nodes) > 1 else ():
            twice.setdefault((node, next(one for one in nodes if one != node)), []).append(identity)
    return [
        Trouble(
            Wrong.LISTED_TWICE,
            f"its Device object lists {', '.join(ids[:_MAX_NAMED])}, which node {other} lists as well: each of them "
            "may give the card away. Delete the Device object of the node that does not have it; if a machine was "
            "renamed, delete its old Node",
            node,
        )
        for (node, other), ids in twice.items()
    ]
