"""Which way a node gives containers their cards: the one decision about delivery, by what the node's runtime can do."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.delivery import (
    ASSUMED,
    DELIVERY_LABEL,
    LONGEST_NRI_NAME,
    NOTHING_TOLD,
    Delivery,
    NodeDelivery,
    NodeRuntime,
    Way,
)
from allocator.vocabulary.limits import KEEPERS, NOTHING_KEEPS, LimitProvider
from allocator.vocabulary.names import TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

AUTO: Final = "auto"
_SWITCH_ON_NRI: Final = "turn on NVIDIA's NRI plugin (GPU Operator 26.3 and later: ClusterPolicy cdi.nriPluginEnabled)"
_UNKNOWN: Final = (
    "is not known to show containers their cards: let koordgate's reporter run there, or state how by the Node's "
    f"label {DELIVERY_LABEL}"
)
_DEAF: Final = (
    "has an NVIDIA runtime that ignores the variable of unprivileged containers "
    "(accept-nvidia-visible-devices-envvar-when-unprivileged is false in its config.toml): set that to true, or "
    f"{_SWITCH_ON_NRI}"
)


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What the administrator decided about delivery.

    Attributes:
        delivery: name of a `Delivery` for all nodes, or `AUTO`.
        runtime_class: the RuntimeClass that leads to NVIDIA's runtime; "" where the cluster has none.
        handler: of that RuntimeClass.
        unknown_refused: whether a node of which nothing is known takes no Pods for cards.
        limits: what keeps memory limits.
    """

    delivery: str = AUTO
    runtime_class: str = ""
    handler: str = ""
    unknown_refused: bool = False
    limits: LimitProvider = LimitProvider.NONE


def delivery_of(runtime: NodeRuntime | None, label: str, rules: DeliveryRules) -> NodeDelivery:
    """Decide how a node gives Pods their cards.

    Args:
        runtime: what is told of its container runtime; None if nothing is.
        label: the Node's label `DELIVERY_LABEL`, which precedes the rules; what is no `Delivery` counts as none.
        rules: of this installation.
    """
    wanted = label if label in list(Delivery) else rules.delivery
    if runtime is None:
        if wanted == AUTO and not rules.unknown_refused:
            return NOTHING_TOLD
        runtime = NodeRuntime()
    plain = _first(_plain_ways(runtime, wanted, rules))
    classed = _first(_classed_ways(runtime, wanted, rules))
    assumed = Way(ASSUMED.delivery, runtime.variable_kind, known=False)
    other = plain if plain.delivery is Delivery.NVIDIA_NRI else assumed
    judged = partial(_limited, runtime, rules.limits)
    return NodeDelivery(judged(plain), judged(classed), judged(other), runtime.showing, rules.runtime_class)


def _limited(runtime: NodeRuntime, provider: LimitProvider, way: Way) -> Way:
    """The same way, with what is to be said of memory limits."""
    keeper = KEEPERS.get(provider)
    return replace(way, no_limits=NOTHING_KEEPS if keeper is None else keeper.why_not(runtime, way))


def _plain_ways(runtime: NodeRuntime, wanted: str, rules: DeliveryRules) -> list[Way]:
    """The ways for a Pod without a RuntimeClass, the preferred one first."""
    ways = []
    if wanted in {AUTO, Delivery.NVIDIA_NRI}:
        ways.append(_by_nri(runtime, stated=wanted != AUTO))
    if wanted in {AUTO, Delivery.ENVIRONMENT}:
        ways.append(_by_default_runtime(runtime, rules, stated=wanted != AUTO))
    if wanted == Delivery.RUNTIME_CLASS:
        why = "shows cards only to Pods with " + (
            f"runtimeClassName {rules.runtime_class}: delete this Pod and create it again, and it gets that"
            if rules.runtime_class
            else "a RuntimeClass (delivery runtimeClass), which the cluster does not have: create it, or correct "
            "devices.runtimeClassName"
        )
        ways.append(Way(None, why_not=why))
    return ways


