"""What the reporter tells the enforcer, and what it makes of what the enforcer tells (pure)."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.delivery import Bringing, EnforcerTold, LimitProvider, NodeRuntime, by_enforcer
from allocator.vocabulary.names import ISOLATION_PROVIDER, TYPE_GPU
from reporter import exchange
from reporter.cgroup import plan
from reporter.delivery import CardsThere, of_driver
from reporter.exchange import CardPlace, Facts
from reporter.gpu.health import NodeRecord
from reporter.pods import NodeIdentity, NodePod
from reporter.publish.events import Occurrence, about_node, about_pod
from reporter.publish.nodestatus import is_ours
from reporter.reading import EnforcerReading
from reporter.settings import Enforcement

_MAX_TOLD: Final = 400  # characters of a reason that is told on the Device object
_REASON: Final = re.compile(r"[A-Z][A-Za-z]{0,63}", re.ASCII)
REASONS: Final = ("ContainerRefused", "CpusetsByAnother", "LimitMissing")  # of the enforcer's remarks
OTHER: Final = "other"
_NO_WAY: Final = (
    "has no CDI specification that names every card by its UUID, and no container runtime of NVIDIA's is known to read "
    "what koordgate's enforcer brings: let `nvidia-ctk cdi generate` write a specification, or install NVIDIA's runtime"
)


def provider_of(node: Mapping[str, Any] | None, settings: Enforcement) -> LimitProvider:
    """What is to keep limits on a node: as somebody else's label on it says, otherwise as the settings do."""
    live = node or {}
    label = ((live.get("metadata") or {}).get("labels") or {}).get(ISOLATION_PROVIDER)
    stated = label if not is_ours(live, _LABELS, ISOLATION_PROVIDER) else None
    return next((one for one in LimitProvider if one == stated), settings.provider)


def no_limits(
    provider: LimitProvider, runtime: NodeRuntime | None, cards: CardsThere, seen: EnforcerReading, *, cgroup2: bool
) -> str:
    """Why a provider keeps no limits on the node, and the cure, as far as the reporter knows; "" if nothing is known.

    A part of a sentence about the node.
    """
    match provider:
        case LimitProvider.CGROUP:
            return of_driver(cards, cgroup2=cgroup2)
        case LimitProvider.HAMI_CORE:
            return "" if seen.library else _NO_LIBRARY
        case LimitProvider.MPS:
            return "" if seen.pipe else _NO_PIPE
        case LimitProvider.NVIDIA_TOOLKIT:
            return (runtime.no_limits or "") if runtime is not None else ""
        case _:
            return ""


def cpu_facts(
    pods: Iterable[NodePod], pools: plan.SharedCpus, kubelet: plan.KubeletRules, *, mems: bool
) -> exchange.Cpus:
    """What the enforcer must know of CPUs. `mems`: whether memory follows the NUMA nodes that were allocated.

    Which containers run beside a Pod's own CPUs is told by name: none has an id before it is created.
    """
    pods = tuple(pods)
    show = format_cpuset
    return exchange.Cpus(
        shared=show(pools.shared),
        best_effort=show(pools.best_effort),
        first=show(plan.used_first((pod.planned(mems=mems) for pod in pods), pools, kubelet)),
        system=show(pools.system),
        shared_by_node={node: show(cpus) for node, cpus in pools.shared_by_node.items()},
        best_effort_by_node={node: show(cpus) for node, cpus in pools.best_effort_by_node.items()},
        static=kubelet.static,
        static_memory=kubelet.static_memory,
        default=show(kubelet.default),
        given={uid: {name: show(cpus) for name, cpus in sets.items()} for uid, sets in kubelet.given.items()},
        mems=mems,
        beside={pod.cgroup: tuple(sorted(pod.shared)) for pod in pods if pod.cpus and pod.shared},
    )


def cards(node: NodeRecord) -> dict[str, CardPlace]:
    """The cards that are there, and their MIG devices, whose memory the driver does not tell."""
    found = {}
    for uuid, card in node.cards.items():
        if card.health.present:
            bus = card.facts.bus or ""
            found[uuid] = CardPlace(bus, card.facts.memory or 0)
            found.update((mig.uuid, CardPlace(bus)) for mig in card.facts.mig_devices if card.facts.mig)
    return found


