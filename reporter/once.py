"""One look at the node (`--once --dry-run`): the same state machine; its writes are shown, not made."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import KubeError, NotFound
from koordgate.kube.resource import DEVICES, NODES, PODS, TOPOLOGIES, Resource
from reporter.gpu.guarded import GuardedNvml
from reporter.host import Host
from reporter.kubelet.podresources import PodResourcesSocket
from reporter.perform import Performer, plan_of
from reporter.pods import read_pod
from reporter.publish.events import EventWriter
from reporter.round.clock import Moment
from reporter.round.decide import Decided
from reporter.round.effects import AskKubelet, Prove, ReadCards, ReadHost, ReadPolicy, WriteCpus
from reporter.round.events import Due, Listed, ObjectStands, PodsChanged, Restored, RoundEvent, WatchedKind
from reporter.round.state import RoundPlan, RoundState
from reporter.round.step import next_due, step, wakes_at
from reporter.settings import ReporterSettings
from reporter.watches import in_order

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
