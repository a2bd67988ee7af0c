"""Choosing devices on one node for the containers of one Pod: of one type, or of several that belong together.

Every container gets its own distinct devices. A Pod holds on a device the most that its containers use there at any
one moment of its life (Kubernetes' rule for init containers and sidecars), so an init container uses again what the
later ones need anyway. The first choice that fits, in one fixed order of preference, wins; where it leaves a later
container without a place, the next choices are tried, up to a bound.

Of types that belong together (Koordinator's joint allocation) a container's devices of the first are chosen, then
those of the others beside them, then the next container's: where nothing is left beside one choice, the next is tried.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations, islice
from operator import le, sub
from typing import Final, NamedTuple

from allocator.devices.explain import explain, too_few_on_roots, too_few_together, too_wide
from allocator.devices.offer import Amounts, Offer, Wish, completed, wishes_of
from allocator.topology.joint import choices_beside, free_function, why_none_beside
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, choices
from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.hints import NO_HINT, ExclusiveLevel, Scope, Selector, TypeHint
from allocator.vocabulary.holdings import Function, NodeSnapshot, Share
from allocator.vocabulary.outcome import Refusal
from allocator.vocabulary.preference import DeviceOrder

MAX_TRIALS: Final = 2000  # sets of devices looked at for one Pod; bounds the search for Pods of many containers
_BY_RANK: Final = SetRule(rank_first=True)
_MAX_PASSED_OVER: Final = 20_000  # sets of the first type, beside which nothing is to be had: more than of 16 devices


class DeviceFit(NamedTuple):
    """How well a device serves a wish, least first, and what the Pod would take and hold of it then."""

    rank: tuple[object, ...]
    amounts: Amounts
    peak: Amounts


class Option(NamedTuple):
    """A device that can serve a wish. In order as tuples are: by rank, of those that rank alike by minor and id."""

    rank: tuple[object, ...]
    minor: int
    id: str
    offer: Offer
    amounts: Amounts
    peak: Amounts


class DeviceSearch:
    """One type in one decision: its devices, and the rules by which they are chosen.

    Args:
        kind: the type.
        request: of the Pod.
        node: as it stands.
        numa: NUMA nodes to stay inside; None for all. A device of which the NUMA node is unknown is inside of all.
        lead: the search for the type beside which this one's devices belong; None where there is none.
        same_root: whether a container's devices of both must be on the very same PCIe roots.
    """

    def __init__(
        self,
        kind: DeviceType,
        request: PodRequest,
        node: NodeSnapshot,
        numa: frozenset[int] | None = None,
        *,
        lead: "DeviceSearch | None" = None,
        same_root: bool = False,
    ) -> None:
        self.kind = kind
        self.node = node
        self.numa = numa
        self.lead = lead
        self.same_root = same_root
        self.followers: list[DeviceSearch] = []
        if lead is not None:
            lead.followers.append(self)
        wishes = self.pod = request.wishes
        order = wishes.order or node.order
        self.order = DeviceOrder(order) if order else DeviceOrder.MOST_USED
        self.hint: TypeHint = (wishes.hint(kind.name) or NO_HINT) if wishes.hints else NO_HINT
        self.alone = self.hint.exclusive is ExclusiveLevel.PCIE
        self.unshared = self.hint.exclusive is ExclusiveLevel.DEVICE
        self.asks = [container for container in request.containers if container.ask.type == kind]
        self.wishes, steps = wishes_of(self.asks)
        self.offers = self._offers(steps)
        self.rules: dict[bool, SetRule] = {}
        self.why = ""  # what was said against the first set that the rules did not let pass
        # Of one container's devices the sets see to the scope.
        self.scope = (self.hint.scope or Scope.NODE) if len(self.wishes) > 1 else Scope.NODE
        self.spheres = frozenset() if self.scope is Scope.NODE else self._spheres_for_all()

    def _offers(self, steps: int) -> list[Offer]:
        """The devices that could be chosen, of which the Pod holds nothing yet in so many steps of its life."""
        node, numa, used = self.node, self.numa, self.node.used
        name, tails = self.kind.name, self.kind.tails
        closed = self._closed() | node.kubelet_held
        hinted = self.hint is not NO_HINT
        zeros = (0,) * len(tails)
        nothing = (zeros,) * steps
        offers = []
        capacity: Amounts = ()
        whose: Mapping[str, int] | None = None  # devices of one node mostly share what they have
        for device in node.devices:
            if device.type != name or not device.healthy or device.id in closed:
                continue
            if numa is not None and not (device.numa_node is None or device.numa_node in numa):
                continue
            held = used.get(device.id)
            if hinted and not self._hinted(device, held):
                continue
            if device.capacity is not whose:
                whose = device.capacity
                capacity = tuple([whose[tail] for tail in tails])
            free = capacity
            if held is not None:
                free = tuple(map(sub, capacity, map(held.get, tails, zeros)))
                if min(free) < 0:  # more is held than there is, now
                    free = tuple([max(left, 0) for left in free])
            offers.append(Offer(device, held, capacity, free, nothing))
        return offers if self.hint.functions is None else self._with_functions(offers, self.hint.functions)

    def _closed(self) -> frozenset[str]:
        """Devices that somebody holds alone, or beside whom this Pod, which wants to be alone, cannot be.

        With PCIeLevel that is a PCIe root; of a device of which the root is not known, at least the device.
        """
        node = self.node
        if not (self.alone or node.alone):
            return node.unshared
        ids = {*node.used, *node.kubelet_held} if self.alone else node.alone
        roots = {device.pcie for device in node.devices if device.id in ids and device.pcie is not None}
        return node.unshared.union(ids, (device.id for device in node.devices if device.pcie in roots))

    def _hinted(self, device: Device, held: Mapping[str, int] | None) -> bool:
        if self.unshared and held is not None:
            return False
        return self.hint.selector is None or self.hint.selector.matches(selectable(device))

    def _with_functions(self, offers: Iterable[Offer], wanted: Selector) -> list[Offer]:
        """Those with a free virtual function that the hint selects; each function once, though two devices list it."""
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
                offer.comes_with(Function(-1 if function.minor is None else function.minor, function.bus_id))
                taken.add(function.bus_id)
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
        partitioned = self.kind.partitioned
        required = whole and partitioned and (wishes.partition is not None or wiring.honour_partitions)
        if not whole or (self.order is DeviceOrder.MINOR and not required):
            plain = scope is PLAIN_RULE.scope and not near
            return _BY_RANK if plain else SetRule(scope, rank_first=True, near=near)
        partitions = wiring.table(self.kind.name) if partitioned else None
        if not (near or partitions or required or wishes.waiting) and scope is PLAIN_RULE.scope:
            return PLAIN_RULE
        spec = wishes.partition
        return SetRule(
            scope=scope,
            partitions=partitions,
            partition_required=required,
            restricted=spec is not None and spec.restricted,
            ring_bandwidth=spec.ring_bandwidth if spec else None,
            near=near,
            company=wishes.waiting * sum(one.ask.count for one in self.asks if one.ask.whole),
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
        """What an ask takes of a device that has so much: where nobody else may hold a part, and it suffices, all."""
        amounts = completed(ask, capacity)
        return capacity if self.unshared and all(map(le, amounts, capacity)) else amounts

    def count(self, ask: DeviceAsk) -> int:
        """How many devices an ask takes here."""
        return max(len(self.offers), ask.count) if ask.every else ask.count

    def options(self, wish: Wish) -> list[Option]:
        """The devices that can serve a wish, in no order."""
        ask = wish.container.ask
        options = []
        # Devices of one node mostly are alike, as long as the Pod has nothing of them.
        amounts_of: dict[Amounts, Amounts] = {}
        fits: dict[tuple[Amounts, Amounts, bool], DeviceFit | None] = {}
        models = ask.models if ask.template else ()
        for offer in self.offers:
            if models and offer.device.model not in models:
                continue
            alike = (offer.capacity, offer.free, offer.idle)
            if offer.containers or alike not in fits:
                amounts = amounts_of.get(offer.capacity)
                if amounts is None:
                    amounts = amounts_of[offer.capacity] = self.amounts(offer.capacity, ask)
                fit = self._fit(offer, amounts, wish.steps)
                if not offer.containers:
                    fits[alike] = fit
            else:
                fit = fits[alike]
            if fit is not None:
                device = offer.device
                options.append(Option(fit.rank, device.minor, device.id, offer, fit.amounts, fit.peak))
        return options

    def _fit(self, offer: Offer, amounts: Amounts, steps: Sequence[int]) -> DeviceFit | None:
        """Tell how well a device serves who takes so much during these steps; None where it does not fit.

        What the Pod holds anyway comes first. Then, most used: devices in use, and what leaves the least over, so
        that whole devices stay whole; least used: the reverse.
        """
        peak, free = offer.peak_with(amounts, steps), offer.free
        if not all(map(le, peak, free)):
            return None
        known = peak != offer.peak
        if self.order is DeviceOrder.MINOR:
            return DeviceFit((known,), amounts, peak)
        sign = 1 if self.order is DeviceOrder.MOST_USED else -1
        untouched = offer.idle and not offer.containers
        left = [sign * (free[index] - peak[index]) for index in self.kind.fit]
        return DeviceFit((known, untouched is (sign > 0), *left), amounts, peak)

    def candidates(self, wish: Wish) -> list[Candidate]:
        """The options of a wish as sets are made of them."""
        return self._candidates(self.options(wish))

    def _candidates(self, options: Iterable[Option]) -> list[Candidate]:
        by_minor = self.order is DeviceOrder.MINOR  # which then come before connections
        return [
            Candidate(
                option.id,
                option.minor,
                (*option.rank, option.minor) if by_minor else option.rank,
                option.offer.device.numa_node,
                option.offer.device.pcie,
                option.offer.idle,
                not option.offer.containers,
            )
            for option in options
        ]

    # requiredTopologyScope holds for all containers of the Pod together

    def _sphere(self, offer: Offer) -> tuple[object, ...]:
        """Where a device is, in the words of the scope; one that does not say where is by itself."""
        device = offer.device
        where = device.numa_node if self.scope is Scope.NUMA_NODE else device.pcie
        return (device.id, "") if self.scope is Scope.DEVICE or where is None else (where,)

    def _spheres_for_all(self) -> frozenset[tuple[object, ...]]:
        """Where each of the containers, by itself, finds devices enough."""
        spheres = frozenset(map(self._sphere, self.offers))
        for wish in self.wishes:
            there = Counter(self._sphere(option.offer) for option in self.options(wish))
            spheres &= {sphere for sphere, found in there.items() if found >= self.count(wish.container.ask)}
        if not spheres:
            self.why = too_wide(self.scope)
        return spheres

    def open_to(self, wish: Wish) -> list[Option]:
        """The devices that can serve a wish where the scope lets the Pod be, after what it has already."""
        options = self.options(wish)
        if self.scope is Scope.NODE:
            return options
        taken = next((self._sphere(offer) for offer in self.offers if offer.containers), None)
        inside = self.spheres if taken is None else {taken}
        return [option for option in options if self._sphere(option.offer) in inside]

    # Sets of devices for one wish

    def sets(self, wish: Wish, options: list[Option], count: int) -> Iterator[Sequence[Option]]:
        """Sets of so many options, the best first; beside another type's devices it may be more than so many."""
        rule = self.rule(wish.container.ask)
        if self.lead is not None:
            return self.beside(self.lead.held(wish.container.name), options, count, rule)
        if self.followers:
            return self._leading(wish, options, count, rule)
        return self._by_rule(options, count, rule)

    def _by_rule(self, options: list[Option], count: int, rule: SetRule) -> Iterator[Sequence[Option]]:
        alike = self.node.wiring.links.flat or count == len(options)  # connections tell no set from another
        if (rule is _BY_RANK and (count == 1 or alike)) or (rule is PLAIN_RULE and alike):
            options.sort()
            return combinations(options, count)
        by_id = {option.id: option for option in options}
        found = choices(self._candidates(options), count, self.node.wiring.links, rule)
        return ([by_id[one.id] for one in chosen] for chosen in found)

    def held(self, container: str) -> list[Candidate]:
        """The devices that a container has of this type; where it has none, those of the Pod."""
        taken = [offer for offer in self.offers if offer.containers]
        own = [offer for offer in taken if container in offer.containers]
        return [_spot(offer.device) for offer in own or taken]

    def beside(
        self, lead: Sequence[Candidate], options: list[Option], count: int, rule: SetRule
    ) -> Iterator[Sequence[Option]]:
        """Sets that go with these devices of the other type, the best first."""
        by_id = {option.id: option for option in options}
        candidates = self._candidates(options)
        found = choices_beside(lead, candidates, count, self.node.wiring.links, rule, same_pcie=self.same_root)
        first = next(found, None)
        if first is None:
            self.why = self.why or why_none_beside(lead, candidates, count, rule, same_pcie=self.same_root)
            return
        for chosen in chain((first,), found):
            yield [by_id[one.id] for one in chosen]

    def _leading(self, wish: Wish, options: list[Option], count: int, rule: SetRule) -> Iterator[Sequence[Option]]:
        """Sets beside which the container finds what it asks of the other types, or has it nearest."""
        theirs = [
            _Follower(
                search, search.open_to(other), search.count(other.container.ask), search.rule(other.container.ask)
            )
            for search in self.followers
            for other in search.wishes
            if other.container.name == wish.container.name
        ]
        if not theirs:
            return self._by_rule(options, count, rule)
        roots = frozenset.intersection(*(_roots(follower.options) for follower in theirs))
        if not self.same_root:
            return self._by_rule(options, count, replace(rule, roots=roots) if roots else rule)
        options = [option for option in options if option.offer.device.pcie in roots]
        if len(options) < count:
            self.why = self.why or too_few_on_roots(self.kind, count, len(options), [one.search.kind for one in theirs])
            return iter(())
        if not all(follower.reaches(_roots(options), self.kind, count) for follower in theirs):
            return iter(())
        known: dict[frozenset[str], bool] = {}

        def leads(chosen: Sequence[Option]) -> bool:
            at = _roots(chosen)
            if at not in known:
                known[at] = all(follower.finds(chosen) for follower in theirs)
            return known[at]

        return filter(leads, islice(self._by_rule(options, count, rule), _MAX_PASSED_OVER))

    def shares(self) -> tuple[Share, ...]:
        """What was taken, one share a device."""
        tails, name = self.kind.tails, self.kind.name
        return tuple(
            [
                Share(
                    name,
                    offer.device.id,
                    offer.device.minor,
                    dict(zip(tails, offer.peak, strict=True)),
                    self._in_order(offer.containers),
                    (offer.function,) if offer.function else (),
                    self.alone,
                    self.unshared,
                )
                for offer in self.offers
                if offer.containers
            ]
        )

    def _in_order(self, containers: tuple[str, ...]) -> tuple[str, ...]:
        """Containers in the Pod's order."""
        if len(containers) == 1:
            return containers
        order = {container.name: index for index, container in enumerate(self.asks)}
        return tuple(sorted(containers, key=order.__getitem__))


