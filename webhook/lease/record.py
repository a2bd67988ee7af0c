"""The Lease that ready replicas renew, as it is written and read (pure)."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from koordgate.kube.resource import LEASES

Raw = dict[str, Any]
Beat = tuple[str, str, str]
"""What of a Lease changes with each renewal; it is compared and never interpreted."""

_HELD: Final = ("holderIdentity", "renewTime", "leaseTransitions")


def renewal(holder: str, now: float, seconds: float) -> Raw:
    """Write what a renewal merges into the Lease.

    Args:
        holder: the replica that renews.
        now: seconds since the epoch. Only people read it.
        seconds: how often it is renewed.
    """
    at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # a MicroTime (k8s.io/apimachinery)
    return {"spec": {"holderIdentity": holder, "renewTime": at, "leaseDurationSeconds": max(1, round(3 * seconds))}}


def first(name: str, renewed: Mapping[str, Any]) -> Raw:
    """Write the Lease with its first renewal."""
    labels = {"app.kubernetes.io/name": "koordgate", "app.kubernetes.io/part-of": "koordgate"}
    return {"apiVersion": LEASES.api_version, "kind": "Lease", "metadata": {"name": name, "labels": labels}, **renewed}


def beat_of(lease: Mapping[str, Any]) -> Beat:
    """Read what a renewal changes. Labels and the like are left out: a change of these is no sign of life."""
    spec = lease.get("spec") or {}
    holder, renewed, transitions = (str(spec.get(key) or "") for key in _HELD)
    return holder, renewed, transitions
