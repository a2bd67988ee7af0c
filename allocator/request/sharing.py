"""How the containers of a Pod share its devices: the groups that ask together, and each container's fraction.

Rules of FLIP-53:

- "Fraction Based Quota Strategy": a container that states an amount has its request over its group's. Of n containers
  that state none, each has 1/n, or its weight over the sum of their weights.
- "Operator Resource Requirements": a Pod states amounts in all containers that use a type, or in none of them. What a
  container does not state beside an amount is 0, unless it speaks another product's dialect: there it is not limited.
- "Slot Sharing": by default containers that run at the same time are one group, and later ones reuse what earlier ones
  held. A sidecar runs in several regions; these are one group, which holds the greatest of the regions' sums. Groups
  that the author names are respected. A group asks for the sum of what its containers state, or for the default slot.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain
from typing import Final, NamedTuple

from allocator.fractions import divide_among, regions
from allocator.request.devices import ContainerReading
from allocator.request.statedamounts import StatedAmounts, normalise
from allocator.vocabulary.asks import ContainerAsk, DeviceAsk, Member, Regions, TypeSharing
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes, Unit
from allocator.vocabulary.names import DEVICE_SHARING, Phase
from allocator.vocabulary.outcome import Problem
from allocator.wire.strict import annotation_path

Sharing = Mapping[str, TypeSharing]
_PATH: Final = annotation_path(DEVICE_SHARING)
_NAMED: Final = 8  # containers that a message names


@dataclass(slots=True)
class Shared:
    """What a Pod's annotation makes of its containers."""

    # as read, with what users of a type ask: their part of the slot, in whole percent
    containers: list[ContainerReading]
    # of the types that the annotation names, by type and then in the Pod's order
    groups: list[ContainerAsk] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class _User(NamedTuple):
    """A container that uses devices of a type."""

    place: int  # its place in the Pod
    name: str
    phase: Phase
    ask: DeviceAsk | None  # what it asks for; None if it states no amount
    own: bool  # whether it states that in names of the two domains, by which what is not stated is 0


def unstated_users(sharing: Sharing) -> dict[str, frozenset[str]]:
    """Map each container that states no amount to the types that it uses."""
    users = dict.fromkeys(chain.from_iterable(one.users for one in sharing.values()))
    return {user: frozenset(kind for kind, one in sharing.items() if user in one.users) for user in users}


def share(containers: Sequence[ContainerReading], sharing: Sharing, types: DeviceTypes) -> Shared:
    """Form the groups of a Pod.

    `sharing`: type's name -> what the Pod's annotation says of it, with slots.
    """
    shared = Shared(list(containers))
    for kind in types.types:
        if kind.name in sharing:
            _TypeGroups(kind, sharing[kind.name], shared, types).form()
    return shared


