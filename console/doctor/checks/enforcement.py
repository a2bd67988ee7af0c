"""What holds: policies that need no replica, cpusets, and whether Pods have what was allocated to them."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from allocator.vocabulary.memoryuse import Keeping
from allocator.vocabulary.names import AGREEMENT
from allocator.wire.memoryuse import MEMORY_LIMITS, read_uses
from allocator.wire.values import MAX_OF_NODE, UNREADABLE, as_object, parse_json
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import Snapshot, enforcing

_AREA: Final = "enforcement"
_POLICIES: Final = (
    "koordgate-allocations",
    "koordgate-bindings",
    "koordgate-modes",
    "koordgate-preset-node",
    "koordgate-visible-devices",
)
_PEER_RESULTS: Final = "koordgate-peer-results"  # where other products' Pods count, or are imitated


def enforcement(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the policies' actions, what the reporter enforces, and the comparison of Pods with their allocations."""
    if snapshot.settings is None:
        return
    yield from _policies(snapshot)
    if snapshot.reporter:
        yield from _cpusets(snapshot.reporter)
        yield from _agreement(snapshot)
        yield from _memory(snapshot)


def _policies(snapshot: Snapshot) -> Iterator[Finding]:
    read, bindings = snapshot.of("policies"), snapshot.of("policyBindings")
    if read.error or bindings.error:
        todo = "run this as a user who may list validatingadmissionpolicies and their bindings"
        yield unknown(_AREA, f"policies cannot be read: {read.error or bindings.error}", todo)
        return
    peers = snapshot.settings is not None and bool(snapshot.settings.adopt.peers or snapshot.settings.mirror)
    denied: list[str] = []
    for name in (*_POLICIES, _PEER_RESULTS) if peers else _POLICIES:
        found = [
            one["spec"].get("validationActions") or []
            for one in bindings.items
            if one["spec"].get("policyName") == name and enforcing(one)
        ]
        if name not in read.names or not found:
            todo = f"set policies.{_value(name)}.action, unless you turned it off on purpose"
            yield warning(_AREA, f"the policy {name} is not installed", todo)
        elif "Deny" not in found[0]:
            todo = f"set policies.{_value(name)}.action: Deny once no Pod of your own is warned about"
            yield warning(_AREA, f"the policy {name} refuses nothing ({', '.join(found[0])})", todo)
        else:
            denied.append(name)
    if denied:
        yield ok(_AREA, f"the API server itself refuses what these policies name: {listed(denied)}")


def _value(name: str) -> str:
    """The chart's value of a policy: koordgate-preset-node -> presetNode."""
    first, *more = name.removeprefix("koordgate-").split("-")
    return first + "".join(word.capitalize() for word in more)


def _cpusets(reporter: Mapping[str, Any]) -> Iterator[Finding]:
    cpus = reporter.get("cpus") or {}
    if cpus.get("enforce") is False:
        yield warning(_AREA, "cpusets are not written", "set reporter.cpus.enforce: true, or let koordlet write them")
    else:
        yield ok(_AREA, "the reporter writes cpusets")


def _agreement(snapshot: Snapshot) -> Iterator[Finding]:
    """What reporters saw of the Pods of their nodes; a Pod of which nothing was seen is not among them."""
    if (snapshot.reporter.get("proof") or {}).get("enabled") is False:
        todo = "set reporter.proof.enabled: true"
        yield unknown(_AREA, "Pods are not compared with their allocations", todo)
        return
    agree, wrong, unread = 0, [], []
    for device in snapshot.of("devices").items:
        text = device["metadata"]["annotations"].get(AGREEMENT)
        if text is None:
            continue
        rows = _rows(text)
        if rows is None:
            unread.append(device["metadata"]["name"])
            continue
        for row in rows:
            agree += row.get("agrees") is True
            if row.get("agrees") is False:
                wrong.append(str(row.get("pod", "?")))
    if unread:
        yield warning(_AREA, f"annotation {AGREEMENT} cannot be read on {listed(unread)}", "see the reporters' logs")
    if wrong:
        todo = "see the Events AllocationMismatch on these Pods"
        yield failure(_AREA, f"{len(wrong)} Pods have other devices or CPUs than allocated: {listed(wrong)}", todo)
    elif agree:
        yield ok(_AREA, f"{agree} Pods have what was allocated to them, as far as reporters see it")


def _memory(snapshot: Snapshot) -> Iterator[Finding]:
    """Whether containers are kept to their memory of cards, as far as that was decided."""
    kept, missing, over = 0, set(), set()
    for device in snapshot.of("devices").items:
        uses, _ = read_uses(device["metadata"]["annotations"].get(MEMORY_LIMITS))
        for use in uses:
            kept += use.keeping is Keeping.ENFORCED
            if use.keeping is Keeping.MISSING:
                missing.add(f"{use.namespace}/{use.pod}")
            if use.exceeds:
                over.add(f"{use.namespace}/{use.pod}")
    if missing:
        todo = "see the Events LimitMissing on these Pods"
        yield failure(
            _AREA, f"{len(missing)} Pods are not kept to their memory of cards: {listed(sorted(missing))}", todo
        )
    elif kept:
        yield ok(_AREA, f"the driver keeps {kept} containers to their memory of their cards")
    if over:
        todo = "see the Events ShareExceeded on these Pods; memory limits keep them to what they hold"
        yield warning(_AREA, f"{len(over)} Pods use more memory of cards than they hold: {listed(sorted(over))}", todo)


def _rows(text: str) -> list[dict[str, Any]] | None:
    try:
        rows = as_object(parse_json(text, MAX_OF_NODE))
    except UNREADABLE:
        return None
    return [row for row in rows.values() if isinstance(row, dict)]
