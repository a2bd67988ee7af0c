"""Which way a node gives containers their cards: the one decision about delivery, by what the node's runtime can do."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.delivery import (
    ASSUMED,
    DELIVERY_LABEL,
    KEEPERS,
    MAX_NRI_NAME_LENGTH,
    NOTHING_KEEPS,
    NOTHING_TOLD,
    Bringing,
    Delivery,
    LimitProvider,
    NodeDelivery,
    NodeRuntime,
    Way,
)
from allocator.vocabulary.names import ISOLATION_PROVIDER, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

AUTO: Final = "auto"
_NO_ENFORCER: Final = (
    "has no enforcer of koordgate's, by which it is to show cards, as far as is known: set enforcement.enabled, and "
    "see why the container enforcer of koordgate's reporter is not ready there"
)
_SWITCH_ON_NRI: Final = "turn on NVIDIA's NRI plugin (GPU Operator 26.3 and later: ClusterPolicy cdi.nriPluginEnabled)"
_WITH_CLASS: Final = "create it again, and state that where koordgate does not add it"
_UNKNOWN: Final = (
    "is not known to show containers their cards: let koordgate's reporter run there, or state how by the Node's "
    f"label {DELIVERY_LABEL}"
)
_DEAF: Final = (
    "has an NVIDIA runtime that ignores the variable of unprivileged containers "
    "(accept-nvidia-visible-devices-envvar-when-unprivileged is false in its config.toml): set that to true, or "
    f"{_SWITCH_ON_NRI}"
)
_LABELLED_NONE: Final = (
    f"its label {ISOLATION_PROVIDER} is {LimitProvider.NONE}, so that nothing keeps them there: remove that label, or "
    "let it name what is to keep them"
)


@dataclass(frozen=True, slots=True)
class DeliveryRules:
    """What the administrator decided about delivery."""

    delivery: str = AUTO  # name of a `Delivery` for all nodes, or `AUTO`
    runtime_class: str = ""  # the RuntimeClass that leads to NVIDIA's runtime; "" where the cluster has none
    handler: str = ""
    unknown_refused: bool = False  # whether a node of which nothing is known takes no Pods for cards
    limits: LimitProvider = LimitProvider.NONE  # what keeps limits where a Node's label does not state it


def delivery_of(runtime: NodeRuntime | None, label: str, rules: DeliveryRules, isolation: str = "") -> NodeDelivery:
    """Decide how a node gives Pods their cards.

    `runtime`: what is told of its container runtime; None if nothing is. `label`, `isolation`: the Node's labels
    `DELIVERY_LABEL` and `ISOLATION_PROVIDER`, which precede the rules; what is no `Delivery` or `LimitProvider` counts
    as none.
    """
    wanted = label if label in list(Delivery) else rules.delivery
    provider = LimitProvider(isolation) if isolation in list(LimitProvider) else rules.limits
    if runtime is None:
        if wanted == AUTO and not rules.unknown_refused:
            return NodeDelivery(provider=provider) if provider is not LimitProvider.NONE else NOTHING_TOLD
        runtime = NodeRuntime()
    ways = _WAYS.values() if wanted == AUTO else (_WAYS[Delivery(wanted)],)
    plain = _first(one.plain(runtime, rules, wanted) for one in ways)
    lacking = _lacks_handler(runtime, rules)
    classed = lacking or _first(one.classed(runtime, rules, wanted) for one in ways)
    assumed = Way(ASSUMED.delivery, runtime.variable_kind, known=False)
    other = plain if plain.delivery is Delivery.NVIDIA_NRI or _by_cdi(runtime, plain) else assumed
    judged = partial(_limited, runtime, provider, rules.limits)
    return NodeDelivery(judged(plain), judged(classed), judged(other), runtime.showing, rules.runtime_class, provider)


def _by_cdi(runtime: NodeRuntime, way: Way) -> bool:
    """Whether the enforcer brings CDI devices, which come into a container of any handler."""
    told = runtime.enforcer
    return way.delivery is Delivery.NRI and told is not None and told.brings is Bringing.CDI


def _limited(runtime: NodeRuntime, provider: LimitProvider, everywhere: LimitProvider, way: Way) -> Way:
    """The same way, with what is to be said of limits.

    `everywhere`: what keeps them in this installation. Pods have the variables of this provider alone.
    """
    keeper = KEEPERS.get(provider)
    if keeper is None:
        return replace(way, no_limits=NOTHING_KEEPS if everywhere is provider else _LABELLED_NONE)
    if keeper.variables and provider is not everywhere:
        why = (
            f"its label {ISOLATION_PROVIDER} names {provider}, for which Pods have variables only where it is the "
            "installation's limits.provider: set that, or give the node another label"
        )
        return replace(way, no_limits=why)
    return replace(way, no_limits=keeper.why_not(runtime, way))


def _first(ways: Iterable[Way | None]) -> Way:
    """The first way that works, known ones before others; if there is none, why the first is none."""
    tried = [way for way in ways if way is not None]
    return min((way for way in tried if way.delivery is not None), key=lambda way: not way.known, default=tried[0])


def _lacks_handler(runtime: NodeRuntime, rules: DeliveryRules) -> Way | None:
    """Why no Pod with the installation's RuntimeClass would start there, whatever shows its cards."""
    if not rules.handler or not runtime.handlers or rules.handler in runtime.handlers:
        return None
    why = (
        f"has no runtime handler {rules.handler}, which RuntimeClass {rules.runtime_class} names (it has "
        f"{', '.join(sorted(runtime.handlers))}): configure NVIDIA's runtime there, or keep such Pods off it by a "
        "nodeSelector"
    )
    return Way(None, why_not=why)