class _TypeGroups:
    """The groups of one type, and what is wrong with them."""

    def __init__(self, kind: DeviceType, sharing: TypeSharing, shared: Shared, types: DeviceTypes) -> None:
        self.kind = kind
        self.sharing = sharing
        self.shared = shared
        self.weights = dict(sharing.weights)
        self.problems: list[Problem] = []
        stated = {
            place: ask
            for place, one in enumerate(shared.containers)
            for ask in one.requests
            if ask.type.name == kind.name
        }
        self.using = {
            one.name: _User(place, one.name, one.phase, stated.get(place), _in_own_names(one, kind, types))
            for place, one in enumerate(shared.containers)
            if place in stated or one.name in sharing.users
        }

    def note(self, key: str, message: str) -> None:
        """Note a mistake in a key of the type's entry."""
        self.problems.append(Problem(f"{_PATH}.{self.kind.name}{key}", message))

    def form(self) -> None:
        """Form the groups, unless something is wrong."""
        self._check()
        if not self.problems:
            named = [self._group(members, named=True) for members in self._named()]
            groups = [*named, *(self._group(members, named=False) for members in self._regions())]
            self.shared.groups += sorted(filter(None, groups), key=lambda group: group.members[0].place)
        self.shared.problems += self.problems

    def _check(self) -> None:
        there = {one.name for one in self.shared.containers}
        grouped = [name for _, names in self.sharing.groups for name in names]
        for key, names in (("users", self.sharing.users), ("groups", grouped)):
            if missing := [name for name in names if name not in there]:
                self.note(f".{key}", f"{missing[0]} is no container of the Pod; name those of its containers")
            elif unused := [name for name in names if name not in self.using]:
                self.note(
                    f".{key}",
                    f"container {unused[0]} asks for no {self.kind.name}; state an amount in it, or name it in users",
                )
        if twice := [name for name, times in Counter(grouped).items() if times > 1]:
            self.note(".groups", f"container {twice[0]} is named twice; a container has one group")
        self._check_amounts()

    def _check_amounts(self) -> None:
        kind, users = self.kind.name, self.sharing.users
        stating = [one.name for one in self.using.values() if one.ask is not None]
        if stating and users:
            unstated = [name for name in users if name not in stating]
            both = unstated or users
            self.note(
                ".users",
                f"{_listed(stating, 'states', 'state')} an amount of {kind}, and "
                f"{_listed(both, 'is a user', 'are users')} without one, which cannot be mixed: state an amount in "
                f"every container that uses {kind} and leave out users, or state none and name all of them in users",
            )
            return
        if strange := [name for name in self.weights if name not in users]:
            self.note(
                ".weights",
                f"{strange[0]} is not in users; weights are for containers that state no amount, and the amounts of "
                "others state their parts",
            )
        if not users:
            if self.sharing.slot:
                self.note(".slot", "is for users, and there are none: the amounts of containers state what they get")
            return
        if self.kind.unit is not Unit.PERCENT or self.kind.templates:
            self.note(".users", f"devices of type {kind} are not given in any percent; state an amount in containers")
        elif not self.sharing.slot:
            self.note(
                "",
                f"states no slot, and there is no default: write slot, percent of one {self.kind.noun} for all users "
                "together; or ask an administrator for devices.defaultSlotResourceFraction",
            )

    def _named(self) -> list[list[_User]]:
        """The members of each group that the author named, in the Pod's order."""
        return [
            sorted((self.using[name] for name in names), key=lambda one: one.place) for _, names in self.sharing.groups
        ]

    def _regions(self) -> list[list[_User]]:
        """The members of each other group, in the Pod's order."""
        named = {name for _, names in self.sharing.groups for name in names}
        rest = [one for one in self.using.values() if one.name not in named]
        if self.sharing.regions is Regions.GROUP_EACH:
            return [[one] for one in rest]
        first = next((at for at, one in enumerate(rest) if one.phase is Phase.SIDECAR), None)
        if first is None:
            first = next((at for at, one in enumerate(rest) if one.phase is Phase.APP), len(rest))
        each = [[one] for one in rest[:first]]  # init containers, each a region of its own
        return [*each, rest[first:]] if rest[first:] else each

    def _group(self, members: list[_User], *, named: bool) -> ContainerAsk | None:
        """Make a group's ask; None if something is wrong."""
        at_once = [list(range(len(members)))] if named else list(filter(None, regions([one.phase for one in members])))
        users = self.sharing.users  # then all members are, and state no amount
        ask = self._slot() if users else self._sum(members, at_once, named=named)
        if isinstance(ask, str):
            self.note("", ask)
            return None
        parts: list[tuple[Fraction | None, ...]]
        fractions: list[Fraction] = []
        if users:
            fractions = _by_weight(self._weighed(members), members, at_once, named=named)
            parts = [(part,) * len(self.kind.tails) for part in fractions]
        else:
            parts = _by_amount(self.kind, members, at_once)
        phase = members[0].phase
        if phase is Phase.INIT and len(members) > 1:
            phase = Phase.SIDECAR  # it is held from then on
        made = tuple(Member(one.name, one.place, one.phase, own) for one, own in zip(members, parts, strict=True))
        if users:
            self._give(ask, made, fractions)
        return ContainerAsk(members[0].name, phase, ask, made)

    def _weighed(self, members: Iterable[_User]) -> list[int]:
        return [self.weights.get(one.name, 1) for one in members]

    def _slot(self) -> DeviceAsk | str:
        return normalise(self.kind, StatedAmounts({self.kind.plain: self.sharing.slot}), derived=False)

    def _give(self, ask: DeviceAsk, members: Sequence[Member], parts: Sequence[Fraction]) -> None:
        """Let users ask for their parts of the slot in whole percent, so that Kubernetes' sum over them is the slot."""
        percents = divide_among(self.sharing.slot, members, parts)
        order = self.shared.containers
        for member, percent in zip(members, percents, strict=True):
            amounts = tuple(percent if counted else None for counted in self.kind.percent)
            own = replace(ask, amounts=amounts)
            reading = order[member.place]
            order[member.place] = reading._replace(requests=(*reading.requests, own), limits=(*reading.limits, own))

    def _sum(self, members: list[_User], at_once: Sequence[Sequence[int]], *, named: bool) -> DeviceAsk | str:
        """Sum what the members of a group ask for, or say why one holding cannot serve them."""
        asks = [one.ask for one in members if one.ask is not None]
        if len(asks) == 1:
            return asks[0]
        names, kind = _listed([one.name for one in members]), self.kind
        way = "put them into different groups" if named else "write regions: GroupEach, so that each has its own"
        if split := next((one for one in members if one.ask is not None and one.ask.is_split), None):
            return f"container {split.name} asks for parts of several {kind.noun}s, and a group shares one; {way}"
        wrong = self._units(members)
        said = wrong or self._said(asks, at_once)
        if isinstance(said, str):
            return f"{names} share one holding: {said}; {way}"
        ask = normalise(kind, said, derived=False, vendor=asks[0].vendor)
        return f"{names} share one holding: {ask} in all; or {way}" if isinstance(ask, str) else ask

    def _units(self, members: Iterable[_User]) -> str:
        """Find memory that one member states in bytes and another in percent; "" if none does."""
        if self.kind.memory is None or self.kind.templates:
            return ""
        size, ratio = self.kind.memory
        of = {tail: [one.name for one in members if one.ask and one.ask.amount(tail)] for tail in (size, ratio)}
        if not all(of.values()):
            return ""
        return f"{of[size][0]} states {size} and {of[ratio][0]} {ratio}; state the same one in all of them"

    def _said(self, asks: Sequence[DeviceAsk], at_once: Sequence[Sequence[int]]) -> StatedAmounts | str:
        """The greatest sum of what runs at the same time, as one container would state it."""
        kind = self.kind
        whole = all(ask.whole for ask in asks)
        pair = kind.memory or ()
        unclear = [
            tail
            for tail, at in zip(kind.tails, zip(*(ask.amounts for ask in asks), strict=True), strict=True)
            if None in at and tail not in pair
        ]
        if unclear and not whole:
            return f"one asks for all {unclear[0]} of a {kind.noun}, and others for a part"

        def most(amount: Callable[[DeviceAsk], int | None]) -> int:
            return max(sum((amount(asks[at]) or 0) * asks[at].count for at in region) for region in at_once)

        if whole:
            return StatedAmounts({kind.plain: most(lambda _: FULL)})
        sums = {tail: most(lambda ask, tail=tail: ask.amount(tail)) for tail in kind.tails}  # type: ignore[misc]
        return StatedAmounts({tail: amount for tail, amount in sums.items() if amount or kind.simple})


