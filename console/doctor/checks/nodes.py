"""Nodes: what reports them, how fresh that is, and who else chooses CPUs there."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from allocator.vocabulary.names import REPORTER_MANAGER
from allocator.wire.nodetopology import CPU_MANAGER_POLICY
from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import REPORTER, REPORTERS, Snapshot

_AREA: Final = "nodes"
_MOST_TOLD: Final = 20  # misspelt keys
_GPU_LABELS: Final = {"nvidia.com/gpu.present": "true", "feature.node.kubernetes.io/pci-10de.present": "true"}


def nodes(snapshot: Snapshot) -> Iterator[Finding]:
    """Check that each node's objects are there and kept up to date."""
    read, devices, topologies = (snapshot.of(key) for key in ("nodes", "devices", "topologies"))
    for key, one in (("nodes", read), ("devices", devices), ("topologies", topologies)):
        if one.error:
            yield unknown(_AREA, f"{key} cannot be read: {one.error}", f"run this as a user who may list {key}")
        if one.cut:
            todo = "ask about single nodes with koordgate devices NODE"
            yield unknown(_AREA, f"there are more than {len(one.items)} {key}: they are not compared", todo)
    if any(one.error or one.cut for one in (read, devices)):
        return
    known = {one["metadata"]["name"]: one for one in read.items}
    yield from _unlisted(known, devices.names)
    yield from _misspelt(known)
    yield from _fresh(snapshot, known)
    yield from _runtime_class(snapshot)
    yield from _policies(snapshot)


def _unlisted(known: Mapping[str, Any], listed_nodes: frozenset[str]) -> Iterator[Finding]:
    """Nodes that state cards, and have no Device object that lists them."""
    with_cards = [
        name
        for name, node in known.items()
        if any(node["metadata"]["labels"].get(key) == value for key, value in _GPU_LABELS.items())
    ]
    missing = [name for name in with_cards if name not in listed_nodes]
    if missing:
        todo = f"see whether {REPORTER} runs there (taints, nodeSelector), and its log"
        yield failure(_AREA, f"{len(missing)} nodes have NVIDIA cards and no Device object: {listed(missing)}", todo)
    gone = sorted(listed_nodes - known.keys())
    if gone:
        yield warning(
            _AREA, f"Device objects of nodes that do not exist: {listed(gone)}", "kubectl delete devices NAME"
        )
    if not missing:
        yield ok(_AREA, f"{len(listed_nodes & known.keys())} of {len(known)} nodes have Device objects")


def _misspelt(known: Mapping[str, Any]) -> Iterator[Finding]:
    """Labels and annotations that nobody reads, by what is wrong with them: fleets are labelled alike."""
    wrong: dict[str, list[str]] = {}
    for name, node in sorted(known.items()):
        for what in node["misspelt"]:
            wrong.setdefault(what, []).append(name)
    for what, names in islice(sorted(wrong.items()), _MOST_TOLD):
        yield warning(_AREA, f"{what} on {listed(names)}", "correct the key (docs/annotations.md, Labels of a Node)")


def _fresh(snapshot: Snapshot, known: Mapping[str, Any]) -> Iterator[Finding]:
    """An object is as fresh as the reporter that writes it is alive: it writes only what changed."""
    pods = snapshot.of("pods")
    if pods.error or pods.cut or not snapshot.reporter:
        return
    alive = {
        pod["node"]
        for pod in pods.items
        if pod["ready"] and pod["metadata"]["labels"].get("app.kubernetes.io/name") == REPORTER
    }
    ours = {
        one["metadata"]["name"]
        for key in ("devices", "topologies")
        for one in snapshot.of(key).items
        if REPORTER_MANAGER in one["managers"] and one["metadata"]["name"] in known
    }
    stale = [name for name in sorted(ours - alive) if known[name]["ready"]]
    if stale:
        todo = f"kubectl -n {snapshot.namespace} get pods -o wide: no reporter is ready there"
        what = f"what koordgate knows of {len(stale)} nodes is not kept up to date: {listed(stale)}"
        yield failure(_AREA, what, todo)
    down = [name for name in sorted(ours) if not known[name]["ready"]]
    if down:
        what = f"{len(down)} nodes with devices are not ready: {listed(down)}"
        yield warning(_AREA, what, "kubectl describe node NAME")
    if ours and not stale:
        yield ok(_AREA, f"a reporter is ready on all {len(ours) - len(down)} ready nodes that it reports")
    without = sorted(
        {one["metadata"]["name"] for one in snapshot.of("devices").items} - snapshot.of("topologies").names
    )
    if without and not (snapshot.of("topologies").error or snapshot.of("topologies").cut):
        todo = "see the reporter's log there; Pods with CPUs of their own cannot be placed on these nodes"
        yield warning(_AREA, f"{len(without)} nodes have no NodeResourceTopology: {listed(without)}", todo)


def _runtime_class(snapshot: Snapshot) -> Iterator[Finding]:
    """The reporter's own Pods see cards by the RuntimeClass that the chart's value names."""
    ours, classes = (snapshot.of("daemonsets").named(name) for name in REPORTERS), snapshot.of("runtimes")
    wanted = next((one["runtimeClass"] for one in ours if one is not None and one["runtimeClass"]), "")
    if wanted and not classes.error and wanted not in classes.names:
        todo = "create it, or correct reporter.gpus.runtimeClassName"
        yield failure(_AREA, f"there is no RuntimeClass {wanted}", todo)


def _policies(snapshot: Snapshot) -> Iterator[Finding]:
    """The kubelet's static policy chooses CPUs by itself."""
    stated = Counter(
        "static" if '"static"' in text else "other"
        for one in snapshot.of("topologies").items
        if (text := one["metadata"]["annotations"].get(CPU_MANAGER_POLICY)) is not None
    )
    if stated["static"]:
        todo = "set cpuManagerPolicy: none, or reporter.cpus.takeOver (docs/limits.md)"
        yield warning(_AREA, f"the kubelets of {stated['static']} nodes choose CPUs by their static policy", todo)
    elif stated:
        yield ok(_AREA, f"the kubelets of {stated['other']} nodes choose no CPUs by themselves")
