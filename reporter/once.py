"""One look at the node (`--once --dry-run`): the same state machine; its writes are shown as text, not made."""

import io
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from allocator.vocabulary.cputopology import format_cpuset
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound
from koordgate.kube.resource import DEVICES, NODES, PODS, TOPOLOGIES, Resource
from reporter.cgroup.plan import WantedCpusets
from reporter.gpu.guarded import GuardedNvml
from reporter.host import Host
from reporter.kubelet.podsocket import PodResourcesSocket
from reporter.perform import Performer, plan_of
from reporter.pods import in_order, read_pod
from reporter.publish.events import EventWriter
from reporter.round.decide import Decided
from reporter.round.messages import (
    AskKubelet,
    Due,
    Listed,
    Moment,
    ObjectStands,
    PodsChanged,
    Prove,
    ReadCards,
    ReadHost,
    ReadPolicy,
    Restored,
    RoundEvent,
    WatchedKind,
    WriteCpus,
)
from reporter.round.state import RoundPlan, RoundState
from reporter.round.step import next_due, step, wakes_at
from reporter.settings import ReporterSettings

_WIDTH = 160


def draw(decided: Decided, wants: Iterable[WantedCpusets], problems: Iterable[str]) -> str:
    """Draw devices, CPUs, Pods and problems."""
    target = io.StringIO()
    console = Console(file=target, width=_WIDTH, highlight=False, markup=False)
    console.print(_devices(decided))
    console.print(_pools(decided))
    console.print(_pods(decided, wants))
    for problem in problems:
        console.print(f"problem: {problem}")
    return target.getvalue()


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for column in table.columns:
        column.overflow = "fold"
    return table


def _devices(decided: Decided) -> Table:
    table = _table("Devices", "type", "minor", "id", "NUMA", "PCIe root", "healthy", "why")
    for entry in decided.device.body["spec"]["devices"]:
        place = entry.get("topology") or {}
        condition = (entry.get("conditions") or [{}])[0]
        table.add_row(
            entry["type"],
            str(entry["minor"]),
            entry["id"],
            str(place.get("nodeID", "?")),
            str(place.get("pcieID", "?")),
            "yes" if entry["health"] else "no",
            f"{condition.get('reason', '')} {condition.get('message', '')}".strip(),
        )
    return table


def _pools(decided: Decided) -> Table:
    table = _table("CPUs", "what", "CPUs")
    pools, kubelet = decided.topology.pools, decided.topology.kubelet
    table.add_row("shared pool", format_cpuset(pools.shared))
    table.add_row("best-effort pool", format_cpuset(pools.best_effort))
    table.add_row("system", format_cpuset(pools.system))
    table.add_row("kubelet's CPU manager", "static" if kubelet.static else "none")
    for uid, containers in sorted(kubelet.given.items()):
        for name, cpus in sorted(containers.items()):
            table.add_row(f"given by the kubelet to {uid} {name}".rstrip(), format_cpuset(cpus))
    return table


def _pods(decided: Decided, wants: Iterable[WantedCpusets]) -> Table:
    table = _table("Pods", "Pod", "class", "CPUs to have", "agrees", "note")
    found = {one.pod.cgroup: one for one in decided.agreements}
    for want in wants:
        compared = found.get(want.pod.uid)
        notes = [want.note, *(mismatch.message for mismatch in (compared.mismatches if compared else ()))]
        table.add_row(
            want.pod.name,
            want.pod.qos or want.pod.qos_class.value,
            format_cpuset(want.cpus) or "as they are",
            "" if compared is None else "no" if compared.mismatches else "yes",
            "; ".join(filter(None, notes)),
        )
    return table


_OBJECTS: Final = {WatchedKind.NODE: NODES, WatchedKind.DEVICE: DEVICES, WatchedKind.TOPOLOGY: TOPOLOGIES}
_LOOKS: Final = (ReadCards, ReadHost, WriteCpus, Prove, AskKubelet, ReadPolicy)  # performed, without changing anything


async def look(
    configured: ReporterSettings, node: str, kube: KubeClient | None, nvml: GuardedNvml | None
) -> tuple[Decided, tuple[str, ...]]:
    """Look once, and change nothing.

    Returns what was decided, and everything that is wrong, a sentence each.
    """
    # An outage of NVML counts immediately: a single look does not wait for its end.
    plan = replace(plan_of(configured, node, gpus=nvml is not None), settle_seconds=0.0)
    events: list[RoundEvent] = []
    problem = ""
    if kube is not None:
        try:
            await _read_cluster(kube, plan, events)
        except KubeError as error:
            problem = f"the API server: {error}"
    else:
        plan = replace(plan, configz=False, policies=False)
    cluster = (kube, EventWriter(kube, time.time)) if kube is not None else None
    host = Host(configured)
    performer = Performer(
        host, PodResourcesSocket(configured.kubelet.pod_resources, patience=0), nvml, cluster, node, dry=True
    )
    try:
        restored = Restored(*host.load_health())
        state, decided = await _settle(RoundState(plan), (restored, *events, *map(Listed, WatchedKind)), performer)
    finally:
        performer.close()
    outage = state.cards.view.outage
    said = (problem, f"NVML: {outage.message}" if outage is not None else "", *state.problems)
    return decided, tuple(filter(None, said))


async def _settle(state: RoundState, events: Iterable[RoundEvent], performer: Performer) -> tuple[RoundState, Decided]:
    """Run the machine until it would publish everything; time advances only when no other work is left."""
    waiting = deque(events)
    steady = 0.0
    while state.telling is None or not state.telling.with_cards:
        now = Moment(time.time(), steady)
        if not waiting:
            lane = next_due(state, now)
            if lane is None:
                steady = wakes_at(state, now)
                continue  # finite: a round is always due or under way
            waiting.append(Due(lane))
        state, effects = step(state, waiting.popleft(), now)
        waiting.extend([await performer.perform(effect) for effect in effects if isinstance(effect, _LOOKS)])
    return state, state.telling.decided


async def _read_cluster(kube: KubeClient, plan: RoundPlan, events: list[RoundEvent]) -> None:
    """Read the objects and the Pods, one after another; what was read before a failure is kept.

    Raises KubeError: the API server does not answer, or refuses.
    """
    for what, resource in _OBJECTS.items():
        obj = await _object(kube, resource, plan.name)
        if obj is not None:
            events.append(ObjectStands(what, obj))
    found = []
    async for page, _ in kube.list_pages(PODS.path(), params={"fieldSelector": f"spec.nodeName={plan.name}"}):
        found += [read_pod(obj, plan.rules.types) for obj in page]
    events.append(PodsChanged(in_order(found)))


async def _object(kube: KubeClient, resource: Resource, name: str) -> dict[str, Any] | None:
    try:
        return await kube.get(resource.path(name))
    except NotFound:
        return None
