"""Choosing devices of one type on one node for the containers of one Pod.

Every container gets its own distinct devices. A Pod holds on a device the most that its containers use there at any
one moment of its life (Kubernetes' rule for init containers and sidecars), so an init container uses again what the
later ones need anyway. The first choice that fits, in one fixed order of preference, wins; where it leaves a later
container without a place, the next choices are tried, up to a bound.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from operator import le
from typing import Final, NamedTuple

from allocator.asks import ContainerAsk, DeviceAsk, PodRequest
from allocator.device import Device
from allocator.devicetype import FULL, DeviceType, Unit
from allocator.holdings import Function, NodeSnapshot, Share
from allocator.names import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, TYPE_GPU
from allocator.outcome import Refusal
from allocator.phase import Phase
from allocator.quantity import format_bytes
from allocator.topology.joint import free_function, secondary_choice
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, choices, why_no_set
from allocator.wire.allocatehint import NO_HINT, ExclusiveLevel, Selector, TypeHint

_SPOKEN: Final = {GPU_CORE: "core", GPU_MEMORY: "memory", GPU_MEMORY_RATIO: "memory"}  # as people read messages
MAX_TRIALS: Final = 2000  # sets of devices looked at for one Pod; bounds the search for Pods of many containers

Amounts = tuple[int, ...]  # one for each of the type's tails


class DeviceOrder(StrEnum):
    """Which of the devices that fit comes first (seed document 2, claim 10; minor order is seed document 1's)."""

    MOST_USED = "mostUsed"
    LEAST_USED = "leastUsed"
    MINOR = "minor"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Which devices may be chosen, beyond what is free there.

    Attributes:
        numa: NUMA nodes to stay inside; None for all. A device of which the NUMA node is unknown is inside of all.
        roots: PCIe roots to stay on; None for all.
        best_roots: PCIe roots to be on rather than others: where the types that belong to this one have devices free.
        beside: what was chosen of another type, with which these devices belong together.
        same_root: whether they must be on the PCIe roots of `beside`, and on each of these.
    """

    numa: frozenset[int] | None = None
    roots: frozenset[str] | None = None
    best_roots: frozenset[str] = frozenset()
    beside: tuple[Candidate, ...] = ()
    same_root: bool = False

    def allow(self, device: Device) -> bool:
        """Tell whether a device is inside."""
        if self.numa is not None and device.numa_node is not None and device.numa_node not in self.numa:
            return False
        return self.roots is None or device.pcie in self.roots


UNBOUND: Final = Bounds()
_BY_RANK: Final = SetRule(rank_first=True)


class Offer:
    """A usable device during one decision: what is free for this Pod, and what the Pod has taken of it so far."""

    __slots__ = ("capacity", "containers", "device", "free", "function", "idle", "peak", "steps")

    def __init__(
        self, device: Device, capacity: Amounts, free: Amounts, steps: tuple[Amounts, ...], *, idle: bool
    ) -> None:
        self.device = device
        self.capacity = capacity
        self.free = free
        self.idle = idle
        self.peak = steps[0]  # nothing
        self.steps = steps
        self.containers: tuple[str, ...] = ()
        self.function: Function | None = None

    def hold(self, container: str, peak: Amounts) -> None:
        """One more container gets the device, of which the Pod then holds so much at most."""
        self.peak = peak
        self.containers += (container,)

    def peak_with(self, amounts: Amounts, steps: Sequence[int]) -> Amounts:
        """The Pod's peak on this device if it took so much more during these steps."""
        if not self.containers:
            return amounts
        peak = self.peak
        for step in steps:
            now = (at + more for at, more in zip(self.steps[step], amounts, strict=True))
            peak = tuple([max(known, new) for known, new in zip(peak, now, strict=True)])
        return peak

    def rank(self, peak: Amounts, kind: DeviceType, order: DeviceOrder) -> tuple[object, ...] | None:
        """Order among devices that hold this peak, least first; None where it does not fit.

        What the Pod holds anyway comes first. Then, most used: devices in use, and what leaves the least over, so
        that whole devices stay whole; least used: the reverse. Minor and id make it total.
        """
        free = self.free
        if not all(map(le, peak, free)):
            return None
        known, device = peak != self.peak, self.device
        if order is DeviceOrder.MINOR:  # twice: once to rank by, before connections, and once as in every order
            return (known, device.minor, device.minor, device.id)
        sign = 1 if order is DeviceOrder.MOST_USED else -1
        untouched = self.idle and not self.containers
        left = [sign * (free[index] - peak[index]) for index in kind.fit]
        return (known, untouched is (sign > 0), *left, device.minor, device.id)


def _completed(ask: DeviceAsk, capacity: Amounts) -> Amounts:
    """What an ask takes of a device; the one of the two memory amounts that was not asked follows from the other.

    Percent to bytes rounds down, what is handed out; bytes to percent rounds up, what is accounted.
    """
    kind = ask.type
    if None not in ask.amounts:
        return ask.amounts  # type: ignore[return-value] # none of them is None
    told = list(ask.amounts)
    if kind.memory is not None:
        size, ratio = (kind.tails.index(tail) for tail in kind.memory)
        if told[size] is None:
            told[size] = capacity[size] * (told[ratio] or 0) // FULL
        elif told[ratio] is None:
            told[ratio] = -(-(told[size] or 0) * FULL // capacity[size])
    return tuple([amount or 0 for amount in told])


class _Wish(NamedTuple):
    """A container still to be served: during which steps of the Pod's life it runs, and its place in the Pod."""

    container: ContainerAsk
    steps: tuple[int, ...]
    place: int


class _Option(NamedTuple):
    """A device that can serve a wish, and what the Pod would hold of it then."""

    rank: tuple[object, ...]
    offer: Offer
    amounts: Amounts
    peak: Amounts


class _Search:
    """One decision about one type: the devices, the rules by which they are chosen, and what is left to try."""

    def __init__(self, kind: DeviceType, request: PodRequest, node: NodeSnapshot, bounds: Bounds) -> None:
        self.kind = kind
        self.node = node
        self.bounds = bounds
        wishes = self.pod = request.wishes
        self.order = DeviceOrder(wishes.order or node.order or DeviceOrder.MOST_USED)
        self.hint: TypeHint = (wishes.hint(kind.name) or NO_HINT) if wishes.hints else NO_HINT
        self.alone = self.hint.exclusive is ExclusiveLevel.PCIE
        self.asks = [container for container in request.containers if container.ask.type == kind]
        self.wishes, steps = _wishes(self.asks)
        self.offers = self._offers(steps)
        self.rules: dict[bool, SetRule] = {}
        self.trials = iter(range(MAX_TRIALS))
        self.why = ""  # what the rules said against the last set

    def _offers(self, steps: int) -> list[Offer]:
        """The devices that could be chosen, of which the Pod holds nothing yet in so many steps of its life."""
        node, kind, used = self.node, self.kind, self.node.used
        closed, bounded = self._closed_roots(), self.bounds is not UNBOUND
        tails = kind.tails
        nothing = ((0,) * len(tails),) * steps
        offers = []
        capacity: Amounts = ()
        whose: Mapping[str, int] | None = None  # devices of one node mostly share what they have
        for device in node.devices:
            if device.type != kind.name or not device.healthy or device.id in node.kubelet_held:
                continue
            if (closed and device.pcie in closed) or (bounded and not self.bounds.allow(device)):
                continue
            held = used.get(device.id)
            if self.hint is not NO_HINT and not self._hinted(device, held):
                continue
            if device.capacity is not whose:
                whose = device.capacity
                capacity = tuple([whose[tail] for tail in tails])
            free = capacity
            if held is not None:
                free = tuple([max(has - held.get(tail, 0), 0) for has, tail in zip(capacity, tails, strict=True)])
            offers.append(Offer(device, capacity, free, nothing, idle=held is None))
        return offers if self.hint.functions is None else self._with_functions(offers, self.hint.functions)

    def _closed_roots(self) -> frozenset[str | None]:
        """PCIe roots that somebody holds alone; or, where this Pod wants to be alone, on which anybody holds any."""
        node = self.node
        if not (self.alone or node.alone):
            return frozenset()
        ids = {*node.used, *node.kubelet_held} if self.alone else node.alone
        return frozenset(device.pcie for device in node.devices if device.id in ids and device.pcie is not None)

    def _hinted(self, device: Device, held: Mapping[str, int] | None) -> bool:
        if self.hint.exclusive is ExclusiveLevel.DEVICE and held is not None:
            return False
        return self.hint.selector is None or self.hint.selector.matches(selectable(device))

    def _with_functions(self, offers: Iterable[Offer], wanted: Selector) -> list[Offer]:
        """Those with a free virtual function that the hint selects."""
        taken = {
            function.bus_id
            for holding in self.node.holdings.values()
            for share in holding.shares
            for function in share.functions
        }
        kept = []
        for offer in offers:
            function = free_function(offer.device.functions, wanted, taken)
            if function is not None:
                offer.function = Function(-1 if function.minor is None else function.minor, function.bus_id)
                kept.append(offer)
        return kept

    def rule(self, ask: DeviceAsk) -> SetRule:
        """What a set of devices for an ask must be."""
        whole = ask.whole
        rule = self.rules.get(whole)
        if rule is None:
            rule = self.rules[whole] = self._rule(whole=whole)
        return rule

    def _rule(self, *, whole: bool) -> SetRule:
        """Parts of devices go by order alone, whole ones by connections too."""
        wishes, hint, wiring = self.pod, self.hint, self.node.wiring
        near = self._mates(wishes.gang)
        scope = hint.scope or PLAIN_RULE.scope
        roots = self.bounds.best_roots
        gpus = self.kind.memory is not None
        required = whole and gpus and (wishes.partition is not None or wiring.honour_partitions)
        if not whole or (self.order is DeviceOrder.MINOR and not required):
            plain = scope is PLAIN_RULE.scope and not (near or roots)
            return _BY_RANK if plain else SetRule(scope, rank_first=True, near=near, roots=roots)
        partitions = wiring.partitions if gpus else None
        if not (near or partitions or required or roots) and scope is PLAIN_RULE.scope:
            return PLAIN_RULE
        spec = wishes.partition
        return SetRule(
            scope=scope,
            partitions=partitions,
            partition_required=required,
            restricted=spec is not None and spec.restricted,
            ring_bandwidth=spec.ring_bandwidth if spec else None,
            near=near,
            roots=roots,
        )

    def _mates(self, gang: str) -> frozenset[str]:
        """Devices of this type that other Pods of the gang hold here."""
        if not gang:
            return frozenset()
        return frozenset(
            share.id
            for holding in self.node.holdings.values()
            if holding.gang == gang
            for share in holding.shares
            if share.type == self.kind.name
        )

    def amounts(self, capacity: Amounts, ask: DeviceAsk) -> Amounts:
        """What an ask takes of a device that has so much: all of it where nobody else may hold a part."""
        return capacity if self.hint.exclusive is ExclusiveLevel.DEVICE else _completed(ask, capacity)

    def serve(self, place: int = 0) -> bool:
        """Give the next wish its devices and the rest theirs; undo and try the next set where the rest finds none."""
        if place == len(self.wishes):
            return True
        wish = self.wishes[place]
        options = self.options(wish)
        ask = wish.container.ask
        count = self.count(ask)
        if len(options) < count:
            return False
        sets = self._sets(options, count, self.rule(ask))
        if place + 1 == len(self.wishes):
            best = next(sets, None) if next(self.trials, None) is not None else None
            for option in best or ():
                option.offer.hold(wish.container.name, option.peak)
            return best is not None
        for chosen in sets:
            if next(self.trials, None) is None:
                return False
            undo = [(of, of.peak, of.steps, of.containers) for of in (option.offer for option in chosen)]
            for option in chosen:
                _take(wish, option)
            if self.serve(place + 1):
                return True
            for offer, peak, steps, containers in undo:
                offer.peak, offer.steps, offer.containers = peak, steps, containers
        return False

    def count(self, ask: DeviceAsk) -> int:
        """How many devices an ask takes here."""
        return max(len(self.offers), ask.count) if ask.every else ask.count

    def options(self, wish: _Wish) -> list[_Option]:
        """The devices that can serve a wish, in no order."""
        ask = wish.container.ask
        options = []
        alike: dict[Amounts, Amounts] = {}  # devices of one node mostly are
        for offer in self.offers:
            amounts = alike.get(offer.capacity)
            if amounts is None:
                amounts = alike[offer.capacity] = self.amounts(offer.capacity, ask)
            peak = offer.peak_with(amounts, wish.steps)
            rank = offer.rank(peak, self.kind, self.order)
            if rank is not None:
                options.append(_Option(rank, offer, amounts, peak))
        return options

    def _sets(self, options: list[_Option], count: int, rule: SetRule) -> Iterator[Sequence[_Option]]:
        """Sets of so many options, the best first."""
        if self.bounds.beside:
            return self._beside(options, count)
        alike = self.node.wiring.links.flat  # connections tell no set from another
        if (rule is _BY_RANK and (count == 1 or alike)) or (rule is PLAIN_RULE and alike):
            options.sort()
            return combinations(options, count)
        by_id = {option.offer.device.id: option for option in options}
        candidates = [_candidate(option) for option in options]
        found = choices(candidates, count, self.node.wiring.links, rule)
        return ([by_id[candidate.id] for candidate in chosen] for chosen in found)

    def _beside(self, options: list[_Option], count: int) -> Iterator[Sequence[_Option]]:
        """The one set that goes with what was chosen of the other type, if there is one."""
        by_id = {option.offer.device.id: option for option in options}
        candidates = [_candidate(option) for option in options]
        chosen = secondary_choice(self.bounds.beside, candidates, count, same_pcie=self.bounds.same_root)
        if isinstance(chosen, str):
            self.why = chosen
            return
        yield [by_id[candidate.id] for candidate in chosen]

    def shares(self) -> tuple[Share, ...]:
        """What was taken, one share a device."""
        order = {container.name: index for index, container in enumerate(self.asks)}
        tails, name = self.kind.tails, self.kind.name
        return tuple(
            Share(
                name,
                offer.device.id,
                offer.device.minor,
                dict(zip(tails, offer.peak, strict=True)),
                tuple(sorted(offer.containers, key=order.__getitem__)),
                (offer.function,) if offer.function else (),
                self.alone,
            )
            for offer in self.offers
            if offer.containers
        )


def _candidate(option: _Option) -> Candidate:
    device = option.offer.device
    offer, rank = option.offer, option.rank[:-2]  # minor and id, which end it, are compared after connections
    return Candidate(device.id, device.minor, rank, device.numa_node, device.pcie, offer.idle, not offer.containers)


def selectable(device: Device) -> Mapping[str, str]:
    """The labels by which a hint may select a device: its own, and what is known of it anyway."""
    return {
        "koordgate.io/uuid": device.id,
        "koordgate.io/minor": str(device.minor),
        "koordgate.io/model": device.model,
        **device.labels,
    }


def choose_devices(
    kind: DeviceType, request: PodRequest, node: NodeSnapshot, bounds: Bounds = UNBOUND
) -> tuple[Share, ...] | Refusal:
    """Choose devices of one type for each container that asks for some.

    Returns:
        One share a device, in the order of minors, or why the node cannot hold the Pod.
    """
    search = _Search(kind, request, node, bounds)
    return search.shares() if search.serve() else _explain(search)


def candidates_of(shares: Sequence[Share], node: NodeSnapshot) -> tuple[Candidate, ...]:
    """The devices of these shares, as what others are chosen beside."""
    by_id = {device.id: device for device in node.devices}
    found = [by_id[share.id] for share in shares]
    return tuple(Candidate(device.id, device.minor, (), device.numa_node, device.pcie, idle=False) for device in found)


def roots_that_serve(
    kinds: Sequence[DeviceType], request: PodRequest, node: NodeSnapshot, bounds: Bounds
) -> frozenset[str]:
    """PCIe roots on which there is, of each of these types, a device for every container that asks for one."""
    roots = frozenset(device.pcie for device in node.devices if device.pcie is not None)
    for kind in kinds:
        search = _Search(kind, request, node, bounds)
        for wish in search.wishes:
            roots &= {option.offer.device.pcie for option in search.options(wish)}
    return roots


def _wishes(containers: Sequence[ContainerAsk]) -> tuple[list[_Wish], int]:
    """Order the containers, hardest first, and number the steps of the Pod's life: each init container, the rest."""
    if len(containers) == 1:
        return [_Wish(containers[0], (0,), 0)], 1
    last = sum(container.phase is Phase.INIT for container in containers)
    wishes = []
    step = 0
    for index, container in enumerate(containers):
        if container.phase is Phase.INIT:
            steps: tuple[int, ...] = (step,)
            step += 1
        elif container.phase is Phase.SIDECAR:
            steps = tuple(range(step, last + 1))
        else:
            steps = (last,)
        wishes.append(_Wish(container, steps, index))
    # Init containers come last: they fit into what the others hold.
    wishes.sort(
        key=lambda w: (w.container.phase is Phase.INIT, -w.container.ask.count, _size(w.container.ask), w.place)
    )
    return wishes, last + 1


def _size(ask: DeviceAsk) -> list[int]:
    return [-(amount or 0) for amount in ask.amounts]


def _take(wish: _Wish, option: _Option) -> None:
    """Give a wish its device, in the steps in which it runs, so that later wishes see what is left."""
    offer = option.offer
    offer.hold(wish.container.name, option.peak)
    offer.steps = tuple(
        [
            tuple([at + more for at, more in zip(taken, option.amounts, strict=True)]) if step in wish.steps else taken
            for step, taken in enumerate(offer.steps)
        ]
    )


def _explain(search: _Search) -> Refusal:
    """Say in a user's words why the node cannot hold the Pod, with the nearest thing that would fit."""
    node, kind = search.node, search.kind
    known = [device for device in node.devices if device.type == kind.name]
    if not known:
        told = f"no {plural(kind)} known here (no Device object, or none in it)"
        return Refusal(f"{node.name}: {told}", permanent=True, short=told)
    less = _away(known, node)
    for wish in sorted(search.wishes, key=lambda wish: wish.place):
        ask = wish.container.ask
        fitting, count = len(search.options(wish)), search.count(ask)
        if fitting >= count:
            continue
        possible = sum(all(map(le, search.amounts(offer.capacity, ask), offer.capacity)) for offer in search.offers)
        asked = f"{describe(ask)}, of each of {count}" if ask.every else describe(ask)
        told = f"container {wish.container.name} asks {asked}; {fitting} of {len(known)} {plural(kind)}{less} "
        told += f"can hold it{_nearest(search)}"
        free = len(search.offers) == len(known)  # of what may change: health, the kubelet's Pods, others' exclusivity
        never = possible < count and free and search.hint is NO_HINT and search.bounds == UNBOUND
        return Refusal(f"{node.name}: {told}", permanent=never, short=f"{fitting} {plural(kind)} fit {describe(ask)}")
    return _explain_together(search, less)


def _away(known: Sequence[Device], node: NodeSnapshot) -> str:
    """Say which devices are out of the question, in brackets."""
    away = [f"{gone} unhealthy"] if (gone := sum(not device.healthy for device in known)) else []
    if taken := sum(device.id in node.kubelet_held for device in known):
        away.append(f"{taken} held by the kubelet's device plugin")
    return f" ({', '.join(away)})" if away else ""


def _nearest(search: _Search) -> str:
    """Name the device with the most free, where one is left."""
    kind = search.kind
    if not search.offers:
        return ""
    best = max(search.offers, key=lambda offer: (offer.free[-1], offer.free, -offer.device.minor))
    return f"; the most free is {kind.name} {best.device.minor} with {_describe_amounts(kind, best.free)}"


def _explain_together(search: _Search, less: str) -> Refusal:
    """Say why devices that would do one by one do not do together."""
    node, kind = search.node, search.kind
    together = ", ".join(f"{container.name} {describe(container.ask)}" for container in search.asks)
    if search.why:
        return Refusal(f"{node.name}: {together}: {search.why}{less}", short=search.why)
    rule = search.rule(search.asks[0].ask)
    if rule not in {PLAIN_RULE, _BY_RANK} and len(search.asks) == 1:
        ask = search.asks[0].ask
        candidates = [_candidate(option) for option in search.options(search.wishes[0])]
        reason = why_no_set(candidates, search.count(ask), rule)
        told = f"{node.name}: {together}: {reason}{less}"
        return Refusal(told, short=f"{plural(kind)}: {reason}")
    told = f"{node.name}: each container fits alone, not all together ({together}); "
    told += f"{len(search.offers)} {plural(kind)} usable{less}"
    return Refusal(told, short=f"{plural(kind)} fit each container, not all together")


def plural(kind: DeviceType) -> str:
    """Name several devices of a type: "GPUs"."""
    return "GPUs" if kind.name == TYPE_GPU else f"{kind.name} devices"


def describe(ask: DeviceAsk) -> str:
    """Write an ask as a person would: `2 x (core 100 %, memory 100 %)`."""
    return f"{ask.count} x ({_describe_amounts(ask.type, ask.amounts)})"


def _describe_amounts(kind: DeviceType, amounts: Sequence[int | None]) -> str:
    told: dict[str, list[str]] = {}
    for tail, amount in zip(kind.tails, amounts, strict=True):
        if amount is None or (tail == GPU_CORE and not amount):
            continue
        in_bytes = kind.memory is not None and tail == kind.memory[0]
        unit = "" if kind.unit is Unit.UNITS else " %"
        name = _SPOKEN.get(tail, tail)
        told.setdefault(name, []).insert(0, format_bytes(amount) if in_bytes else f"{amount}{unit}")
    return ", ".join(f"{name} {texts[0]}" + "".join(f" ({more})" for more in texts[1:]) for name, texts in told.items())
