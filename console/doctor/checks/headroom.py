"""The taint that keeps CPU for free devices, and the typical requests by which free devices are judged."""

from collections.abc import Iterator
from typing import Final

from allocator.vocabulary.names import HEADROOM
from allocator.vocabulary.preference import Preference
from console.doctor.findings import Finding, listed, ok, warning
from console.doctor.snapshot import Snapshot
from webhook.settings import WebhookSettings

_AREA: Final = "headroom"


def headroom(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that somebody keeps the taints that are there, and that they can have an effect."""
    settings, read = snapshot.settings, snapshot.of("nodes")
    if settings is None:
        return
    if not (read.error or read.cut):  # reported by the check of nodes
        short = sorted(one["metadata"]["name"] for one in read.items if one.get("short"))
        yield _taints(settings.headroom.mode, short, len(read.items))
    if settings.scheduler.preference is Preference.FRAGMENTATION or settings.headroom.mode == "taint":
        yield _typical(settings)


def _taints(mode: str, short: list[str], nodes: int) -> Finding:
    has = f"{len(short)} of {nodes} nodes have the taint {HEADROOM}"
    if mode == "taint":
        if not short or len(short) < nodes:
            return ok(_AREA, f"{has} (headroom.mode taint)")
        todo = "add nodes without devices, or set a lower headroom.taintBelowPercent (docs/packing.md)"
        return warning(_AREA, f"all {nodes} nodes have the taint {HEADROOM}: it keeps no Pod away from any", todo)
    if mode == "remove":
        if not short:
            return ok(_AREA, f"no node has the taint {HEADROOM} any more; headroom.mode can be none")
        todo = "wait a minute; if they stay, see the webhook's log and the lines about rights"
        return warning(_AREA, f"{has}, which are being removed: {listed(short)}", todo)
    if not short:
        return ok(_AREA, f"no node has the taint {HEADROOM} (headroom.mode none)")
    todo = f"set headroom.mode to taint or remove, or run: kubectl taint nodes --all {HEADROOM}-"
    return warning(_AREA, f"{has}, and nobody keeps it (headroom.mode none): {listed(short)}", todo)


def _typical(settings: WebhookSettings) -> Finding:
    if settings.scheduler.mix:
        return ok(_AREA, f"the typical requests are the {len(settings.scheduler.mix)} stated in scheduler.mix")
    return ok(
        _AREA,
        "the typical requests are those of Pods that hold devices (metric koordgate_typical_requests; while it is 0, "
        "headroom sets no taint, and fragmentation compares nodes by its other rules)",
    )
