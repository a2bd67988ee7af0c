"""Clocks: certificates, holdings and leases are dated."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import Snapshot

_AREA: Final = "clocks"
_SAME_S: Final = 5.0
_NO_RENEWAL_S: Final = 1800.0  # beyond it no replica makes a certificate (webhook.tls.timing)
_AHEAD_S: Final = 15.0
_BEHIND_S: Final = 60.0  # a kubelet renews its lease every 10 s


def clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare this machine's clock and those of kubelets with the API server's."""
    offset = snapshot.offset
    if offset is None:
        yield unknown(_AREA, "the API server states no time", "compare the clocks by hand")
        return
    if abs(offset) > _SAME_S:
        which = "behind" if offset > 0 else "ahead of"
        what = f"this machine's clock is {abs(offset):.0f} s {which} the API server's"
        grave = failure if abs(offset) > _NO_RENEWAL_S else warning
        yield grave(_AREA, what, "set both by NTP; beyond 30 minutes no replica renews certificates")
    else:
        yield ok(_AREA, "this machine's clock is the API server's")
    yield from _kubelets(snapshot)


def _kubelets(snapshot: Snapshot) -> Iterator[Finding]:
    """A kubelet dates its lease by its own clock, every ten seconds while it lives."""
    leases = snapshot.of("leases")
    if leases.error or leases.absent:
        yield unknown(_AREA, f"the leases of kubelets cannot be read: {leases.error}", "compare the clocks by hand")
        return
    ready = {node["metadata"]["name"] for node in snapshot.of("nodes").items if node["ready"]}
    late, early, right = [], [], 0
    for lease in leases.items:
        name = lease["metadata"]["name"]
        if name not in ready:
            continue
        try:
            renewed = datetime.fromisoformat(lease["renewed"]).timestamp()
        except (TypeError, ValueError):
            continue
        if renewed - snapshot.now > _AHEAD_S:
            early.append(name)
        elif snapshot.now - renewed > _BEHIND_S:
            late.append(name)
        else:
            right += 1
    for which, names in (("ahead of", early), ("behind", late)):
        if names:
            what = f"the clocks of {len(names)} nodes are {which} the API server's: {listed(names)}"
            yield warning(_AREA, what, "set them by NTP")
    if right:
        yield ok(_AREA, f"the clocks of {right} kubelets are the API server's")