class _Follower(NamedTuple):
    """What a container asks of a type beside those that are chosen for it of another one."""

    search: DeviceSearch
    options: list[Option]
    wanted: int
    rule: SetRule

    def reaches(self, roots: frozenset[str], lead: DeviceType, width: int) -> bool:
        """Tell whether there are devices enough where so many of the first type could be, on these PCIe roots."""
        there = Counter(pcie for option in self.options if (pcie := option.offer.device.pcie) in roots)
        most = sum(found for _, found in there.most_common(width))
        if most < self.wanted and not self.search.why:
            self.search.why = too_few_together(self.search.kind, self.wanted, most, lead, width)
        return most >= self.wanted

    def finds(self, chosen: Sequence[Option]) -> bool:
        """Tell whether there is a set beside these devices."""
        lead = [_spot(option.offer.device) for option in chosen]
        return next(self.search.beside(lead, self.options, self.wanted, self.rule), None) is not None


class _Turn(NamedTuple):
    """A wish and the search that serves it."""

    search: DeviceSearch
    wish: Wish


def _serve(turns: Sequence[_Turn], trials: Iterator[int], at: int = 0) -> bool:
    """Give the next wish its devices and the rest theirs; undo and try the next set where the rest finds none."""
    search, wish = turns[at]
    options = search.options(wish) if search.scope is Scope.NODE else search.open_to(wish)
    count = search.count(wish.container.ask)
    if len(options) < count:
        return False
    sets = search.sets(wish, options, count)
    if at + 1 == len(turns):
        best = next(sets, None) if next(trials, None) is not None else None
        for option in best or ():
            option.offer.hold(wish.container.name, option.peak)
        return best is not None
    for chosen in sets:
        if next(trials, None) is None:
            return False
        undo = [(of, of.peak, of.steps, of.containers) for of in (option.offer for option in chosen)]
        for option in chosen:
            option.offer.serve(wish.container.name, option.amounts, option.peak, wish.steps)
        if _serve(turns, trials, at + 1):
            return True
        for offer, peak, steps, containers in undo:
            offer.peak, offer.steps, offer.containers = peak, steps, containers
    return False


