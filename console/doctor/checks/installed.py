"""What the chart installs is there, and runs."""

from collections.abc import Iterator
from typing import Any, Final

from console.doctor.findings import Finding, failure, listed, ok, unknown, warning
from console.doctor.snapshot import RELEASE, REPORTER, REPORTERS, Raw, Snapshot

_AREA: Final = "installed"
_SCHEDULER: Final = "koord-scheduler"


def installed(snapshot: Snapshot) -> Iterator[Finding]:
    """Check the settings, the workloads, the webhook configurations and the API server's queues."""
    space = snapshot.namespace
    if snapshot.settings is None:
        todo = "name the release's namespace with --namespace, or install koordgate"
        yield failure(_AREA, f"the settings are unknown: {snapshot.settings_problem}", todo)
        return
    yield ok(_AREA, f"the settings in {space} are read")
    yield from _workload(snapshot, "deployments", RELEASE)
    deployed = [one for one in snapshot.of("deployments").items if one["metadata"]["namespace"] == space]
    if any(one["metadata"]["name"] == _SCHEDULER for one in deployed):
        yield from _workload(snapshot, "deployments", _SCHEDULER)
    else:
        todo = f"see that the scheduler of user {snapshot.settings.scheduler.username} runs"
        yield unknown(_AREA, f"{_SCHEDULER} is not installed by this chart", todo)
    if snapshot.reporter:
        for name in _reporters(snapshot) or [REPORTER]:
            yield from _workload(snapshot, "daemonsets", name)
    yield from _budget(snapshot)
    yield from _queues(snapshot)


def _reporters(snapshot: Snapshot) -> list[str]:
    """The DaemonSets of reporters that have nodes: where all nodes have cards, the other has none."""
    ours = {
        one["metadata"]["name"] for one in snapshot.of("daemonsets").items if _ours(snapshot, one) and one["wanted"]
    }
    return [name for name in REPORTERS if name in ours]


def _ours(snapshot: Snapshot, one: Raw) -> bool:
    return bool(one["metadata"]["namespace"] == snapshot.namespace)


def _workload(snapshot: Snapshot, key: str, name: str) -> Iterator[Finding]:
    space, read = snapshot.namespace, snapshot.of(key)
    if read.error:
        yield unknown(_AREA, f"{key} cannot be read: {read.error}", f"run this as a user who may list {key}")
        return
    mine = [one for one in read.items if (one["metadata"]["namespace"], one["metadata"]["name"]) == (space, name)]
    if not mine:
        yield failure(_AREA, f"there is no {name} among the {key} of {space}", "helm upgrade --install koordgate ...")
        return
    wanted, ready = mine[0]["wanted"], mine[0]["ready"]
    if ready >= wanted > 0:
        yield ok(_AREA, f"{name}: {ready} of {wanted} Pods are ready")
        return
    todo = f"kubectl -n {space} get pods; kubectl -n {space} logs {key}/{name}{_reasons(snapshot, name)}"
    what = f"{name}: {ready} of {wanted} Pods are ready"
    if not wanted and key == "daemonsets":
        yield warning(_AREA, f"{name}: no node takes it", "compare reporter.nodeSelector with the labels of nodes")
    else:
        yield (warning if ready else failure)(_AREA, what, todo)


def _reasons(snapshot: Snapshot, name: str) -> str:
    """Why containers of a workload do not start, as the kubelet says it."""
    reasons = {
        reason
        for pod in snapshot.of("pods").items
        if pod["metadata"]["labels"].get("app.kubernetes.io/name") == name
        for reason in pod["waiting"]
        if reason
    }
    return f" ({listed(sorted(reasons))})" if reasons else ""


def _budget(snapshot: Snapshot) -> Iterator[Finding]:
    found: dict[str, Any] = {
        one["metadata"]["name"]: one
        for one in snapshot.of("deployments").items
        if one["metadata"]["namespace"] == snapshot.namespace
    }
    replicas = found.get(RELEASE, {}).get("wanted", 0)
    if replicas == 1:
        todo = "set replicas: 2, so that a drained node stops nobody"
        yield warning(_AREA, "the webhook has one replica", todo)
    elif replicas > 1 and not snapshot.of("budgets").error and RELEASE not in snapshot.of("budgets").names:
        yield warning(_AREA, "the webhook has no PodDisruptionBudget", "helm upgrade: the chart installs one")


def _queues(snapshot: Snapshot) -> Iterator[Finding]:
    levels, flows = snapshot.of("levels"), snapshot.of("flows")
    if levels.error or flows.error:
        todo = "run this as an administrator"
        yield unknown(_AREA, f"flow control cannot be read: {levels.error or flows.error}", todo)
    elif missing := {RELEASE, _SCHEDULER} - (levels.names & flows.names):
        todo = "set flowControl.enabled: true, or see that binds cannot starve the ledger's writes"
        yield warning(_AREA, f"no priority level and flow schema of its own: {listed(sorted(missing))}", todo)
    else:
        yield ok(_AREA, "binds and the ledger have priority levels of their own")
