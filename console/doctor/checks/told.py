"""What replicas say by Events is wrong with devices and Pods: they repeat it while it is so."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import Raw, Snapshot
from console.terminal import counted
from koordgate.kube.resource import TOLD_AGAIN_S

_AREA: Final = "told"
_LATE_S: Final = 120  # until an Event that is due again is written: a reconciliation, and its writing
_UNREADABLE: Final = "CannotBeRead"  # what anybody can cause, with an object of his own
_REPEATED: Final = (
    "AllocationDisputed",
    "AllocationUnreadable",
    "BoundWithoutDevices",
    _UNREADABLE,
    "DeviceHeldTwice",
    "DeviceListedTwice",
    "DeviceVanished",
)


def told(snapshot: Snapshot) -> Iterator[Finding]:
    """Report by reason what replicas have said within the time after which they say it again."""
    read = snapshot.of("events")
    if read.error:
        yield unknown(_AREA, f"Events cannot be read: {read.error}", "run this as a user who may list events")
        return
    recent: dict[str, dict[str, str]] = {}
    for one in read.items:
        if one["reason"] in _REPEATED and snapshot.now - _at(one) <= TOLD_AGAIN_S + _LATE_S:
            recent.setdefault(one["reason"], {})[one["about"]] = one["message"]
    for reason, about in sorted(recent.items()):
        name = min(about)
        what = f"{reason} about {counted(len(about), 'object')}: {listed(list(about))}; {name}: {about[name]}"
        tell = warning if reason == _UNREADABLE else failure
        yield tell(
            _AREA, what, f"docs/operations.md, {reason}; half an hour after it is mended nothing is told any more"
        )
    if not recent:
        yield ok(_AREA, f"no replica has told of wrong devices or Pods within {TOLD_AGAIN_S // 60} minutes")


def _at(one: Raw) -> float:
    try:
        return datetime.fromisoformat(one["at"]).timestamp()
    except (TypeError, ValueError):
        return 0.0