def _spot(device: Device) -> Candidate:
    """A device beside which others are chosen."""
    return Candidate(device.id, device.minor, (), device.numa_node, device.pcie, idle=False)


def _roots(options: Iterable[Option]) -> frozenset[str]:
    return frozenset(pcie for option in options if (pcie := option.offer.device.pcie) is not None)


def selectable(device: Device) -> Mapping[str, str]:
    """The labels by which a hint may select a device: its own, and what is known of it anyway."""
    return {
        "koordgate.io/uuid": device.id,
        "koordgate.io/minor": str(device.minor),
        "koordgate.io/model": device.model,
        **device.labels,
    }


def choose_devices(
    kind: DeviceType, request: PodRequest, node: NodeSnapshot, numa: frozenset[int] | None = None
) -> tuple[Share, ...] | Refusal:
    """Choose devices of one type for each container that asks for some.

    Args:
        kind: the type.
        request: of the Pod.
        node: as it stands.
        numa: NUMA nodes to stay inside; None for all.

    Returns:
        One share a device, in the order of minors, or why the node cannot hold the Pod.
    """
    search = DeviceSearch(kind, request, node, numa)
    turns = [_Turn(search, wish) for wish in search.wishes]
    return search.shares() if _serve(turns, iter(range(MAX_TRIALS))) else explain([search])


