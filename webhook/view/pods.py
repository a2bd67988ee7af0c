"""Our Pods by name, by UID, by node and by gang; which wait and which ended; and which Pods are not ours."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final, TypeVar

from allocator.vocabulary.holdings import InvariantError
from webhook.boundedcache import BoundedCache
from webhook.settings import SchedulerNames
from webhook.view.changes import Changes
from webhook.view.loads import NodeLoads
from webhook.view.podinfo import OtherPod, PodInfo
from webhook.view.typical import SeenMix

_MAX_NEWCOMERS: Final = 16_384  # of more, the first are forgotten
_MAX_ENDED: Final = 16_384  # UIDs of ended Pods; the ledger lets go of what each held within milliseconds
_NOBODY: Final[Mapping[str, PodInfo]] = {}
T = TypeVar("T")


class PodTable:
    """The Pods.

    `changes`: where the node of each bound Pod is published when the Pod comes, changes or goes.
    `loads`: what all Pods of a node request in sum, ours and others. `mix`: counts what is typical of our Pods; None
    where nobody asks for it. `clock`: seconds since any moment.
    """

    def __init__(
        self,
        changes: Changes,
        loads: NodeLoads,
        mix: SeenMix | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # called with what was known under a name and what is known now, whenever that differs; None where nothing is
        self.moved: Callable[[PodInfo | None, PodInfo | None], object] = lambda _known, _pod: None
        # returns the revision up to which every change of a Pod has been taken in
        self.revision: Callable[[], int] = lambda: 0
        # UIDs of those that kube-scheduler may try, in the order in which they came; whoever takes one takes it away
        self.newcomers: deque[str] = deque(maxlen=_MAX_NEWCOMERS)
        self._clock = clock
        self._changes = changes
        self._loads = loads
        self._mix = mix
        self._by_name: dict[tuple[str, str], PodInfo] = {}
        self._by_uid: dict[str, PodInfo] = {}
        self._on: dict[str, dict[str, PodInfo]] = {}  # node -> UID -> Pod
        # Those that ask and are not bound: spec.schedulerName -> UID -> when it was first seen, in the clock's seconds.
        self._waiting: dict[str, dict[str, float]] = {}
        self._gangs: dict[str, dict[str, str]] = {}  # gang -> UID of each of its Pods -> node, "" while unbound
        # gang -> UID -> Pod, of the gangs that are bound as a whole: finished Pods too.
        self._all_or_nothing: dict[str, dict[str, PodInfo]] = {}
        # One entry for each live Pod at most: a Pod that is deleted, or that a list does not name, is dropped by the
        # feed.
        self._strangers: dict[tuple[str, str], OtherPod] = {}
        # UID -> the node it was bound to ("" for none), of those whose holding may not have left the ledger yet, or may
        # be seen there only now. One that is forgotten too early makes its node look fuller than it is until the ledger
        # follows, or costs a request to the API server; no bind depends on it.
        self._ended: BoundedCache[str, str] = BoundedCache(_MAX_ENDED)

    def put(self, pod: PodInfo) -> None:
        """Take in a Pod that asks for devices or CPUs, or holds some."""
        self._forget_other(pod.namespace, pod.name)
        self._replace(self.get(pod.namespace, pod.name), pod)

    def put_other(self, namespace: str, name: str, pod: OtherPod) -> None:
        """Take in a Pod that is none of ours; another one of ours that had its name is gone."""
        known = self.get(namespace, name)
        self._replace(known, None, lives=known is not None and known.uid == pod.uid)
        before = self._strangers.get((namespace, name))
        self._strangers[namespace, name] = pod
        self._loads.move(before.counted if before else None, pod.counted)

    def _forget_other(self, namespace: str, name: str) -> None:
        known = self._strangers.pop((namespace, name), None)
        if known is not None:
            self._loads.move(known.counted, None)

    def drop(self, namespace: str, name: str) -> PodInfo | None:
        """Take in that a Pod is gone; returns what was kept of it if it was ours."""
        self._forget_other(namespace, name)
        known = self.get(namespace, name)
        self._replace(known, None)
        return known

    def _replace(self, known: PodInfo | None, pod: PodInfo | None, *, lives: bool = False) -> None:
        """Replace what is known under a name; `lives`: the Pod that was known there, which is none of ours any more."""
        if known == pod:  # as in a list that is repeated: nothing that is derived from the Pod is stale
            return
        same = known is not None and pod is not None and pod.uid == known.uid
        since = self._since(known) if known is not None and same else None
        if known is not None:
            self._take_out(known)
        if pod is not None:
            self._put_in(pod, self._clock() if since is None else since)
            if _may_be_tried(pod) and not (same and known is not None and _may_be_tried(known)):
                self.newcomers.append(pod.uid)
        self._loads.move(known.counted if known else None, pod.counted if pod else None)
        if self._mix is not None:
            self._mix.move(known, pod)
        self.moved(known, pod)
        if known is not None and not lives and not same:
            self._end(known)
        if pod is not None and pod.node and pod.finished:
            self._end(pod)
        for changed in (known, pod):
            # Also one that states no holding: what the ledger has for it is disputed.
            if changed is not None and changed.node:
                self._changes.touch(changed.node)

    def _take_out(self, pod: PodInfo) -> None:
        del self._by_name[pod.namespace, pod.name]
        self._by_uid.pop(pod.uid, None)
        _leave(self._waiting, pod.scheduler_name, pod.uid)
        _leave(self._on, pod.node, pod.uid)
        _leave(self._gangs, pod.request.wishes.gang, pod.uid)
        _leave(self._all_or_nothing, pod.request.wishes.gang, pod.uid)

    def _put_in(self, pod: PodInfo, since: float) -> None:
        self._by_name[pod.namespace, pod.name] = pod
        self._by_uid[pod.uid] = pod
        if _waits(pod):
            self._waiting.setdefault(pod.scheduler_name, {})[pod.uid] = since
        if pod.node:
            self._on.setdefault(pod.node, {})[pod.uid] = pod
        if (gang := pod.request.wishes.gang) and not pod.finished:
            self._gangs.setdefault(gang, {})[pod.uid] = pod.node
        if pod.request.wishes.all_or_nothing:
            self._all_or_nothing.setdefault(gang, {})[pod.uid] = pod

    def _end(self, pod: PodInfo) -> None:
        """Take in that a Pod ended: what it held where it was bound counts as free from now on.

        The ledger follows within milliseconds, before a bind can result. But kube-scheduler is as quick, and backs off
        from Pods that are refused.
        """
        before = self._ended.get(pod.uid)
        self._ended.put(pod.uid, pod.node)
        if pod.node:
            self._changes.touch(pod.node)
        if before and before != pod.node:  # what the ledger has for it there counts again
            self._changes.touch(before)

    def get(self, namespace: str, name: str) -> PodInfo | None:
        """One of our Pods by name; None where there is none."""
        return self._by_name.get((namespace, name))

    def by_uid(self, uid: str) -> PodInfo | None:
        """One of our Pods by UID; None where there is none."""
        return self._by_uid.get(uid)

    def all(self) -> Iterable[PodInfo]:
        """All our Pods."""
        return self._by_name.values()

    def on(self, node: str) -> Mapping[str, PodInfo]:
        """Our Pods that are bound to a node, by UID."""
        return self._on.get(node, _NOBODY)

    def gang(self, name: str) -> Mapping[str, str]:
        """The Pods of a gang by UID, and the node of each; "" for one that is not bound."""
        return self._gangs.get(name, {})

    def whole_gangs(self) -> Mapping[str, Mapping[str, PodInfo]]:
        """The gangs that are bound as a whole or not at all, and the Pods of each by UID, finished ones too."""
        return self._all_or_nothing

    def anybody_waits(self, schedulers: SchedulerNames) -> bool:
        """Whether one of our Pods waits for one of these schedulers."""
        return any(name in self._waiting for name in schedulers)

    def waiting(self, schedulers: SchedulerNames) -> Iterable[str]:
        """The UIDs of our Pods that wait for one of these schedulers."""
        return chain.from_iterable(self._waiting.get(name, {}) for name in schedulers)

    def waited(self, uid: str) -> float:
        """For how many seconds a Pod that is not bound yet has been seen here; 0 where none is."""
        pod = self.by_uid(uid)
        since = self._since(pod) if pod is not None else None
        return 0.0 if since is None else self._clock() - since

    def _since(self, pod: PodInfo) -> float | None:
        """When a Pod that waits was first seen; None if it does not wait."""
        return self._waiting.get(pod.scheduler_name, {}).get(pod.uid)

    def is_gone(self, uid: str) -> bool:
        """Whether one of our Pods was seen to vanish; of very many, that is forgotten again."""
        return uid not in self._by_uid and self._ended.get(uid) is not None

    def is_over(self, uid: str) -> bool:
        """Whether one of our Pods was seen to vanish, or never to be bound any more: no bind of it can be performed."""
        pod = self._by_uid.get(uid)
        return self.is_gone(uid) if pod is None else pod.over

    def has_ended(self, uid: str, node: str) -> bool:
        """Whether a Pod that was bound to this node ended: what it holds there is about to leave the ledger."""
        return bool(node) and self._ended.get(uid) == node

    def other(self, namespace: str, name: str, uid: str) -> OtherPod | None:
        """A Pod that is known to be none of ours; without a UID, the one of that name."""
        known = self._strangers.get((namespace, name))
        return known if known is not None and uid in {"", known.uid} else None

    def check_invariants(self) -> None:
        """Compare the indices with the Pods by name.

        Raises InvariantError: they disagree.
        """
        for (namespace, name), pod in self._by_name.items():
            if (namespace, name) != (pod.namespace, pod.name):
                raise InvariantError(f"Pod {pod} is kept under {namespace}/{name}")
        pods = list(self._by_name.values())
        by_uid = {pod.uid: pod for pod in pods}
        if by_uid != self._by_uid or len(by_uid) != len(pods):
            raise InvariantError(f"Pods by UID are {sorted(self._by_uid)}, not {sorted(by_uid)}")
        waiting = {(pod.scheduler_name, pod.uid) for pod in pods if _waits(pod)}
        if waiting != {(name, uid) for name, uids in self._waiting.items() for uid in uids}:
            raise InvariantError(f"Pods that wait, by scheduler, are {self._waiting}, not {sorted(waiting)}")
        on = _grouped((pod.node, pod.uid, pod) for pod in pods)
        if on != self._on:
            raise InvariantError(f"Pods by node are {self._on}, not {on}")
        gangs = _grouped((pod.request.wishes.gang, pod.uid, pod.node) for pod in pods if not pod.finished)
        if gangs != self._gangs:
            raise InvariantError(f"gangs are {self._gangs}, not {gangs}")
        whole = _grouped((pod.request.wishes.gang, pod.uid, pod) for pod in pods if pod.request.wishes.all_or_nothing)
        if whole != self._all_or_nothing:
            raise InvariantError(f"gangs that are bound as a whole are {self._all_or_nothing}, not {whole}")
        if twice := self._strangers.keys() & self._by_name.keys():
            raise InvariantError(f"Pods that are ours and none of ours: {sorted(twice)}")
        counted = [*(pod.counted for pod in pods), *(pod.counted for pod in self._strangers.values())]
        self._loads.check_invariants(counted)
        if self._mix is not None:
            self._mix.check_invariants(pods)


def _waits(pod: PodInfo) -> bool:
    return pod.asks and not pod.node and not pod.finished


def _may_be_tried(pod: PodInfo) -> bool:
    return _waits(pod) and not (pod.gated or pod.gates)


def _leave(groups: dict[str, dict[str, T]], group: str, uid: str) -> None:
    """Take a Pod out of a group, and forget a group without Pods."""
    members = groups.get(group)
    if members is not None:
        members.pop(uid, None)
        if not members:
            del groups[group]


def _grouped(members: Iterator[tuple[str, str, T]]) -> dict[str, dict[str, T]]:
    groups: dict[str, dict[str, T]] = {}
    for group, uid, value in members:
        if group:
            groups.setdefault(group, {})[uid] = value
    return groups
