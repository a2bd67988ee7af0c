"""The observed Pods: where each is in truth, where it would be, and what quotas would count for it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from allocator.quantity import QuantityError
from webhook.quotas.mirror import Quota, mirrored
from webhook.quotas.table import LimitTable
from webhook.shadow.judge import WouldRefuse
from webhook.view.loads import Requests
from webhook.view.podinfo import PodInfo

_NONE: Final[frozenset[str]] = frozenset()


@dataclass(eq=False, slots=True)
class Followed:
    """One observed Pod that asks for devices or CPUs."""

    pod: PodInfo  # as it would be stored, and not bound
    selection: bytes  # what selects nodes for it, as JSON
    created: str  # when, as the API server writes times; they sort as text
    requests: Requests = ()  # what it requests in truth
    charged: Mapping[str, int] = field(default_factory=dict)  # what quotas would count for it
    refused: WouldRefuse | None = None  # why it would not have been created; None if it would
    told: bool = False  # whether this replica reports about it
    bound: str = ""  # the node that it is bound to in truth; "" while it is not
    node: str = ""  # the node that it would be on; "" while it would wait
    tried: bool = False  # whether a node was looked for
    compared: bool = False  # whether both nodes were compared

    @property
    def waits(self) -> bool:
        """Whether it would be waiting."""
        return self.refused is None and not self.node

    @property
    def turn(self) -> tuple[int, str, str]:
        """Its place among those that wait, as kube-scheduler orders them: by priority, then by age."""
        return -self.pod.priority, self.created, self.pod.uid


class FollowedPods:
    """All observed Pods.

    `written`: device resources that translated Pods still state, for which quotas need no mirror.
    """

    def __init__(self, limits: LimitTable, written: frozenset[str]) -> None:
        self._limits = limits
        self._written = written
        self._by_uid: dict[str, Followed] = {}
        self._by_name: dict[tuple[str, str], Followed] = {}
        self._in: dict[str, dict[str, Followed]] = {}  # namespace -> UID -> Pod
        self._on: dict[str, set[str]] = {}  # node -> UIDs of those that are bound there in truth
        self._balance: dict[str, Counter[str]] = {}  # node -> requests that would be there, less those that are

    def __len__(self) -> int:
        return len(self._by_uid)

    def __iter__(self) -> Iterator[Followed]:
        return iter(list(self._by_uid.values()))

    def get(self, uid: str) -> Followed | None:
        """An observed Pod by UID; None where it is none."""
        return self._by_uid.get(uid)

    def named(self, namespace: str, name: str) -> Followed | None:
        """An observed Pod by name; None where there is none."""
        return self._by_name.get((namespace, name))

    def within(self, namespace: str) -> list[Followed]:
        """The observed Pods of a namespace."""
        return list(self._in.get(namespace, {}).values())

    def on(self, node: str) -> AbstractSet[str]:
        """The UIDs of those that are bound to a node in truth."""
        return self._on.get(node, _NONE)

    def put(self, one: Followed) -> None:
        """Begin to observe a Pod, which is bound nowhere yet."""
        self._by_uid[one.pod.uid] = one
        self._by_name[one.pod.namespace, one.pod.name] = one
        self._in.setdefault(one.pod.namespace, {})[one.pod.uid] = one

    def drop(self, one: Followed) -> None:
        """End to observe a Pod."""
        self.place(one, "")
        self.bind(one, "")
        del self._by_uid[one.pod.uid]
        del self._by_name[one.pod.namespace, one.pod.name]
        among = self._in[one.pod.namespace]
        del among[one.pod.uid]
        if not among:
            del self._in[one.pod.namespace]

    def bind(self, one: Followed, node: str) -> None:
        """A Pod is bound to a node in truth; "" for none."""
        if one.bound:
            self._count(one.bound, one.requests, 1)
            self._on[one.bound].discard(one.pod.uid)
            if not self._on[one.bound]:
                del self._on[one.bound]
        one.bound = node
        if node:
            self._count(node, one.requests, -1)
            self._on.setdefault(node, set()).add(one.pod.uid)

    def place(self, one: Followed, node: str) -> None:
        """A Pod would be on this node; "" for none."""
        if one.node:
            self._count(one.node, one.pod.requests, -1)
        one.node = node
        if node:
            self._count(node, one.pod.requests, 1)

    def _count(self, node: str, requests: Requests, sign: int) -> None:
        sums = self._balance.setdefault(node, Counter())
        for name, amount in requests:
            sums[name] += sign * amount
        self._balance[node] = sums = Counter({name: amount for name, amount in sums.items() if amount})
        if not sums:
            del self._balance[node]

    def needed(self, one: Followed, node: str) -> Iterator[tuple[str, int]]:
        """What must be left on a node, beside what its Pods request in truth, for a Pod to be placed there."""
        yield from one.pod.requests
        asked = {name for name, _ in one.pod.requests}
        yield from ((name, amount) for name, amount in self._balance.get(node, {}).items() if name in asked)

    def over_quota(self, namespace: str, charged: Mapping[str, int]) -> str:
        """Which quota of a namespace would not allow these amounts more; "" if all would.

        Quotas with scopes are left out: which Pods they count depends on more than is kept.
        """
        for name, quota in sorted(self._limits.quotas(namespace).items()):
            if quota.mirror or quota.scopes:
                continue
            for resource, most in sorted(self._limited(namespace, quota).items()):
                asked = charged.get(resource, 0)
                used = sum(one.charged.get(resource, 0) for one in self.within(namespace) if one.refused is None)
                if asked and used + asked > most:
                    return f"exceeded quota: {name}, requested: {resource}={asked}, used: {used}, limited: {most}"
        return ""

    def _limited(self, namespace: str, quota: Quota) -> Mapping[str, int]:
        try:
            return mirrored(quota, self._limits.within(namespace), self._written)
        except QuantityError:
            return {}  # no mirror of it can be written either