def choose_together(
    kinds: Sequence[DeviceType],
    request: PodRequest,
    node: NodeSnapshot,
    numa: frozenset[int] | None = None,
    *,
    same_root: bool = False,
) -> tuple[Share, ...] | Refusal:
    """Choose devices of types that belong together, container by container.

    A container's devices of the first type come first, those of the others beside them. A container that asks for none
    of the first has the others beside all that the Pod has of it.

    Args:
        kinds: two or more, each asked for.
        request: of the Pod.
        node: as it stands.
        numa: NUMA nodes to stay inside; None for all.
        same_root: the devices of a container must be on the very same PCIe roots (requiredScope SamePCIe).

    Returns:
        As `choose_devices`, by type.
    """
    lead = DeviceSearch(kinds[0], request, node, numa, same_root=same_root)
    others = [DeviceSearch(kind, request, node, numa, lead=lead, same_root=same_root) for kind in kinds[1:]]
    turns = []
    served = set()
    for wish in lead.wishes:
        name = wish.container.name
        served.add(name)
        turns.append(_Turn(lead, wish))
        turns += [_Turn(of, other) for of in others for other in of.wishes if other.container.name == name]
    turns += [_Turn(of, other) for of in others for other in of.wishes if other.container.name not in served]
    if not _serve(turns, iter(range(MAX_TRIALS))):
        return explain([lead, *others])
    return tuple(chain.from_iterable(search.shares() for search in (lead, *others)))
