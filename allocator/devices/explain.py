"""Why devices cannot be chosen, in a user's words, with the nearest thing that would fit.

There is one measure of how far a single device is from serving an ask, and one table of what keeps a device out of a
choice whatever is free of it. A holder of some of a device keeps a Pod off it only as far as nothing of the device is
free.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import le
from typing import Final, NamedTuple

from allocator.budget import Budget, BudgetSpentError
from allocator.devices.offer import Amounts, Demand, Offer
from allocator.devices.options import as_candidates, meant
from allocator.devices.search import TypeSearch, selectable
from allocator.devices.terms import Terms
from allocator.devices.words import describe, describe_amounts, fitting, how_many, named, plural, subject, too_wide
from allocator.topology.sets import WITHIN, choices, why_no_set
from allocator.vocabulary.asks import NO_HINT, DeviceAsk, Scope
from allocator.vocabulary.cardmemory import askable
from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.outcome import Refusal


def shortage(offer: Offer, ask: DeviceAsk, terms: Terms, free: Amounts | None = None) -> int:
    """What a device lacks for an ask, in percent of the device, rounded up: of the resource that it lacks most.

    It is 0 if, and only if, the device can serve the ask by itself. It does not matter who holds the rest of the
    device: what a Pod of another product leaves can be given as well. A device that the ask does not mean lacks 100.
    `free`: what is free of it, if not what other Pods leave.
    """
    if not meant((offer,), ask):
        return FULL
    amounts = terms.amounts(offer.capacity, ask)
    left = offer.free if free is None else free
    if all(map(le, amounts, left)):
        return 0
    each = zip(amounts, left, offer.capacity, strict=True)
    short = [-(-FULL * (asked - has_left) // has) if has else FULL for asked, has_left, has in each if asked > has_left]
    return min(max(short), FULL)


class Hindrance(NamedTuple):
    """One reason why devices are not chosen."""

    words: str  # what such a device is, for people: "cordoned"
    holds: Callable[[Device], bool]  # whether a device of the type is


def hindrances(terms: Terms) -> Iterator[Hindrance]:
    """Go through all reasons that apply to devices of the type on the node; several may hold for one device."""
    node = terms.node
    yield Hindrance("unhealthy", lambda one: not one.healthy and not one.cordoned)
    yield Hindrance("cordoned", lambda one: one.cordoned)
    if pods := unread_holders(terms):
        more = f" and of {len(pods) - 1} more" if len(pods) > 1 else ""
        yield Hindrance(f"held because the annotation of Pod {pods[0]}{more} cannot be read", lambda _one: True)
    vendor = terms.asks[0].ask.vendor  # a Pod asks for a type in one dialect
    if vendor:
        yield Hindrance("of another vendor", lambda one: not one.is_of(vendor))
    selector = terms.hint.selector
    if selector:
        yield Hindrance("not selected", lambda one: not selector.matches(selectable(one, node)))
    yield Hindrance("held by the kubelet's device plugin", lambda one: one.id in node.kubelet_held)
    yield Hindrance("stated differently by the ledger and by a Pod's annotation", lambda one: one.id in node.disputed)
    only = terms.only
    if only is not None:
        yield Hindrance("not named", lambda one: one.id not in only)


def other_holders(terms: Terms) -> Iterator[Hindrance]:
    """Go through those who hold devices beside koordgate, to count them. What they leave free can be chosen."""
    claimed, adopted = terms.node.claimed, terms.node.adopted
    yield Hindrance("held by ResourceClaims", lambda one: one.id in claimed and not _left(one, terms))
    yield Hindrance("held in part by ResourceClaims", lambda one: one.id in claimed and _left(one, terms))
    yield Hindrance("held by Pods of other products", lambda one: one.id in adopted and not _left(one, terms))
    yield Hindrance("held in part by Pods of other products", lambda one: one.id in adopted and _left(one, terms))


def _left(device: Device, terms: Terms) -> bool:
    """Whether a Pod could have a part of a device: of types that have memory no share goes without it."""
    memory = terms.kind.memory
    return any(terms.node.free(device, memory[:1] if memory else terms.kind.tails))


def unread_holders(terms: Terms) -> list[str]:
    """The Pods that hold all devices of the type because their annotations cannot be read, by namespace and name."""
    kind, holdings = terms.kind.name, terms.node.holdings.values()
    return sorted(f"{one.namespace}/{one.name}" for one in holdings if kind in one.unread)


_MAX_STEPS: Final = 2048  # to find a container that lacks something by itself
_MAX_ASKED: Final = 16  # containers of which a message says what they ask


def lacking(searches: Sequence[TypeSearch], budget: Budget) -> Refusal | None:
    """Say what a container lacks by itself; None if each finds devices, or if too many containers ask.

    `budget`: of the decision. It pays for the explanation, which is given even if nothing is left.
    """
    steps = Budget(_MAX_STEPS)
    for search in searches:
        search.budget = steps
    try:
        for search in searches:
            short = _too_few(search)
            if short is not None:
                return short
        for search in searches:
            reason = _no_set(search)
            if reason:
                terms = search.terms
                text = f"{terms.node.name}: {_asked([search])}: {reason}{_away(search)}"
                return Refusal(text, short=f"{plural(terms.kind)}: {reason}")
    except BudgetSpentError:
        return None
    finally:
        budget.left = max(budget.left - (_MAX_STEPS - steps.left), 0)
    return None


def explain(searches: Sequence[TypeSearch], objections: Mapping[str, str], budget: Budget) -> Refusal:
    """Explain why one type, or several types that belong together, could not be allocated.

    What a container lacks by itself comes first, then the first objection to a set. Otherwise the containers do not
    fit together.
    """
    short = lacking(searches, budget)
    if short is not None:
        return short
    for search in searches:
        nowhere = search.scope is not Scope.NODE and not search.spheres
        why = too_wide(search.scope) if nowhere else objections.get(search.terms.kind.name)
        if why:
            which = "all containers together: " if len(search.terms.asks) > 1 else ""
            text = f"{search.terms.node.name}: {_asked([search])}: {which}{why}{_away(search)}"
            return Refusal(text, short=why)
    usable = ", ".join(f"{how_many(len(one.offers), one.terms.kind)} usable{_away(one)}" for one in searches)
    scopes = dict.fromkeys(search.scope for search in searches if search.scope is not Scope.NODE)
    inside = "".join(f" inside one {WITHIN[scope]}" for scope in scopes)
    text = (
        f"{searches[0].terms.node.name}: each container fits alone, not all together{inside} ({_asked(searches)}); "
        f"{usable}"
    )
    kinds = " and ".join(plural(search.terms.kind) for search in searches)
    return Refusal(text, short=f"{kinds} fit each container, not all together{inside}")


def _too_few(search: TypeSearch) -> Refusal | None:
    """Name the first container for which there are too few devices, regardless of the others."""
    terms = search.terms
    node, kind = terms.node, terms.kind
    known = [device for device in node.devices if device.type == kind.name]
    if not known:
        text = f"no {plural(kind)} known here (no Device object, or none in it)"
        return Refusal(f"{node.name}: {text}", permanent=True, short=text)
    for demand in _distinct(search):
        ask = demand.container.ask
        fit, count = len(search.options(demand)), search.count(ask)
        if fit >= count:
            continue
        possible = sum(all(map(le, terms.amounts(offer.capacity, ask), offer.capacity)) for offer in search.offers)
        asked = f"{describe(ask)}, of each of {count}" if ask.every else describe(ask)
        text = f"{subject(demand.container)} {asked}; {fit} of {len(known)} {plural(kind)}{_away(search)} "
        text += f"can hold it{_nearest(search, ask)}"
        # What may change does not count: health, the kubelet's Pods, others' exclusivity, the devices that are named.
        all_open = len(search.offers) == len(known) and terms.only is None
        never = possible < count and all_open and terms.hint is NO_HINT and terms.numa is None
        return Refusal(f"{node.name}: {text}", permanent=never, short=fitting(fit, ask))
    return None


def _distinct(search: TypeSearch) -> list[Demand]:
    """The demands in the Pod's order; of those that ask alike, the first."""
    first = {demand.container.ask: demand for demand in sorted(search.demands, key=lambda demand: -demand.place)}
    return sorted(first.values(), key=lambda demand: demand.place)