def _by_enforcer(runtime: NodeRuntime, _rules: DeliveryRules, wanted: str, *, classed: bool) -> Way | None:
    """By what koordgate's enforcer brings; the variable and the mounts need a handler that is NVIDIA's runtime."""
    told = runtime.enforcer
    if told is None or told.brings is None:
        if wanted == AUTO:
            return None
        return Way(None, why_not=_NO_ENFORCER if told is None else told.why_not)
    if told.brings is not Bringing.CDI and not classed and runtime.default_shows is False:
        if wanted == AUTO:
            return None
        why = (
            "has a default runtime that does not read what koordgate's enforcer brings, and no CDI specification that "
            "names every card by its UUID: let `nvidia-ctk cdi generate` write one, or make NVIDIA's runtime the "
            "default"
        )
        return Way(None, why_not=why)
    if told.brings is Bringing.ENVIRONMENT:
        return _by_variable(runtime, Delivery.NRI, known=True)
    return Way(Delivery.NRI, hidden=True)


def _by_nri(runtime: NodeRuntime, _rules: DeliveryRules, wanted: str) -> Way | None:
    if wanted == AUTO and not runtime.nri:
        return None
    if runtime.nri is False:
        return Way(None, why_not=f"has no NRI plugin of NVIDIA's, by which it is to show cards: {_SWITCH_ON_NRI}")
    if not runtime.kinds:
        why = (
            "has no CDI specification that names every card by its UUID, which NVIDIA's NRI plugin needs: let NVIDIA's "
            "device plugin write one (DEVICE_LIST_STRATEGY with cdi-cri), or `nvidia-ctk cdi generate`"
        )
        return Way(None, why_not=why)
    return Way(Delivery.NVIDIA_NRI, runtime.kinds[0], known=bool(runtime.nri))


