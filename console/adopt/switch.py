"""Switches namespaces by their label."""

from collections.abc import Sequence
from typing import Final

from allocator.vocabulary.mode import Mode
from allocator.vocabulary.names import MODE_LABEL
from console import terminal
from console.adopt.findings import ClusterFindings
from console.adopt.steps import blockers
from console.devices.nodestate import CommandError
from console.terminal import printable
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import NAMESPACES

NOT_NOW: Final = 3
_MANAGER: Final = "koordgate-adopt"


async def switch(
    kube: KubeClient, found: ClusterFindings, namespaces: Sequence[str], to: Mode, *, dry_run: bool, force: bool
) -> int:
    """Set the label of namespaces, unless something is in the way; returns the exit status.

    Args:
        kube: the open client.
        found: in the cluster.
        namespaces: to be switched together.
        to: their new mode.
        dry_run: the API server checks the change, and stores nothing.
        force: switch although something is in the way.

    Raises:
        CommandError: there is no such namespace, or none of them is koordgate's business.
        KubeError: the API server refuses, or cannot be reached.
    """
    objects = {}
    for namespace in dict.fromkeys(namespaces):
        try:
            objects[namespace] = await kube.get(NAMESPACES.path(namespace))
        except (NotFound, ValueError) as error:
            raise CommandError(f"there is no namespace {namespace}: name one that exists") from error
    reasons = list(blockers(found, list(objects), to))
    for reason in reasons:
        terminal.show(printable(f"in the way: {reason}"))
    if reasons and not force:
        terminal.show("nothing was switched; --force switches all the same")
        return NOT_NOW
    for namespace, obj in objects.items():
        metadata = obj["metadata"]
        before = (metadata.get("labels") or {}).get(MODE_LABEL)
        dry = " (dry run: nothing is written)" if dry_run else ""
        if before == to:
            terminal.show(printable(f"{namespace} is in mode {to} already"))
            continue
        change = {"metadata": {"labels": {MODE_LABEL: str(to)}, "resourceVersion": metadata["resourceVersion"]}}
        path = NAMESPACES.path(namespace)
        await kube.patch(path, change, "merge", field_manager=_MANAGER, dry_run=dry_run)
        terminal.show(printable(f"{namespace}: {before or 'no mode of its own'} -> {to}{dry}"))
    return 0
