"""What the Pods of a namespace hold, or will, of resources that its quotas limit and that the Pods do not state.

Admission states what quotas are to count only where a quota limits it. A quota that comes later finds Pods that state
nothing. Only of namespaces that have quotas is anything kept, and the Pods of one are gone through once; from then on
each change of a Pod moves the sums.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from allocator.budget import Steps
from allocator.quantity import QuantityError
from allocator.request.quotaamounts import counted_in_all
from allocator.vocabulary.holdings import InvariantError
from webhook.quotas.mirror import (
    NOBODY,
    Listed,
    Quota,
    Term,
    enforced,
    is_enforced,
    may_replace,
    mirror_name,
    mirrored,
    terms,
)
from webhook.quotas.table import Key, LimitTable
from webhook.view.podinfo import PodInfo
from webhook.view.pods import PodTable
from webhook.view.quotascopes import in_scopes

_MAX_LISTED: Final = 500  # Pods of one mirror; the others follow when some of these are bound
_SOME: Final = 256  # Pods that are looked at before others may run
_NOTHING: Final[Mapping[Any, Any]] = {}


class _Limited(NamedTuple):
    """What of a quota decides which Pods do not state what it limits."""

    scopes: Mapping[str, Any]
    # key, the name that it limits if the quota counts Pods by that, otherwise "", and the resource that quotas count
    keys: tuple[tuple[str, str, str], ...]


@dataclass(slots=True)
class _Followed:
    """The Pods of a namespace that do not state something."""

    quotas: Mapping[str, _Limited]  # by name
    since: float = -inf  # when they were seen, on the clock
    full: bool = False  # whether all Pods have been gone through
    # quota -> UID -> key -> amount, of Pods that are bound and of those that are not, in the order of their coming
    bound: dict[str, dict[str, Mapping[str, int]]] = field(default_factory=dict)
    waiting: dict[str, dict[str, Mapping[str, int]]] = field(default_factory=dict)
    sums: dict[str, Counter[str]] = field(default_factory=dict)  # quota -> key -> amount, of both


class Unstated:
    """What Pods do not state.

    `written`: device resources that translated Pods state. `followed`: whether Pods of a namespace are translated.
    `memory`: returns the bytes of every GPU of the cluster; None if they differ or none is known. `clock`: seconds
    since any moment. `catch_up`: seconds within which a replica has seen the binds that were decided before a quota was
    written: its watch of Pods may be behind that of quotas.
    """

    def __init__(
        self,
        table: LimitTable,
        pods: PodTable,
        written: frozenset[str],
        followed: Callable[[str], bool],
        memory: Callable[[], int | None],
        clock: Callable[[], float] = time.monotonic,
        catch_up: float = 1.0,
    ) -> None:
        # called with the namespace and name of a quota of which Pods hold more or less without stating it
        self.changed: Callable[[Key], object] = lambda _key: None
        self.written = written
        self._table = table
        self._pods = pods
        self._is_followed = followed
        self._memory = memory
        self._clock = clock
        self._catch_up = catch_up
        self._began = False
        self._followed: dict[str, _Followed] = {}
        self._counted: dict[str, frozenset[str]] = {}  # what `counted` answers, by namespace
        self._without: set[Key] = set()  # quotas that can have no mirror
        pods.moved = self._moved
        table.changed = lambda key: self.look(key[0])

    def look(self, namespace: str) -> None:
        """Take in that the quotas of a namespace, or whether it is followed, may have changed."""
        self._counted.pop(namespace, None)
        quotas: dict[str, _Limited] = {}
        for quota in self.originals(self._table.quotas(namespace)) if self._is_followed(namespace) else ():
            keys = tuple(
                (one.key, "" if one.own or one.name in self.written else one.name, one.resource)
                for one in self.terms(quota)
            )
            if keys:
                quotas[quota.name] = _Limited(quota.scopes, keys)
        known = self._followed.get(namespace)
        if not quotas:
            self._followed.pop(namespace, None)
        elif known is None or known.quotas != quotas:
            self._followed[namespace] = _Followed(quotas, self._clock() if self._began else -inf)

    def has_mirror(self, key: Key, *, may: bool) -> None:
        """Take in whether a quota may have a mirror; one of which another object has the name limits no new Pod."""
        if may == (key in self._without):
            self._without ^= {key}
            self.look(key[0])

    def originals(self, quotas: Mapping[str, Quota]) -> Iterator[Quota]:
        """Those of a namespace's quotas that limit devices and may have mirrors."""
        for name, quota in quotas.items():
            beside = quotas.get(mirror_name(name))
            # What a quota owns is a mirror, though it may have lost its label.
            taken = (quota.namespace, name) in self._without or (beside is not None and not may_replace(beside))
            if not (quota.mirror or quota.owner or taken):
                yield quota

    def terms(self, quota: Quota) -> Sequence[Term]:
        """The limits of a quota; none if an amount cannot be read, of which no mirror can be written."""
        try:
            return list(terms(quota, self._table.within(quota.namespace), self.written))
        except QuantityError:
            return ()

    def fill(self) -> Steps[None]:
        """Go through all Pods for the namespaces that have got quotas; yields where others may run."""
        self._began = True
        due = self._clock() - self._catch_up
        filling = {name: one for name, one in self._followed.items() if not one.full and one.since <= due}
        for done, pod in enumerate(list(self._pods.all()) if filling else ()):
            known = self._pods.by_uid(pod.uid)  # it may have changed since; changes are taken in meanwhile
            if known is not None and known.namespace in filling:
                self._put(filling[known.namespace], known)
            if done % _SOME == _SOME - 1:
                yield 0
        for name, one in filling.items():
            one.full = True
            self._counted.pop(name, None)

    def is_full(self, namespace: str) -> bool:
        """Whether all Pods of a namespace have been gone through, if it is followed."""
        known = self._followed.get(namespace)
        return known is None or known.full

    def _moved(self, known: PodInfo | None, pod: PodInfo | None) -> None:
        """A Pod changed."""
        some = pod or known
        followed = self._followed.get(some.namespace) if some is not None else None
        if followed is None:
            return
        uids = {one.uid for one in (known, pod) if one is not None}
        before = [_parts(followed, name, uids) for name in followed.quotas]
        if known is not None:
            self._drop(followed, known.uid)
        if pod is not None:
            self._put(followed, pod)
        for name, parts in zip(followed.quotas, before, strict=True):
            if parts != _parts(followed, name, uids):
                self._counted.pop(some.namespace if some else "", None)
                self.changed((some.namespace if some else "", name))

    def _drop(self, followed: _Followed, uid: str) -> None:
        for name in followed.quotas:
            for of in (followed.bound, followed.waiting):
                amounts = of.get(name, _NOTHING).get(uid)
                if amounts is not None:
                    del of[name][uid]
                    sums = followed.sums[name]
                    sums.subtract(amounts)
                    for key in amounts:
                        if not sums[key]:
                            del sums[key]

    def _put(self, followed: _Followed, pod: PodInfo) -> None:
        self._drop(followed, pod.uid)
        if pod.over or not pod.asks:
            return
        held: Mapping[str, int | None] | None = None
        for name, limited in followed.quotas.items():
            keys = [
                (key, resource)
                for key, by_name, resource in limited.keys
                if not (resource in pod.states or by_name in pod.states)
            ]
            if not keys or not in_scopes(pod.scope, limited.scopes, unread=True):
                continue
            held = self.held(pod) if held is None else held
            amounts = {key: amount for key, resource in keys if (amount := held.get(resource))}
            if amounts:
                of = followed.bound if pod.node else followed.waiting
                of.setdefault(name, {})[pod.uid] = amounts
                followed.sums.setdefault(name, Counter()).update(amounts)

    def held(self, pod: PodInfo) -> dict[str, int | None]:
        """What quotas count of a Pod, by resource: of one that is bound what it holds, as far as that is known.

        None for a resource of which it may take more than is known.
        """
        counted = counted_in_all(pod.request, self._memory())
        alone = {name for name, hint in pod.request.wishes.hints if hint.exclusive is not None}
        for kind in pod.kinds if pod.node else ():
            names = kind.charged.values()
            if kind.name in alone and all(counted.get(name) is not None for name in names):
                continue  # it withholds all of its devices, whatever it uses of them
            shares = [one for one in pod.shares if one.type == kind.name]
            each = [kind.counted([one.amounts.get(tail, 0) for tail in kind.tails]) for one in shares]
            counted |= zip(names, map(sum, zip(*each, strict=True)), strict=True)
        return counted

    def sums(self, quota: Quota, listed: Listed) -> dict[str, int]:
        """What Pods hold, or will, of each key of a quota without stating it.

        `listed`: what its mirror says of Pods that wait; that counts for these.
        """
        followed = self._followed.get(quota.namespace)
        if followed is None:
            return {}
        sums = dict(followed.sums.get(quota.name, _NOTHING))
        for uid, key, amount in self.waiting(quota, listed):
            sums[key] = sums.get(key, 0) + amount - followed.waiting[quota.name][uid][key]
        return sums

    def waiting(self, quota: Quota, listed: Listed) -> Iterator[tuple[str, str, int]]:
        """The listed Pods that still wait: UID, key of the quota, and the amount that is listed, in their order."""
        followed = self._followed.get(quota.namespace)
        if followed is None or quota.name not in followed.quotas:
            return
        waiting = followed.waiting.get(quota.name, _NOTHING)
        for uid, amounts in listed.pods.items():
            for key, _, resource in followed.quotas[quota.name].keys:
                if key in waiting.get(uid, _NOTHING):
                    yield uid, key, amounts.get(resource, waiting[uid][key])

    def _list(self, quota: Quota, listed: Listed) -> Listed:
        """List the Pods that wait, those that are listed already first; as it was if none is to be added."""
        followed = self._followed.get(quota.namespace)
        if followed is None or quota.name not in followed.quotas:
            return NOBODY
        waiting = followed.waiting.get(quota.name, _NOTHING)
        kept = {uid: amounts for uid, amounts in listed.pods.items() if uid in waiting}
        new = {
            uid: {
                resource: waiting[uid][key]
                for key, _, resource in followed.quotas[quota.name].keys
                if key in waiting[uid]
            }
            for uid in islice((one for one in waiting if one not in kept), max(_MAX_LISTED - len(kept), 0))
        }
        return Listed(kept | new) if new else listed

    def plan(self, quota: Quota, known: Quota | None) -> tuple[Mapping[str, int], Listed] | None:
        """What the mirror of a quota is to limit, and whom to list; None while another replica has seen more Pods.

        `known`: the mirror as it is. Raises QuantityError: as `mirrored`.
        """
        listed = NOBODY if known is None or known.owner != quota.uid else known.listed
        if self._pods.revision() < listed.seen:
            return None
        listed = self._list(quota, listed)
        sums = self.sums(quota, listed)
        limits = mirrored(quota, self._table.within(quota.namespace), self.written, sums)
        return limits, Listed(listed.pods, self._pods.revision()) if any(sums.values()) else NOBODY

    def counted(self, namespace: str) -> frozenset[str]:
        """What new Pods are to state: the resources of which the API server enforces every limit.

        From each limit is taken off what Pods hold of it without stating it.
        """
        known = self._counted.get(namespace)
        if known is None:
            known = self._counted[namespace] = self._settled(namespace)
        return known

    def _settled(self, namespace: str) -> frozenset[str]:
        names = set(self._table.of(namespace).counted)
        quotas, followed = self._table.quotas(namespace), self._followed.get(namespace)
        for quota in self.originals(quotas):
            found = self.terms(quota)
            if not found:
                continue  # it cannot be read
            if followed is None or not followed.full:
                names.difference_update(one.resource for one in found)
                continue
            names.difference_update(one.resource for one in found if one.own and one.key not in quota.enforced)
            mirror = quotas.get(mirror_name(quota.name))
            listed = NOBODY if mirror is None else mirror.listed
            limits = mirrored(quota, self._table.within(namespace), self.written, self.sums(quota, listed))
            if mirror is None or not is_enforced(mirror):  # another replica, which has seen more, may have lowered it
                names.difference_update(limits)
            else:
                names.difference_update(name for name, most in limits.items() if not enforced(mirror, {name: most}))
        return frozenset(names)

    def check_invariants(self) -> None:
        """Compare the sums with the Pods.

        Raises InvariantError: they disagree.
        """
        for namespace, followed in self._followed.items():
            if not followed.full:
                continue
            right = _Followed(followed.quotas)
            for pod in self._pods.all():
                if pod.namespace == namespace:
                    self._put(right, pod)
            for name in followed.quotas:
                for found, wanted in ((followed.bound, right.bound), (followed.waiting, right.waiting)):
                    if found.get(name, {}) != wanted.get(name, {}):
                        raise InvariantError(
                            f"quota {namespace}/{name}: Pods {found.get(name)}, not {wanted.get(name)}"
                        )
                if +followed.sums.get(name, Counter()) != +right.sums.get(name, Counter()):
                    raise InvariantError(f"quota {namespace}/{name}: the sums are {followed.sums.get(name)}")


def _parts(followed: _Followed, name: str, uids: Iterable[str]) -> list[tuple[str, object, object]]:
    """What of these Pods counts for a quota."""
    bound, waiting = followed.bound.get(name, _NOTHING), followed.waiting.get(name, _NOTHING)
    return [(uid, bound.get(uid), waiting.get(uid)) for uid in sorted(uids)]