def _by_default_runtime(runtime: NodeRuntime, rules: DeliveryRules, wanted: str) -> Way:
    if runtime.default_shows is False and wanted == AUTO:
        if rules.runtime_class and rules.handler in runtime.handlers:
            if runtime.unprivileged is False:
                return Way(None, why_not=_DEAF)
            cure = f"a Pod needs runtimeClassName {rules.runtime_class} there: {_WITH_CLASS}"
        elif rules.runtime_class and runtime.handlers:
            needed = f"handler {rules.handler}, which RuntimeClass {rules.runtime_class} names"
            cure = f"configure NVIDIA's runtime there as {needed}, or {_SWITCH_ON_NRI}"
        else:
            cure = f"create a RuntimeClass for NVIDIA's runtime (devices.runtimeClassName), or {_SWITCH_ON_NRI}"
        return Way(None, why_not=f"has a default runtime that shows containers no cards: {cure}")
    if runtime.default_shows is None and rules.unknown_refused and wanted == AUTO:
        return Way(None, why_not=_UNKNOWN)
    return _by_variable(runtime, Delivery.ENVIRONMENT, known=bool(runtime.default_shows))


def _needs_class(_runtime: NodeRuntime, rules: DeliveryRules, wanted: str) -> Way | None:
    if wanted == AUTO:
        return None
    if rules.runtime_class:
        cure = f"runtimeClassName {rules.runtime_class}: {_WITH_CLASS}"
    else:
        cure = (
            "a RuntimeClass (delivery runtimeClass), which the cluster does not have: create it, or correct "
            "devices.runtimeClassName"
        )
    return Way(None, why_not=f"shows cards only to Pods with {cure}")


def _by_class(runtime: NodeRuntime, rules: DeliveryRules, _wanted: str) -> Way:
    return _by_variable(runtime, Delivery.RUNTIME_CLASS, known=rules.handler in runtime.handlers)


def _by_variable(runtime: NodeRuntime, delivery: Delivery, *, known: bool) -> Way:
    if runtime.unprivileged is False:
        return Way(None, why_not=_DEAF)
    return Way(delivery, runtime.variable_kind, known=known)


class _Entry(NamedTuple):
    """How a delivery comes about: for a Pod without a RuntimeClass, and for one with the installation's.

    Each is asked with what is told of the runtime, the rules, and the delivery that was stated, or `AUTO`. None says
    that it is no option there.
    """

    plain: Callable[[NodeRuntime, DeliveryRules, str], Way | None]
    classed: Callable[[NodeRuntime, DeliveryRules, str], Way | None]


_WAYS: Final[Mapping[Delivery, _Entry]] = {  # in the order in which `AUTO` prefers them
    Delivery.NRI: _Entry(partial(_by_enforcer, classed=False), partial(_by_enforcer, classed=True)),
    Delivery.NVIDIA_NRI: _Entry(_by_nri, _by_nri),
    Delivery.ENVIRONMENT: _Entry(_by_default_runtime, _by_class),
    Delivery.RUNTIME_CLASS: _Entry(_needs_class, _by_class),
}


def not_delivered(request: PodRequest, node: NodeSnapshot) -> Refusal | None:
    """Refuse a node that cannot show a Pod its cards; None for any other."""
    if node.delivery is NOTHING_TOLD:
        return None
    names = [name for ask in request.containers if ask.ask.type.name == TYPE_GPU for name in ask.names]
    if not names:
        return None
    way = node.delivery.way(request.wishes.runtime_class, limits=request.wishes.limits)
    if way.delivery is None:
        return Refusal(f"{node.name}: the node {way.why_not}", short="the node cannot show containers their cards")
    longest = max(names, key=len)
    if (way.delivery is Delivery.NVIDIA_NRI or way.hidden) and len(longest) > MAX_NRI_NAME_LENGTH:
        short = f"container {longest} has a name of more than {MAX_NRI_NAME_LENGTH} characters"
        why = f"{short}, which does not fit into the annotations by which cards come there: give it a shorter name"
        return Refusal(f"{node.name}: {why}", short=short)
    return None


def classes_help(nodes: Mapping[NodeDelivery, int]) -> bool:
    """Whether Pods get their cards on more nodes, or more certainly, with the installation's RuntimeClass."""
    return sum((_worth(way.classed) - _worth(way.plain)) * number for way, number in nodes.items()) > 0


def _worth(way: Way) -> int:
    return 0 if way.delivery is None else 1 + way.known