def _no_set(search: TypeSearch) -> str:
    """Explain why the first container without a set finds none, although enough single devices would do."""
    for demand in _distinct(search):
        rule, count = search.rule(demand.container.ask), search.count(demand.container.ask)
        candidates = as_candidates(search.options(demand), search.terms)
        links, budget = search.terms.node.wiring.links, search.budget
        if next(choices(candidates, count, links, rule, budget), None) is None:
            return why_no_set(candidates, count, rule)
    return ""


def _away(search: TypeSearch) -> str:
    """Count the devices that cannot be used, or that others hold, in brackets."""
    terms = search.terms
    known = [device for device in terms.node.devices if device.type == terms.kind.name]
    reasons = chain(hindrances(terms), other_holders(terms))
    found = ((sum(map(hindrance.holds, known)), hindrance.words) for hindrance in reasons)
    away = [f"{count} {words}" for count, words in found if count]
    return f" ({', '.join(away)})" if away else ""


def _nearest(search: TypeSearch, ask: DeviceAsk) -> str:
    """Name the device that lacks least for an ask, if any is left and it is known who holds what."""
    if unread_holders(search.terms):
        return ""
    terms, kind = search.terms, search.terms.kind
    offers = meant(search.offers, ask)
    if not offers:
        return ""
    best = min(
        offers,
        key=lambda one: (
            shortage(one, ask, terms),
            *(-amount for amount in (one.free[-1], *one.free)),
            one.device.minor,
        ),
    )
    free = askable(best.device, kind.tails, best.capacity, best.free)
    return f"; the most free is {kind.name} {best.device.minor} with {describe_amounts(kind, free)}"


def _asked(searches: Iterable[TypeSearch]) -> str:
    """Write what the containers ask for; of very many the first ones only."""
    asks = [one for search in searches for one in search.terms.asks]
    written = ", ".join(f"{named(one)} {describe(one.ask)}" for one in islice(asks, _MAX_ASKED))
    return written if len(asks) <= _MAX_ASKED else f"{written}, and {len(asks) - _MAX_ASKED} more"
