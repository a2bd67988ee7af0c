"""Nodes: what reports them and how fresh that is, their clocks, and what replicas say by Events of their devices."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Final

from allocator.vocabulary.names import REPORTER_MANAGER
from allocator.wire.nodetopology import CPU_MANAGER_POLICY
from console.cluster import is_ready
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import REPORTER, REPORTERS, Raw, Snapshot
from console.terminal import counted
from koordgate.kube.resource import TOLD_AGAIN_S

_MAX_TOLD: Final = 20  # misspelt keys
_GPU_LABELS: Final = {"nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/pci-10de.present": "true"}


def listed_nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes that state cards, and have no Device object that lists them."""
    known, having = _known(snapshot), snapshot.of("devices").names
    with_cards = [
        name
        for name, node in known.items()
        if any(node["metadata"]["labels"].get(key) == value for key, value in _GPU_LABELS.items())
    ]
    missing = [name for name in with_cards if name not in having]
    if missing:
        todo = f"see whether {REPORTER} runs there (taints, nodeSelector), and its log"
        yield failure(f"nodes with NVIDIA cards and no Device object ({len(missing)}): {listed(missing)}", todo)
    gone = sorted(having - known.keys())
    if gone:
        yield warning(f"Device objects of nodes that do not exist: {listed(gone)}", "kubectl delete devices NAME")
    if not missing:
        yield ok(f"{len(having & known.keys())} of {len(known)} nodes have Device objects")


def _known(snapshot: Snapshot) -> dict[str, Raw]:
    return {one["metadata"]["name"]: one for one in snapshot.of("nodes").items}


def misspelt(snapshot: Snapshot) -> Iterator[Finding]:
    """Labels and annotations that nobody reads, by what is wrong with them: fleets are labelled alike."""
    wrong: dict[str, list[str]] = {}
    for name, node in sorted(_known(snapshot).items()):
        for what in node["misspelt"]:
            wrong.setdefault(what, []).append(name)
    for what, names in islice(sorted(wrong.items()), _MAX_TOLD):
        yield warning(f"{what} on {listed(names)}", "correct the key (docs/reference/formats.md, Labels of a Node)")


def fresh(snapshot: Snapshot) -> Iterator[Finding]:
    """An object is as fresh as the reporter that writes it is alive: it writes only what changed."""
    known = _known(snapshot)
    alive = {
        pod["node"]
        for pod in snapshot.of("pods").items
        if pod["ready"] and pod["metadata"]["labels"].get("app.kubernetes.io/name") == REPORTER
    }
    ours = {
        one["metadata"]["name"]
        for key in ("devices", "topologies")
        for one in snapshot.of(key).items
        if REPORTER_MANAGER in one["managers"] and one["metadata"]["name"] in known
    }
    stale = [name for name in sorted(ours - alive) if is_ready(known[name])]
    if stale:
        todo = f"kubectl -n {snapshot.namespace} get pods -o wide: no reporter is ready there"
        what = f"what koordgate knows of {counted(len(stale), 'node')} is not kept up to date: {listed(stale)}"
        yield failure(what, todo)
    down = [name for name in sorted(ours) if not is_ready(known[name])]
    if down:
        what = f"nodes with devices that are not ready ({len(down)}): {listed(down)}"
        yield warning(what, "kubectl describe node NAME")
    if ours and not stale:
        yield ok(f"a reporter is ready on all {len(ours) - len(down)} ready nodes that it reports")


def without_topology(snapshot: Snapshot) -> Iterator[Finding]:
    """Nodes with devices of which no CPUs are known."""
    if without := sorted(snapshot.of("devices").names - snapshot.of("topologies").names):
        todo = "see the reporter's log there; Pods with CPUs of their own cannot be placed on these nodes"
        yield warning(f"nodes without a NodeResourceTopology ({len(without)}): {listed(without)}", todo)


def cpu_policies(snapshot: Snapshot) -> Iterator[Finding]:
    """The kubelet's static policy chooses CPUs by itself."""
    stated = Counter(
        "static" if '"static"' in text else "other"
        for one in snapshot.of("topologies").items
        if (text := one["metadata"]["annotations"].get(CPU_MANAGER_POLICY)) is not None
    )
    if stated["static"]:
        todo = "set cpuManagerPolicy: none, or enforcement.enabled (docs/operate/enforcement.md)"
        yield warning(f"the kubelets of {counted(stated['static'], 'node')} choose CPUs by their static policy", todo)
    elif stated:
        yield ok(f"the kubelets of {counted(stated['other'], 'node')} choose no CPUs by themselves")


def reporter_class(snapshot: Snapshot) -> Iterator[Finding]:
    """The reporter's own Pods see cards by the RuntimeClass that the chart's value names."""
    ours = (snapshot.of("daemonsets").named(name) for name in REPORTERS)
    wanted = next((one["runtimeClass"] for one in ours if one is not None and one["runtimeClass"]), "")
    if wanted and wanted not in snapshot.of("runtimes").names:
        todo = "create it, or correct reporter.gpus.runtimeClassName"
        yield failure(f"there is no RuntimeClass {wanted}", todo)


_SAME_S: Final = 5.0
_NO_RENEWAL_S: Final = 1800.0  # beyond it no replica makes a certificate (webhook.tls.timing)
_AHEAD_S: Final = 15.0
_BEHIND_S: Final = 60.0  # a kubelet renews its lease every 10 s


def own_clock(snapshot: Snapshot) -> Iterator[Finding]:
    """Compare this machine's clock with the API server's."""
    offset = snapshot.offset
    if offset is None:
        yield unknown("the API server states no time", "compare the clocks by hand")
    elif abs(offset) > _SAME_S:
        which = "behind" if offset > 0 else "ahead of"
        what = f"this machine's clock is {abs(offset):.0f} s {which} the API server's"
        grave = failure if abs(offset) > _NO_RENEWAL_S else warning
        yield grave(what, "set both by NTP; beyond 30 minutes no replica renews certificates")
    else:
        yield ok("this machine's clock is the API server's")


def kubelet_clocks(snapshot: Snapshot) -> Iterator[Finding]:
    """A kubelet dates its lease by its own clock, every ten seconds while it lives."""
    if snapshot.offset is None:
        return
    ready = {node["metadata"]["name"] for node in snapshot.of("nodes").items if is_ready(node)}
    late, early, right = [], [], 0
    for lease in snapshot.of("leases").items:
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
            what = f"the clocks of {counted(len(names), 'node')} are {which} the API server's: {listed(names)}"
            yield warning(what, "set them by NTP")
    if right:
        yield ok(f"the clocks of {counted(right, 'kubelet')} are the API server's")


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
    recent: dict[str, dict[str, str]] = {}
    for one in snapshot.of("events").items:
        if one["reason"] in _REPEATED and snapshot.now - _at(one) <= TOLD_AGAIN_S + _LATE_S:
            recent.setdefault(one["reason"], {})[one["about"]] = one["message"]
    for reason, about in sorted(recent.items()):
        name = min(about)
        what = f"{reason} about {counted(len(about), 'object')}: {listed(list(about))}; {name}: {about[name]}"
        tell = warning if reason == _UNREADABLE else failure
        page = f"docs/operate/operations.md, {reason}"
        yield tell(what, f"{page}; half an hour after it is mended nothing is told any more")
    if not recent:
        yield ok(f"no replica has told of wrong devices or Pods within {TOLD_AGAIN_S // 60} minutes")


def _at(one: Raw) -> float:
    try:
        return datetime.fromisoformat(one["at"]).timestamp()
    except (TypeError, ValueError):
        return 0.0