def _in_own_names(container: ContainerReading, kind: DeviceType, types: DeviceTypes) -> bool:
    meanings = [types.resources[name] for names in container.names for name in names]
    return any(one.dialect.own for one in meanings if one.type.name == kind.name)


def _by_amount(
    kind: DeviceType, members: Sequence[_User], at_once: Sequence[Sequence[int]]
) -> list[tuple[Fraction | None, ...]]:
    """The fractions of members that state amounts: their own over the group's greatest sum, resource by resource.

    Memory has one fraction, whichever of its units states it. A member alone has all that it states.
    """
    asks = [one.ask for one in members if one.ask is not None]
    pair = kind.memory or ()
    parts: list[list[Fraction | None]] = [[] for _ in asks]
    for tail in kind.tails:
        stated = [tail] if tail not in pair else [one for one in pair if any(ask.amount(one) for ask in asks)]
        own = [sum(_total(ask, one) for one in stated) for ask in asks]
        group = max(sum(own[at] for at in region) for region in at_once)
        for part, member, amount in zip(parts, members, own, strict=True):
            part.append(Fraction(amount, group) if amount else Fraction(0) if member.own else None)
    return [tuple(one) for one in parts]


def _total(ask: DeviceAsk, tail: str) -> int:
    """What an ask takes of a resource of all its devices, in any one unit for all asks of a group."""
    amount = ask.amount(tail)
    return ask.count * (FULL if amount is None else amount)


def _by_weight(
    weights: Sequence[int], members: Sequence[_User], at_once: Sequence[Sequence[int]], *, named: bool
) -> list[Fraction]:
    """The fractions of members that state no amount: their weight over that of all that run at the same time.

    A sidecar's fraction cannot change while it runs, so it has the least that any of its regions gives. The others of a
    region share what its sidecars leave.
    """
    totals = [(region, sum(weights[at] for at in region)) for region in at_once]
    # The greatest sum of the weights of all that run at the same time as each
    most = [max(total for region, total in totals if at in region) for at in range(len(members))]
    found = [Fraction(weight, total) for weight, total in zip(weights, most, strict=True)]
    if named:
        return found
    left = Fraction(1)  # of what the sidecars so far leave
    for at, member in enumerate(members):
        if member.phase is Phase.SIDECAR:
            left -= found[at]
        elif member.phase is Phase.INIT:
            found[at] = left
    apps = [at for at, member in enumerate(members) if member.phase is Phase.APP]
    for at in apps:
        found[at] = left * Fraction(weights[at], sum(weights[one] for one in apps))
    return found


def _listed(names: Sequence[str], one: str = "", several: str = "") -> str:
    """Name some containers in a sentence, with the verb for one or for several."""
    shown = [*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else ())]
    word, verb = ("container", one) if len(names) == 1 else ("containers", several)
    return f"{word} {', '.join(shown[:-1])}{' and ' if shown[:-1] else ''}{shown[-1]} {verb}".rstrip()
