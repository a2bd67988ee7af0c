"""The search for devices of one type: what can serve each container of a Pod, and which sets of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from allocator.devices.offer import Offer, Wish, wishes_of
from allocator.devices.offers import find_offers
from allocator.devices.options import Option, as_candidates, as_lead, find_options
from allocator.devices.rules import BY_RANK, set_rule
from allocator.devices.terms import Terms
from allocator.topology.sets import PLAIN_RULE, Candidate, SetRule, choices
from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.hints import Scope
from allocator.vocabulary.holdings import Share


@dataclass(frozen=True, slots=True)
class Objection:
    """Why a set that a rule does not let pass is passed over: the type that it was looked for, and the reason."""

    type: str
    why: str


Found = Iterator[Sequence[Option] | Objection]


class TypeSearch:
    """The devices of one type in one decision, and what the Pod has taken of them so far.

    Attributes:
        terms: on which devices are chosen.
        wishes: the containers to serve, the hardest first.
        offers: the devices that could be chosen.
        selected: how many devices an ask for every one of them takes.
        scope: how close together the devices of all containers must be; NODE where the rule for sets sees to it.
        spheres: where, in the words of the scope, each container by itself finds devices enough.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.wishes, steps = wishes_of(terms.asks)
        self.offers, self.selected = find_offers(terms, steps)
        self._rules: dict[bool, SetRule] = {}
        self.scope = (terms.hint.scope or Scope.NODE) if len(self.wishes) > 1 else Scope.NODE
        self.spheres = frozenset() if self.scope is Scope.NODE else self._spheres_for_all()

    def rule(self, ask: DeviceAsk) -> SetRule:
        """What a set of devices for an ask must be."""
        whole = ask.whole
        rule = self._rules.get(whole)
        if rule is None:
            rule = self._rules[whole] = set_rule(self.terms, whole=whole)
        return rule

    def count(self, ask: DeviceAsk) -> int:
        """How many devices an ask takes here."""
        return max(self.selected, ask.count) if ask.every else ask.count

    def options(self, wish: Wish) -> list[Option]:
        """The devices that can serve a wish, in no order, after what the Pod has taken already."""
        return find_options(wish, self.offers, self.terms)

    def open_to(self, wish: Wish) -> list[Option]:
        """The `options` in that part of the node in which the scope lets the Pod be."""
        options = find_options(wish, self.offers, self.terms)
        if self.scope is Scope.NODE:
            return options
        taken = next((self._sphere(offer) for offer in self.offers if offer.containers), None)
        inside = self.spheres if taken is None else {taken}
        return [option for option in options if self._sphere(option.offer) in inside]

    def _sphere(self, offer: Offer) -> tuple[object, ...]:
        """Where a device is, in the words of the scope; one whose place is not known is by itself."""
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

        Args:
            wish: the container to serve.
            options: of the wish.
            count: of devices.

        Returns:
            Sets, and in their places objections to those that were passed over, as far as there are any.
        """
        return self._by_rule(options, count, self.rule(wish.container.ask))

    def _by_rule(self, options: list[Option], count: int, rule: SetRule) -> Iterator[Sequence[Option]]:
        links = self.terms.node.wiring.links
        alike = links.flat or count == len(options)  # connections do not distinguish one set from another
        if (rule is BY_RANK and (count == 1 or alike)) or (rule is PLAIN_RULE and alike):
            options.sort()
            return combinations(options, count)
        by_id = {option.id: option for option in options}
        found = choices(as_candidates(options, self.terms), count, links, rule)
        return ([by_id[one.id] for one in chosen] for chosen in found)

    def held(self, container: str) -> list[Candidate]:
        """The devices that a container has of this type; where it has none, those of the Pod."""
        taken = [offer for offer in self.offers if offer.containers]
        own = [offer for offer in taken if container in offer.containers]
        return [as_lead(offer.device) for offer in own or taken]

    def shares(self) -> tuple[Share, ...]:
        """What was taken, one share a device."""
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
        """Containers in the Pod's order."""
        if len(containers) == 1:
            return containers
        order = {container.name: index for index, container in enumerate(self.terms.asks)}
        return tuple(sorted(containers, key=order.__getitem__))