def facts(
    cpus: exchange.Cpus,
    there: Mapping[str, CardPlace],
    runtime: NodeRuntime | None,
    settings: Enforcement,
    *,
    mounts: bool,
    provider: LimitProvider,
    why_not: str,
) -> Facts:
    """What the enforcer must know of the node.

    `mounts`: whether NVIDIA's runtime takes mounts. `why_not`: why limits are not kept, as `no_limits`.
    """
    runtime = runtime or NodeRuntime()
    heeds = mounts or runtime.unprivileged is not False
    kinds = {TYPE_GPU: runtime.kinds[0]} if runtime.kinds else {}
    return Facts(
        cpus=cpus,
        cards=dict(there),
        kinds={**kinds, **settings.kinds},
        default_shows=heeds and runtime.default_shows is True,
        showing=runtime.showing if heeds else (),
        mounts=mounts,
        provider=provider.value,
        no_limits=f"this node {why_not.removeprefix('it ')}" if why_not else "",
        variable=runtime.variable_kind,
    )


def told(known: Facts, seen: EnforcerReading, provider: LimitProvider, why_not: str) -> EnforcerTold | None:
    """What is told of the enforcer on the Device object; None while it is away."""
    if seen.gone or not seen.state.runtime:
        return None
    brings: Bringing | None = None
    if TYPE_GPU in known.kinds:
        brings = Bringing.CDI
    elif known.default_shows or known.showing:
        brings = Bringing.MOUNTS if known.mounts else Bringing.ENVIRONMENT
    why = why_not or (seen.state.limits if seen.state.provider == provider else None)
    return EnforcerTold(
        brings,
        "" if brings is not None else _NO_WAY,
        provider,
        why[:_MAX_TOLD] if why is not None and by_enforcer(provider) else None,
    )


def label(of: EnforcerTold | None, live: Mapping[str, Any] | None) -> dict[str, str]:
    """The Node's label that names what keeps limits there: while that is ready, and unless it is somebody else's."""
    ready = of is not None and of.brings is not None and of.no_limits == "" and by_enforcer(of.provider)
    if of is None or not ready or live is None or not is_ours(live, _LABELS, ISOLATION_PROVIDER):
        return {}
    return {ISOLATION_PROVIDER: of.provider.value}


def events(node: NodeIdentity, seen: EnforcerReading | None, pods: Iterable[NodePod]) -> tuple[Occurrence, ...]:
    """An Event while the enforcer is away, and one for each remark of it about the node and its Pods."""
    if seen is None:
        return ()
    found = [Occurrence(about_node(node), "EnforcerAway", away_message(seen))] if seen.gone else []
    by_uid = {uid: pod for pod in pods for uid in (pod.cgroup, pod.uid)}
    for remark in seen.state.remarks[-exchange.MAX_REMARKS :]:
        pod = by_uid.get(remark.uid)
        if (pod is not None or not remark.uid) and _REASON.fullmatch(remark.reason):
            about = about_node(node) if pod is None else about_pod(pod)
            found.append(Occurrence(about, remark.reason, remark.message))
    return tuple(found)


def problems(seen: EnforcerReading | None) -> tuple[str, ...]:
    """What is wrong with the enforcer, a sentence each."""
    if seen is None:
        return ()
    of_state = seen.state.problems[:_MAX_PROBLEMS] if seen.registered else ()
    stated = (away_message(seen) if seen.gone else "", seen.problem, *(f"the enforcer: {one}" for one in of_state))
    return tuple(filter(None, stated))


def away_message(seen: EnforcerReading) -> str:
    """What to tell of an enforcer that is away."""
    why = seen.state.problems[0] if seen.state.problems else "it has told nothing"
    return (
        f"the enforcer has not been registered with the container runtime for a minute ({why}): see the log of the "
        "container enforcer of koordgate-reporter's Pod on this node"
    )


def remarks_by_reason(seen: EnforcerReading) -> Counter[str]:
    """Count the enforcer's remarks; those of unknown reasons under `OTHER`."""
    return Counter(one.reason if one.reason in REASONS else OTHER for one in seen.state.remarks)


_MAX_PROBLEMS: Final = 16
_LABELS: Final = ("metadata", "labels")
_NO_LIBRARY: Final = (
    "it has no library of HAMi-core where the settings say: put libvgpu.so there, and state its path as "
    "enforcement.hamiCore.library"
)
_NO_PIPE: Final = (
    "it has no pipe directory of an MPS daemon where the settings say: run a daemon, and state its pipe directory as "
    "enforcement.mps.pipe"
)
