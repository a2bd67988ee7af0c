"""Nodes as the commands about devices show them."""

from typing import Any

from console.devices.nodes import Known, SeenNodes
from koordgate.kube.resource import DEVICES, NODES
from webhook.ledger.kube import record_or_error
from webhook.view.nodereport import NodeReport

Raw = dict[str, Any]


def devices_in(document: Raw) -> dict[str, Raw]:
    """The devices of a document by id: what is free by resource, and their holders, in place of lists and places."""
    return {
        one["id"]: one
        | {
            "free": {
                of["name"]: amounts[2]
                for of, amounts in zip(document["types"][one["type"]]["resources"], one["amounts"], strict=True)
            },
            "pods": [node["holders"][share["holder"]] for share in one["shares"]],
        }
        for node in document["nodes"]
        for one in node["devices"]
    }


def report(
    name: str, device: Raw | None, spec: Any = None, node: Raw | None = None, known: Known | None = None
) -> NodeReport:
    """Report on a node with this Device object, spec of a NodeAllocation, and Node; None for each that it lacks."""
    seen = SeenNodes(known or Known())
    if device is not None:
        seen.put(DEVICES, device)
    if node is not None:
        seen.put(NODES, node)
    if spec is not None:
        seen.records.take(record_or_error({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}))
    return seen.report(name)
