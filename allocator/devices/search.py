"""The search for devices of one type: the devices that can serve each container of a Pod, and the sets of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import le

from allocator.budget import Budget
from allocator.devices.offer import Offer, Wish, wishes_of
from allocator.devices.offers import find_offers
from allocator.devices.options import Option, as_candidates, as_lead, find_options
from allocator.devices.rules import BY_RANK, set_rule
from allocator.devices.terms import Terms
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, Spot, choices, least_broken
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.hints import Scope
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.preference import DeviceOrder


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a set was passed over: the type of its devices, and the reason."""

    type: str
    why: str


Found = Iterator[Sequence[Option] | Objection]


class TypeSearch:
    """The devices of one type in one decision, and what the Pod has taken so far.

    `wishes`: the containers to serve, the hardest first. `offers`: the devices that could be chosen. `selected`: how
    many devices an ask for every one of them takes. `budget`: of the decision; every search for devices takes steps of
    it.
    """

    def __init__(self, terms: Terms, budget: Budget) -> None:
        self.terms = terms
        self.budget = budget
        self.wishes, steps = wishes_of(terms.asks)
        self.offers, self.selected = find_offers(terms, steps)
        self._rules: dict[bool, SetRule] = {}
        # how close together the devices of all containers must be; NODE if the rule for sets ensures it
        self.scope = (terms.hint.scope or Scope.NODE) if len(self.wishes) > 1 else Scope.NODE
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

    def options(self, wish: Wish) -> list[Option]:
        """The devices that can serve a wish beside what the Pod has taken already, in no particular order."""
        self.budget.spend(len(self.offers))
        return find_options(wish, self.offers, self.terms)

    def open_to(self, wish: Wish) -> list[Option]:
        """The `options` in the part of the node to which the scope confines the Pod."""
        options = self.options(wish)
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
        for wish in self.wishes:
            there = Counter(self._sphere(option.offer) for option in self.options(wish))
            spheres &= {sphere for sphere, found in there.items() if found >= self.count(wish.container.ask)}
        return spheres

    def sets(self, wish: Wish, options: list[Option], count: int) -> Found:
        """Go through sets of `count` of these options, the best first.

        Returns sets, and objections in the places of the sets that were passed over.
        """
        return self._by_rule(options, count, self.rule(wish.container.ask))

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
            least = options[0].rank
            tied = [option for option in options if option.rank == least]
            at = 0
            if len(tied) > 1 and any(one.offer.idle and not one.offer.containers for one in tied):
                tied_at = [Spot(one.minor, one.id) for one in tied]
                at = least_broken(tied_at, self._free(), links, rule.partitions)
            yield (tied[at],)
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
