"""The search for devices of one type: the devices that can serve each container of a Pod, and the sets of them."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import le
from typing import Final

from allocator.budget import Budget
from allocator.devices.offer import Amounts, Demand, Offer, demands_of
from allocator.devices.options import Option, as_candidates, as_lead, find_options
from allocator.devices.terms import Terms
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, Spot, choices, free_function, least_broken
from allocator.vocabulary.asks import NO_HINT, DeviceAsk, DeviceOrder, Scope, Selector
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Function, Share
from allocator.vocabulary.names import (
    DEVICE_ID,
    GPU_COUNT,
    GPU_MEMORY,
    GPU_MEMORY_MIB,
    GPU_PRODUCT,
    MODEL,
    MODEL_LABELS,
    TYPE_GPU,
    model_name,
)
from allocator.vocabulary.node import NodeSnapshot, left

BY_RANK: Final = SetRule(rank_first=True)


def set_rule(terms: Terms, company: int, *, whole: bool) -> SetRule:
    """Make the rule for an ask of whole devices, or of parts of devices.

    `company`: whole devices that the gang's other Pods are still to get.
    """
    wishes, wiring = terms.wishes, terms.node.wiring
    near = _mates(terms) if wishes.gang else frozenset()
    scope = terms.hint.scope or PLAIN_RULE.scope
    partitioned = terms.kind.partitioned
    required = whole and partitioned and (wishes.partition is not None or wiring.honour_partitions)
    partitions = wiring.table(terms.kind.name) if partitioned and terms.order is not DeviceOrder.MINOR else None
    if not whole or (terms.order is DeviceOrder.MINOR and not required):
        plain = scope is PLAIN_RULE.scope and not near and partitions is None
        return BY_RANK if plain else SetRule(scope, rank_first=True, partitions=partitions, near=near)
    partitions = wiring.table(terms.kind.name) if partitioned else None
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
        company=company,
    )


def _mates(terms: Terms) -> frozenset[str]:
    """Devices of this type that other Pods of the gang hold on the node."""
    return frozenset(
        share.id
        for holding in terms.node.holdings.values()
        if holding.gang == terms.wishes.gang
        for share in holding.shares
        if share.type == terms.kind.name
    )


_MIB: Final = 2**20


def find_offers(terms: Terms, steps: int) -> tuple[list[Offer], int]:
    """Find the devices that could be chosen. The Pod holds nothing of them yet, in any step of its life.

    Returns the offers in the node's order, and their number if `Terms.only` did not restrict them.
    """
    offers = _open(terms, steps)
    wanted = terms.hint.functions
    if terms.only is None:
        if wanted is not None:
            offers = _with_functions(offers, wanted, terms.node.functions_held())
        return offers, len(offers)
    taken = terms.node.functions_held()
    known = len(offers) if wanted is None else len(_with_functions(offers, wanted, set(taken)))
    offers = [_limited(offer, terms.only[offer.device.id], terms) for offer in offers if offer.device.id in terms.only]
    if wanted is not None:
        named = {function.bus_id for share in terms.only.values() for function in share.functions}
        offers = _with_functions(offers, wanted, taken, named)
    return offers, known


def _open(terms: Terms, steps: int) -> list[Offer]:
    """List the usable devices inside the NUMA nodes that the hint selects and that no Pod has exclusively."""
    node, numa, used = terms.node, terms.numa, terms.node.used
    name, tails = terms.kind.name, terms.kind.tails
    closed = _closed(terms)
    hinted = terms.hint is not NO_HINT
    nothing = ((0,) * len(tails),) * steps
    offers = []
    capacity: Amounts = ()
    whose: Mapping[str, int] | None = None  # devices of one node mostly share one capacity
    for device in node.devices:
        if device.type != name or device.id in closed:
            continue
        if numa is not None and not (device.numa_node is None or device.numa_node in numa):
            continue
        held = used.get(device.id)
        if hinted and not _hinted(device, held, terms):
            continue
        if device.capacity is not whose:
            whose = device.capacity
            capacity = tuple([whose[tail] for tail in tails])
        free = capacity if held is None else left(capacity, held, tails)
        offers.append(Offer(device, held, capacity, free, nothing))
    return offers


def _closed(terms: Terms) -> frozenset[str]:
    """Devices that are unusable, that another Pod has exclusively, or beside which the Pod would not be alone.

    PCIeLevel closes whole PCIe roots; if a device's root is unknown, it closes at least that device.
    """
    node = terms.node
    closed = node.unusable | node.unshared if node.unshared else node.unusable
    if not (terms.alone or node.alone):
        return closed
    ids = {*node.used, *node.kubelet_held} if terms.alone else node.alone
    roots = {device.pcie for device in node.devices if device.id in ids and device.pcie is not None}
    return closed.union(ids, (device.id for device in node.devices if device.pcie in roots))


def _hinted(device: Device, held: Mapping[str, int] | None, terms: Terms) -> bool:
    if terms.unshared and held is not None:
        return False
    selector = terms.hint.selector
    return selector is None or selector.matches(selectable(device, terms.node))


def selectable(device: Device, node: NodeSnapshot) -> Mapping[str, str]:
    """The labels by which a hint may select a device: its own, and those that every device has.

    A GPU also has the labels that NVIDIA's feature discovery gives its node, as far as they say what it is. Models are
    in the one spelling to which hints reduce them.
    """
    labels = {DEVICE_ID: device.id, "koordgate.io/minor": str(device.minor), MODEL: device.model}
    if device.type == TYPE_GPU:
        labels[GPU_PRODUCT] = device.model
        labels[GPU_MEMORY_MIB] = str(device.has_at_most(GPU_MEMORY) // _MIB)
        labels[GPU_COUNT] = str(sum(one.type == TYPE_GPU for one in node.devices))
    labels.update(device.labels)
    for key in MODEL_LABELS & labels.keys():
        labels[key] = model_name(labels[key])
    return labels


def _limited(offer: Offer, most: Share, terms: Terms) -> Offer:
    """Limit what is free of a device to what may be taken of it."""
    allowed = (most.amounts.get(tail, 0) for tail in terms.kind.tails)
    offer.free = tuple([min(free, amount) for free, amount in zip(offer.free, allowed, strict=True)])
    return offer


def _with_functions(
    offers: Iterable[Offer], wanted: Selector, taken: set[str], named: Collection[str] | None = None
) -> list[Offer]:
    """Keep the devices that have a free virtual function that the hint selects, and attach that function to each.

    `taken`: bus ids of the functions that a Pod holds; a function that two devices list is given once. `named`: bus ids
    of the functions that may be given; None for all.
    """
    kept = []
    for offer in offers:
        functions = offer.device.functions
        if named is not None:
            functions = tuple(one for one in functions if one.bus_id in named)
        function = free_function(functions, wanted, taken)
        if function is not None:
            offer.comes_with(Function(-1 if function.minor is None else function.minor, function.bus_id))
            taken.add(function.bus_id)
            kept.append(offer)
    return kept


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a set was passed over: the type of its devices, and the reason."""

    type: str
    why: str


