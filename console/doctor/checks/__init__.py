"""The checks: rows of an area, what is judged, and what must have been read for it; each judge is a pure function."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from console.doctor.checks import delivery, installed, nodes, served
from console.doctor.findings import Finding, unknown
from console.doctor.rights import rights
from console.doctor.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Check:
    """One check. It is left out where something of this is missing."""

    area: str
    judge: Callable[[Snapshot], Iterable[Finding]]
    reads: tuple[str, ...] = ()  # what must have been read
    whole: tuple[str, ...] = ()  # what must have been read, to its end
    beside: tuple[str, ...] = ()  # what is judged as far as it was read
    settings: bool = False  # whether the webhook's settings must be known
    reporter: bool = False  # whether the reporter must be installed


CHECKS: Final = (
    Check("versions", installed.api_server),
    Check("versions", installed.images, reads=("pods",)),
    Check("versions", installed.definitions, reads=("crds",)),
    Check("clocks", nodes.own_clock),
    Check("clocks", nodes.kubelet_clocks, reads=("leases", "nodes")),
    Check("installed", installed.settings_read),
    Check("installed", installed.replicas, reads=("deployments",), settings=True),
    Check("installed", installed.reporters, reads=("daemonsets",), settings=True, reporter=True),
    Check("installed", installed.budget, reads=("deployments", "budgets"), settings=True),
    Check("installed", installed.queues, reads=("levels", "flows"), settings=True),
    Check("certificates", partial(installed.configuration, key="mutating"), reads=("mutating",), settings=True),
    Check("certificates", partial(installed.configuration, key="validating"), reads=("validating",), settings=True),
    Check("certificates", installed.secrets, settings=True),
    Check("rights", rights),
    Check("dry run", served.answers, settings=True),
    Check("enforcement", served.enforced, reads=("policies", "policyBindings"), settings=True),
    Check("enforcement", served.cpusets, settings=True, reporter=True),
    Check("enforcement", served.agreement, reads=("devices",), settings=True, reporter=True),
    Check("enforcement", served.memory, reads=("devices",), settings=True, reporter=True),
    Check("other products", served.clashes, beside=("daemonsets", "deployments", "mutating")),
    Check("other products", served.given_twice, reads=("nodes", "devices"), reporter=True),
    Check("policies", served.policies, settings=True),
    Check("quotas", served.quotas, whole=("quotas",), settings=True),
    Check("nodes", nodes.listed_nodes, whole=("nodes", "devices")),
    Check("nodes", nodes.misspelt, reads=("nodes",)),
    Check("nodes", nodes.fresh, whole=("nodes", "devices", "pods"), beside=("topologies",), reporter=True),
    Check("nodes", nodes.reporter_class, reads=("daemonsets", "runtimes")),
    Check("nodes", nodes.without_topology, whole=("devices", "topologies"), reporter=True),
    Check("nodes", nodes.cpu_policies, whole=("topologies",)),
    Check("told", nodes.told, reads=("events",)),
    Check("delivery", delivery.delivery, reads=("runtimes",), whole=("nodes", "devices"), settings=True),
    Check("headroom", installed.taints, whole=("nodes",), settings=True),
    Check("headroom", installed.typical, settings=True),
)
"""In the order in which their findings are best read."""
_CALLED: Final = {
    "budgets": "PodDisruptionBudgets",
    "crds": "definitions of custom resources",
    "flows": "flow schemas",
    "levels": "priority levels",
    "mutating": "mutating webhook configurations",
    "policyBindings": "bindings of policies",
    "runtimes": "RuntimeClasses",
    "validating": "validating webhook configurations",
}


def examine(snapshot: Snapshot) -> list[Finding]:
    """Run all checks; what cannot be read, or not to its end, is told once."""
    told: set[str] = set()
    found: list[Finding] = []
    for check in CHECKS:
        if (check.settings and snapshot.settings_problem) or (check.reporter and not snapshot.reporter):
            continue
        judged = not any(snapshot.of(key).error for key in (*check.reads, *check.whole))
        judged = judged and not any(snapshot.of(key).cut for key in check.whole)
        said = (*_unread(check, snapshot, told), *(check.judge(snapshot) if judged else ()))
        found += (replace(one, area=check.area) for one in said)
    return found


def _unread(check: Check, snapshot: Snapshot, told: set[str]) -> Iterator[Finding]:
    for key in (*check.reads, *check.whole, *check.beside):
        read, called = snapshot.of(key), _CALLED.get(key, key)
        if read.error and key not in told:
            told.add(key)
            yield unknown(f"{called} cannot be read: {read.error}", "run this as a user who may list or get them")
        if read.cut and key in check.whole and key not in told:
            told.add(key)
            todo = "ask about single ones: koordgate top NODE, kubectl get"
            yield unknown(f"there are more than {len(read.items)} {called}: they are not compared", todo)