def _classed_ways(runtime: NodeRuntime, wanted: str, rules: DeliveryRules) -> list[Way]:
    """The ways for a Pod with the installation's RuntimeClass; without its handler, its sandbox would fail."""
    if rules.handler and runtime.handlers and rules.handler not in runtime.handlers:
        why = (
            f"has no runtime handler {rules.handler}, which RuntimeClass {rules.runtime_class} names (it has "
            f"{', '.join(sorted(runtime.handlers))}): configure NVIDIA's runtime there, or keep such Pods off it by a "
            "nodeSelector"
        )
        return [Way(None, why_not=why)]
    ways = [_by_nri(runtime, stated=wanted != AUTO)] if wanted in {AUTO, Delivery.NVIDIA_NRI} else []
    if wanted != Delivery.NVIDIA_NRI:
        ways.append(_by_variable(runtime, Delivery.RUNTIME_CLASS, known=rules.handler in runtime.handlers))
    return ways


def _first(ways: list[Way]) -> Way:
    """The first way that there is, known ones before others; if there is none, why the last one is none."""
    found = [way for way in ways if way.delivery is not None]
    return min(found, key=lambda way: not way.known) if found else ways[-1]


def _by_nri(runtime: NodeRuntime, *, stated: bool) -> Way:
    if not (stated or runtime.nri):
        return Way(None, why_not=f"has no NRI plugin of NVIDIA's that is known to run: {_SWITCH_ON_NRI}")
    if runtime.nri is False:
        return Way(None, why_not=f"has no NRI plugin of NVIDIA's, by which it is to show cards: {_SWITCH_ON_NRI}")
    if not runtime.kinds:
        why = (
            "has no CDI specification that names every card by its UUID, which NVIDIA's NRI plugin needs: let NVIDIA's "
            "device plugin write one (DEVICE_LIST_STRATEGY with cdi-cri), or `nvidia-ctk cdi generate`"
        )
        return Way(None, why_not=why)
    return Way(Delivery.NVIDIA_NRI, runtime.kinds[0], known=bool(runtime.nri))


def _by_default_runtime(runtime: NodeRuntime, rules: DeliveryRules, *, stated: bool) -> Way:
    if runtime.default_shows is False and not stated:
        if rules.runtime_class and rules.handler in runtime.handlers:
            cure = f"delete this Pod and create it again, and it gets runtimeClassName {rules.runtime_class}"
        elif rules.runtime_class and runtime.handlers:
            needed = f"handler {rules.handler}, which RuntimeClass {rules.runtime_class} names"
            cure = f"configure NVIDIA's runtime there as {needed}, or {_SWITCH_ON_NRI}"
        else:
            cure = f"create a RuntimeClass for NVIDIA's runtime (devices.runtimeClassName), or {_SWITCH_ON_NRI}"
        return Way(None, why_not=f"has a default runtime that shows containers no cards: {cure}")
    if runtime.default_shows is None and rules.unknown_refused and not stated:
        return Way(None, why_not=_UNKNOWN)
    return _by_variable(runtime, Delivery.ENVIRONMENT, known=bool(runtime.default_shows))


def _by_variable(runtime: NodeRuntime, delivery: Delivery, *, known: bool) -> Way:
    if runtime.unprivileged is False:
        return Way(None, why_not=_DEAF)
    return Way(delivery, runtime.variable_kind, known=known)


def not_delivered(request: PodRequest, node: NodeSnapshot) -> Refusal | None:
    """Refuse a node that cannot show a Pod its cards; None for any other."""
    if node.delivery is NOTHING_TOLD:
        return None
    names = [name for ask in request.containers if ask.ask.type.name == TYPE_GPU for name in ask.names]
    if not names:
        return None
    way = node.delivery.way(request.wishes.runtime_class)
    if way.delivery is None:
        return Refusal(f"{node.name}: the node {way.why_not}", short="the node cannot show containers their cards")
    longest = max(names, key=len)
    if way.delivery is Delivery.NVIDIA_NRI and len(longest) > LONGEST_NRI_NAME:
        short = f"container {longest} has a name of more than {LONGEST_NRI_NAME} characters"
        why = f"{short}, which does not fit into the annotation that NVIDIA's NRI plugin reads: give it a shorter name"
        return Refusal(f"{node.name}: {why}", short=short)
    return None


def classes_help(nodes: Mapping[NodeDelivery, int]) -> bool:
    """Whether Pods get their cards on more nodes, or more certainly, with the installation's RuntimeClass.

    Args:
        nodes: how many nodes give cards in which way.
    """
    return sum((_worth(way.classed) - _worth(way.plain)) * number for way, number in nodes.items()) > 0


def _worth(way: Way) -> int:
    return 0 if way.delivery is None else 1 + way.known