Found = Iterator[Sequence[Option] | Objection]


class TypeSearch:
    """The devices of one type in one decision, and what the Pod has taken so far.

    `demands`: the containers to serve, the hardest first. `offers`: the devices that could be chosen. `selected`: how
    many devices an ask for every one of them takes. `budget`: of the decision; every search for devices takes steps of
    it.
    """

    def __init__(self, terms: Terms, budget: Budget) -> None:
        self.terms = terms
        self.budget = budget
        self.demands, steps = demands_of(terms.asks)
        self.offers, self.selected = find_offers(terms, steps)
        self._rules: dict[bool, SetRule] = {}
        # how close together the devices of all containers must be; NODE if the rule for sets ensures it
        self.scope = (terms.hint.scope or Scope.NODE) if len(self.demands) > 1 else Scope.NODE
        # the places, of the scope's kind, in which each container by itself finds enough devices
        self.spheres = frozenset() if self.scope is Scope.NODE else self._spheres_for_all()

    def rule(self, ask: DeviceAsk) -> SetRule:
        """The rule that a set of devices for an ask must keep."""
        whole = self.whole(ask)
        rule = self._rules.get(whole)
        if rule is None:
            rule = self._rules[whole] = set_rule(self.terms, self._company(), whole=whole)
        return rule

    def _company(self) -> int:
        """How many whole devices the Pods of the gang that still wait will take, if they ask as this one does."""
        waiting = self.terms.wishes.waiting
        return waiting and waiting * sum(one.ask.count for one in self.terms.asks if self.whole(one.ask))

    def whole(self, ask: DeviceAsk) -> bool:
        """Say whether an ask takes all of each device that is large enough for it."""
        if ask.whole:
            return True
        if ask.partial and not self.terms.unshared:
            return False
        capacities = frozenset([offer.capacity for offer in self.offers])
        enough = [of for of in capacities if all(map(le, self.terms.amounts(of, ask), of))]
        return bool(enough) and all(self.terms.takes_all(of, ask) for of in enough)

    def count(self, ask: DeviceAsk) -> int:
        """How many devices an ask takes here."""
        return max(self.selected, ask.count) if ask.every else ask.count

    def options(self, demand: Demand) -> list[Option]:
        """The devices that can serve a demand beside what the Pod has taken already, in no particular order."""
        self.budget.spend(len(self.offers))
        return find_options(demand, self.offers, self.terms)

    def open_to(self, demand: Demand) -> list[Option]:
        """The `options` in the part of the node to which the scope confines the Pod."""
        options = self.options(demand)
        if self.scope is Scope.NODE:
            return options
        taken = next((self._sphere(offer) for offer in self.offers if offer.containers), None)
        inside = self.spheres if taken is None else {taken}
        return [option for option in options if self._sphere(option.offer) in inside]

    def _sphere(self, offer: Offer) -> tuple[object, ...]:
        """The place of a device, of the kind that the scope names; a device whose place is unknown is by itself."""
        device = offer.device
        where = device.numa_node if self.scope is Scope.NUMA_NODE else device.pcie
        return (device.id, "") if self.scope is Scope.DEVICE or where is None else (where,)

    def _spheres_for_all(self) -> frozenset[tuple[object, ...]]:
        spheres = frozenset(map(self._sphere, self.offers))
        for demand in self.demands:
            there = Counter(self._sphere(option.offer) for option in self.options(demand))
            spheres &= {sphere for sphere, found in there.items() if found >= self.count(demand.container.ask)}
        return spheres

    def sets(self, demand: Demand, options: list[Option], count: int) -> Found:
        """Go through sets of `count` of these options, the best first.

        Returns sets, and objections in the places of the sets that were passed over.
        """
        return self._by_rule(options, count, self.rule(demand.container.ask))

    def _by_rule(self, options: list[Option], count: int, rule: SetRule) -> Iterator[Sequence[Option]]:
        links = self.terms.node.wiring.links
        alike = links.flat or count == len(options)  # connections do not distinguish sets
        by_minor = self.terms.order is DeviceOrder.MINOR
        if (alike and (rule is BY_RANK or rule is PLAIN_RULE)) or (by_minor and count == 1 and rule is BY_RANK):
            options.sort()
            return combinations(options, count)
        if count == 1 and rule.rank_first and not (rule.near or rule.roots or by_minor):
            return self._one_by_one(options, rule)
        by_id = {option.id: option for option in options}
        found = choices(as_candidates(options, self.terms), count, links, rule, self.budget)
        return ([by_id[one.id] for one in chosen] for chosen in found)

    def _one_by_one(self, options: list[Option], rule: SetRule) -> Iterator[Sequence[Option]]:
        """Go through single devices for a part of one: by rank, and of equal ranks first what breaks the least."""
        links = self.terms.node.wiring.links
        options.sort()
        while options:
            first, at = options[0], 0
            # Of equal ranks, all are untouched or none is.
            if len(options) > 1 and options[1].rank == first.rank and first.offer.idle and not first.offer.containers:
                tied = [Spot(one.minor, one.id) for one in options if one.rank == first.rank]
                at = least_broken(tied, self._free(), links, rule.partitions)
            yield (options[at],)
            del options[at]

    def _free(self) -> list[Spot]:
        """The usable devices of the node that neither this Pod nor another holds a part of."""
        node, name = self.terms.node, self.terms.kind.name
        held = {offer.device.id for offer in self.offers if offer.containers}.union(node.used, node.unusable)
        return [Spot(one.minor, one.id) for one in node.devices if one.type == name and one.id not in held]

    def held(self, containers: Iterable[str]) -> list[Candidate]:
        """The devices of this type that these containers have; if they have none, those that the Pod has."""
        taken = [offer for offer in self.offers if offer.containers]
        own = [offer for offer in taken if not frozenset(offer.containers).isdisjoint(containers)]
        return [as_lead(offer.device) for offer in own or taken]

    def shares(self) -> tuple[Share, ...]:
        """The taken shares, one per device."""
        terms = self.terms
        tails, name = terms.kind.tails, terms.kind.name
        return tuple(
            [
                Share(
                    name,
                    offer.device.id,
                    offer.device.minor,
                    dict(zip(tails, offer.peak, strict=True)),
                    self._in_order(offer.containers),
                    (offer.function,) if offer.function else (),
                    terms.alone,
                    terms.unshared,
                )
                for offer in self.offers
                if offer.containers
            ]
        )

    def _in_order(self, containers: tuple[str, ...]) -> tuple[str, ...]:
        """Sort containers in the Pod's order."""
        if len(containers) == 1:
            return containers
        members = [member for one in self.terms.asks for member in one.members]
        order = {one.name: index for index, one in enumerate(self.terms.asks)}
        order |= {member.name: member.place for member in members}  # either all asks have members, or none
        return tuple(sorted(containers, key=order.__getitem__))
