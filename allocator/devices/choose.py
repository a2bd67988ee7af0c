"""Choosing devices on one node for the containers of one Pod: of one type, or of several that belong together.

Each container gets distinct devices of its own. On each device a Pod holds the most that its containers use there at
any moment of its life (Kubernetes' rule for init containers and sidecars), so an init container reuses what the later
containers need anyway. The first choice that fits, in one fixed order of preference, wins. If it leaves a later
container without devices, the next choices are tried, up to a bound.

For types that belong together (Koordinator's joint allocation), a container's devices of the first type are chosen
first, then the devices of the other types beside them, then the next container's. If nothing is left beside one
choice, the next choice is tried.

What a Pod holds in sum only grows while its containers are served, so that a choice which exceeds what quotas count of
the Pod is passed over.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import le, sub
from typing import Final, NamedTuple

from allocator.budget import Budget, BudgetSpentError
from allocator.devices.explain import explain, lacking
from allocator.devices.offer import Amounts, Demand, Offer
from allocator.devices.options import Option, as_candidates, as_lead, roots_of
from allocator.devices.search import Found, Objection, TypeSearch
from allocator.devices.terms import Terms, terms_of
from allocator.devices.words import too_few_on_roots, too_few_together
from allocator.request.quotaamounts import TypeLimit
from allocator.topology.sets import Candidate, SetRule, choices_beside, why_none_beside
from allocator.vocabulary.asks import PodRequest, Scope
from allocator.vocabulary.devicetype import DeviceType
from allocator.vocabulary.holdings import Holding, Share
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal


class Allowance:
    """What a Pod may still take beside what its earlier containers have taken.

    `offers` are all devices of the type that the Pod could get. What the Pod holds stays within the limit if containers
    that follow one another use the same devices.
    """

    def __init__(self, limit: TypeLimit, offers: Iterable[Offer]) -> None:
        self.kind = limit.kind.name
        self._limit = limit
        self._counted = limit.kind.counted
        held = [self._counted(one.peak) for one in offers if one.containers]
        self._fresh = not held
        self._grown: dict[tuple[Amounts, Amounts], Amounts] = {}  # devices are mostly alike
        self._held = _sum([(0,) * len(limit.most), *held])

    def possible(self, options: list[Option], count: int) -> list[Option]:
        """Keep the devices that some set within the limits could contain, of `count` devices or more."""
        grown = list(map(self._growth, options))
        if len(set(grown)) == 1:
            alike = all(map(le, _sum([self._held, *grown[:count]]), self._limit.most))
            return options if alike else []
        within = [True] * len(options)
        for most, held, *each in zip(self._limit.most, self._held, *grown, strict=True):
            *least, last = sorted(each)[:count]
            left = most - held - sum(least)
            within = [one and max(more, last) <= left for one, more in zip(within, each, strict=True)]
        return [option for option, one in zip(options, within, strict=True) if one]

    def why_not(self, chosen: Sequence[Option]) -> str:
        """Say in a user's words which limit these devices together would exceed; "" if none."""
        exceeded = self._limit.exceeded(_sum([self._held, *map(self._growth, chosen)]))
        return next((self._told(name, most) for name, _, most in exceeded), "")

    def _growth(self, option: Option) -> Amounts:
        """How much more the Pod would hold."""
        key = option.fit.peak, option.offer.peak if option.offer.containers else ()
        if key not in self._grown:
            grown, *held = (self._counted(peak) for peak in key if peak)
            self._grown[key] = tuple(map(sub, grown, *held)) if held else grown
        return self._grown[key]

    def _told(self, name: str, most: int) -> str:
        what = f"more than quotas count of the Pod ({name} {most})"
        if self._fresh:
            return (
                f"what it asks is {what} on these {self._limit.kind.plural}: it was created when other devices were in "
                "reach; create it again"
            )
        return (
            f"the Pod would hold {what}: its init containers must use devices of its other containers, and too little "
            "of these is free; let the init containers ask for less, or wait until other Pods end"
        )


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    return tuple(map(sum, zip(*amounts, strict=True)))


