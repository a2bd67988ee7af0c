"""The search for devices of types that belong together (Koordinator's joint allocation).

A container's devices of the leading type are chosen first, then those of the following types beside them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from allocator.budget import Budget
from allocator.devices.offer import Wish
from allocator.devices.options import Option, as_candidates, as_lead, roots_of
from allocator.devices.search import Found, Objection, TypeSearch
from allocator.devices.terms import Terms
from allocator.devices.words import too_few_on_roots, too_few_together
from allocator.topology.joint import choices_beside, why_none_beside
from allocator.topology.sets import Candidate, SetRule
from allocator.vocabulary.devicetype import DeviceType


class FollowingSearch(TypeSearch):
    """The search for a type whose devices belong beside those of another type.

    `same_root`: whether a container's devices of both types must be on the same PCIe roots.
    """

    def __init__(self, terms: Terms, budget: Budget, lead: TypeSearch, *, same_root: bool) -> None:
        super().__init__(terms, budget)
        self._lead = lead
        self._same_root = same_root
        # container's name -> its wish
        self.by_container = {name: wish for wish in self.wishes for name in wish.container.names}

    def sets(self, wish: Wish, options: list[Option], count: int) -> Found:
        """Go through sets as `TypeSearch.sets` does: those beside the container's devices of the leading type.

        A set may have more devices than were requested.
        """
        return self.beside(self._lead.held(wish.container.names), options, count, self.rule(wish.container.ask))

    def beside(self, lead: Sequence[Candidate], options: list[Option], count: int, rule: SetRule) -> Found:
        """Go through the sets that belong beside these devices of the leading type, the best first."""
        by_id = {option.id: option for option in options}
        candidates = as_candidates(options, self.terms)
        links, same = self.terms.node.wiring.links, self._same_root
        found = choices_beside(lead, candidates, count, links, rule, same_pcie=same, budget=self.budget)
        first = next(found, None)
        if first is None:
            yield Objection(self.terms.kind.name, why_none_beside(lead, candidates, count, rule, same_pcie=same))
            return
        for chosen in chain((first,), found):
            yield [by_id[one.id] for one in chosen]


class LeadingSearch(TypeSearch):
    """The search for the type beside whose devices those of the other types are chosen.

    `same_root`: whether a container's devices of all types must be on the same PCIe roots.
    """

    def __init__(self, terms: Terms, budget: Budget, *, same_root: bool) -> None:
        super().__init__(terms, budget)
        self._same_root = same_root
        self.followers: list[FollowingSearch] = []  # the searches for the other types; filled before `sets` is called

    def sets(self, wish: Wish, options: list[Option], count: int) -> Found:
        """Go through sets as `TypeSearch.sets` does: those beside which the other types have devices."""
        rule = self.rule(wish.container.ask)
        theirs = [
            _Follower(
                search, search.open_to(other), search.count(other.container.ask), search.rule(other.container.ask)
            )
            for search in self.followers
            for other in {
                search.by_container[name]: None for name in wish.container.names if name in search.by_container
            }
        ]
        if not theirs:
            return self._by_rule(options, count, rule)
        roots = frozenset.intersection(*(roots_of(follower.options) for follower in theirs))
        if self._same_root:
            return self._on_same_roots(options, count, rule, theirs, roots)
        return self._by_rule(options, count, replace(rule, roots=roots) if roots else rule)

    def _on_same_roots(
        self, options: list[Option], count: int, rule: SetRule, theirs: Sequence["_Follower"], roots: frozenset[str]
    ) -> Found:
        """Go through the sets on these PCIe roots beside which each follower finds its devices."""
        kind = self.terms.kind
        options = [option for option in options if option.offer.device.pcie in roots]
        if len(options) < count:
            others = [follower.search.terms.kind for follower in theirs]
            yield Objection(kind.name, too_few_on_roots(kind, count, len(options), others))
            return
        reached = roots_of(options)
        for follower in theirs:
            short = follower.out_of_reach(reached, kind, count)
            if short is not None:
                yield short
                return
        known: dict[frozenset[str], Objection | None] = {}
        for chosen in self._by_rule(options, count, rule):
            self.budget.spend(1)
            at = roots_of(chosen)
            if at not in known:
                objections = (follower.objection(chosen) for follower in theirs)
                objection = known[at] = next((one for one in objections if one is not None), None)
                if objection is not None:
                    yield objection
            if known[at] is None:
                yield chosen


class _Follower(NamedTuple):
    """What a container requests of a following type."""

    search: FollowingSearch
    options: list[Option]
    wanted: int
    rule: SetRule

    def out_of_reach(self, roots: frozenset[str], lead: DeviceType, width: int) -> Objection | None:
        """Object if `width` devices of the leading type on these PCIe roots cannot have enough devices beside them."""
        there = Counter(pcie for option in self.options if (pcie := option.offer.device.pcie) in roots)
        most = sum(found for _, found in there.most_common(width))
        if most >= self.wanted:
            return None
        kind = self.search.terms.kind
        return Objection(kind.name, too_few_together(kind, self.wanted, most, lead, width))

    def objection(self, chosen: Sequence[Option]) -> Objection | None:
        """Object if no set belongs beside these devices of the leading type."""
        lead = [as_lead(option.offer.device) for option in chosen]
        first: Iterator[Sequence[Option] | Objection] = self.search.beside(lead, self.options, self.wanted, self.rule)
        found = next(first)
        return found if isinstance(found, Objection) else None