class FollowingSearch(TypeSearch):
    """The search for a type whose devices belong beside those of another type.

    `same_root`: whether a container's devices of both types must be on the same PCIe roots.
    """

    def __init__(self, terms: Terms, budget: Budget, lead: TypeSearch, *, same_root: bool) -> None:
        super().__init__(terms, budget)
        self._lead = lead
        self._same_root = same_root
        # container's name -> its demand
        self.by_container = {name: demand for demand in self.demands for name in demand.container.names}

    def sets(self, demand: Demand, options: list[Option], count: int) -> Found:
        """Go through sets as `TypeSearch.sets` does: those beside the container's devices of the leading type.

        A set may have more devices than were requested.
        """
        return self.beside(self._lead.held(demand.container.names), options, count, self.rule(demand.container.ask))

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

    def sets(self, demand: Demand, options: list[Option], count: int) -> Found:
        """Go through sets as `TypeSearch.sets` does: those beside which the other types have devices."""
        rule = self.rule(demand.container.ask)
        theirs = [
            _Follower(
                search, search.open_to(other), search.count(other.container.ask), search.rule(other.container.ask)
            )
            for search in self.followers
            for other in {
                search.by_container[name]: None for name in demand.container.names if name in search.by_container
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


_CHEAP_STEPS: Final = 16  # of a Pod's life: what a Pod takes of a device is noted for each


def choose_devices(
    kind: DeviceType,
    request: PodRequest,
    node: NodeSnapshot,
    budget: Budget,
    numa: frozenset[int] | None = None,
    only: Holding | None = None,
) -> tuple[Share, ...] | Refusal:
    """Choose devices of one type for each container that asks for some.

    `numa`: NUMA nodes to stay inside; None for all. Returns one share per device, in the order of minors, or why the
    node cannot hold the Pod. Raises BudgetSpentError: the search ended before it was found out whether the containers
    fit together.
    """
    search = TypeSearch(terms_of(kind, request, node, numa, only), budget)
    return _found([search], [_Turn(search, demand) for demand in search.demands], budget)


def choose_together(
    kinds: Sequence[DeviceType],
    request: PodRequest,
    node: NodeSnapshot,
    budget: Budget,
    numa: frozenset[int] | None = None,
    only: Holding | None = None,
    *,
    same_root: bool = False,
) -> tuple[Share, ...] | Refusal:
    """Choose devices of types that belong together, container by container.

    A container's devices of the first type come first, and the devices of the other types beside them. A container
    that requests none of the first type gets the others beside all devices of that type that the Pod has.
    `numa`: NUMA nodes to stay inside; None for all. `same_root`: the devices of a container must be on the same PCIe
    roots (requiredScope SamePCIe). Returns as `choose_devices` does, type by type. Raises BudgetSpentError: as
    `choose_devices`.
    """
    lead = LeadingSearch(terms_of(kinds[0], request, node, numa, only), budget, same_root=same_root)
    others = [
        FollowingSearch(terms_of(kind, request, node, numa, only), budget, lead, same_root=same_root)
        for kind in kinds[1:]
    ]
    lead.followers.extend(others)
    last = {name: at for at, demand in enumerate(lead.demands) for name in demand.container.names}
    followers: dict[int, list[_Turn]] = {}  # by the last demand for the first type of their containers
    for of in others:
        for other in of.demands:
            after = max((last[name] for name in other.container.names if name in last), default=len(lead.demands))
            followers.setdefault(after, []).append(_Turn(of, other))
    turns = []
    for at, demand in enumerate(lead.demands):
        turns += [_Turn(lead, demand), *followers.get(at, ())]
    turns += followers.get(len(lead.demands), ())
    return _found([lead, *others], turns, budget)


class _Turn(NamedTuple):
    """A demand and the search that serves it."""

    search: TypeSearch
    demand: Demand


def _found(searches: Sequence[TypeSearch], turns: Sequence[_Turn], budget: Budget) -> tuple[Share, ...] | Refusal:
    """Serve all demands; returns the shares of all types, or why there are none."""
    try:
        objections = _serve(turns, budget)
    except BudgetSpentError:
        refusal = lacking(searches, budget)
        if refusal is None:
            raise
        return refusal
    if objections is not None:
        return explain(searches, objections, budget)
    return tuple(chain.from_iterable([search.shares() for search in searches]))


def _serve(turns: Sequence[_Turn], budget: Budget) -> dict[str, str] | None:
    """Serve the demands one after another; where the rest cannot be served, undo a choice and try the next one.

    Returns None if all are served; otherwise the first objection to a set, by type. Raises BudgetSpentError: as
    `choose_devices`; nothing is served then.
    """
    attempts: list[_Attempt] = []
    exchangeable: bool | None = None
    try:
        while len(attempts) < len(turns):
            attempts.append(_Attempt(turns[len(attempts)]))
            while not attempts[-1].serve(budget, last=len(attempts) == len(turns)):
                objections = attempts.pop().objections
                if not attempts:
                    return objections
                if exchangeable is None:
                    exchangeable = _exchangeable(turns)
                attempts[-1].failed(objections, exchangeable=exchangeable)
    except BudgetSpentError:
        for attempt in reversed(attempts):
            attempt.undo()
        raise
    return None


class _Attempt:
    """Serving one demand while the earlier ones are served: the present choice, and what was not tried yet."""

    __slots__ = ("_allowance", "_chosen", "_demand", "_failed", "_options", "_price", "_sets", "_undo", "objections")

    def __init__(self, turn: _Turn) -> None:
        search, demand = turn
        options = search.open_to(demand)
        count = search.count(demand.container.ask)
        self.objections: dict[str, str] = {}  # the first to a set of this demand or of a later one, by type
        limit = search.terms.limit
        self._allowance = Allowance(limit, search.offers) if limit is not None else None
        if self._allowance is not None and len(options) >= count:
            possible = self._allowance.possible(options, count)
            if len(possible) < count:
                self.objections[self._allowance.kind] = self._allowance.why_not(options[:count])
            options = possible
        self._sets: Iterator[Sequence[Option] | Objection]
        self._sets = iter(()) if len(options) < count else iter(search.sets(demand, options, count))
        self._options = options
        self._demand = demand
        self._price = 1 + (len(turn.search.terms.asks) + len(demand.steps)) // _CHEAP_STEPS
        self._chosen: Sequence[Option] = ()
        self._undo: list[tuple[Offer, Amounts, tuple[Amounts, ...], tuple[str, ...]]] = []
        self._failed: set[Hashable] = set()  # kinds of choices

    def serve(self, budget: Budget, *, last: bool) -> bool:
        """Serve the demand with the next set that may do; returns whether there is one.

        What the last demand takes is never undone, and nobody asks what it takes in which step.
        """
        containers, steps = self._demand.container.names, self._demand.steps
        for chosen in self._sets:
            if isinstance(chosen, Objection):
                self.objections.setdefault(chosen.type, chosen.why)
                continue
            budget.spend(len(chosen) * self._price)
            if self._allowance is not None and (why := self._allowance.why_not(chosen)):
                self.objections.setdefault(self._allowance.kind, why)
                continue
            if self._failed and _kind(chosen) in self._failed:
                continue
            if last:
                for option in chosen:
                    option.offer.hold(containers, option.fit.peak)
                return True
            self._chosen = chosen
            self._undo = [(of, of.peak, of.steps, of.containers) for of in [option.offer for option in chosen]]
            for option in chosen:
                option.offer.serve(containers, option.fit.amounts, option.fit.peak, steps)
            return True
        return False

    def failed(self, objections: dict[str, str], *, exchangeable: bool) -> None:
        """Undo the present choice: beside it the later demands cannot be served.

        `exchangeable`: whether every choice of the same kind would fail too.
        """
        self.undo()
        self.objections = {**objections, **self.objections}
        if not exchangeable:
            return
        if not self._failed and len({_kind((option,)) for option in self._options}) == 1:
            self._sets = iter(())  # all are of one kind
        self._failed.add(_kind(self._chosen))

    def undo(self) -> None:
        """Undo the present choice, if there is one."""
        for offer, peak, steps, containers in self._undo:
            offer.peak, offer.steps, offer.containers = peak, steps, containers
        self._undo = []


def _exchangeable(turns: Sequence[_Turn]) -> bool:
    """Whether devices of one kind are as good as one another for what is still to be served.

    Connections, partitions and the places of devices decide which set comes first, and which fail only where a set
    must keep a rule, or belongs beside devices of another type.
    """
    search = turns[0].search
    if search.scope is not Scope.NODE or any(turn.search is not search for turn in turns):
        return False
    asks = [turn.demand.container.ask for turn in turns]
    return not any(search.rule(ask).binding(search.count(ask)) for ask in asks)


def _kind(chosen: Sequence[Option]) -> Hashable:
    """All that later demands can see of devices, whichever they are."""
    of = [option.offer for option in chosen]
    kinds = [
        (one.capacity, one.free, one.steps, bool(one.containers), one.device.model, one.device.vendor) for one in of
    ]
    return tuple(sorted(kinds))
