"""Whether a Pod may hold devices that quotas limit and that it does not state: it was created before they did.

The API server counted nothing of it, so that its bind is where it is counted. One read of the namespace's quotas
decides, and no other Pod costs a read. The Pod is bound if

- the mirror lists it, and whoever wrote the list had seen no more Pods than this replica has;
- the API server enforces the mirror's limit, less what all Pods hold or will hold without stating it, this one too;
- what it counts, and what those hold that are bound or have their turn before this one, leave room for this one.

Two replicas cannot give the same room: of two Pods, both see the same one first. What the API server counts cannot grow
into this room, because the limit that it enforces is less by it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from koordgate.kube.client import KubeClient
from koordgate.kube.resource import RESOURCE_QUOTAS
from webhook.quotas.mirror import NOBODY, Listed, Quota, Term, enforced, mirror_name, mirrored, read_quota, used
from webhook.quotas.table import LimitTable
from webhook.quotas.unstated import Unstated
from webhook.view.podinfo import PodInfo
from webhook.view.pods import PodTable
from webhook.view.quotascopes import in_scopes

_PAGE: Final = 500
Admit = Callable[[PodInfo, float], Awaitable[PodInfo | str]]


async def admit_all(pod: PodInfo, deadline: float) -> PodInfo | str:  # noqa: ARG001
    """Let every Pod hold what it asks for."""
    return pod


class QuotaGate:
    """Judges Pods before they hold anything.

    `is_held`: whether the ledger holds something for the Pod with a UID. `followed`: whether Pods of a namespace are
    translated.
    """

    def __init__(
        self,
        kube: KubeClient,
        table: LimitTable,
        unstated: Unstated,
        pods: PodTable,
        is_held: Callable[[str], bool],
        followed: Callable[[str], bool],
    ) -> None:
        self._kube = kube
        self._table = table
        self._unstated = unstated
        self._pods = pods
        self._is_held = is_held
        self._followed = followed

    def judges(self, pod: PodInfo) -> dict[str, int | None]:
        """What quotas would count of a Pod that limits of its namespace concern and that it does not state.

        None for a resource of which it may take more than is known. Nothing where the Pod is not judged.
        """
        limited = self._table.of(pod.namespace).counted.difference(pod.states)
        if not limited or not self._followed(pod.namespace):
            return {}
        return {name: amount for name, amount in self._unstated.held(pod).items() if name in limited}

    async def admit(self, pod: PodInfo, deadline: float) -> PodInfo | str:
        """Judge a Pod by the namespace's quotas as they are now: as `judge`.

        One that is not judged costs no read, nor one that would have to wait by the quotas as they were last seen.
        Raises KubeError: the quotas cannot be read.
        """
        if not self.judges(pod):
            return pod
        known = self.judge(pod, self._table.quotas(pod.namespace))
        return known if isinstance(known, str) else self.judge(pod, await self._read(pod.namespace, deadline))

    def judge(self, pod: PodInfo, quotas: Mapping[str, Quota]) -> PodInfo | str:
        """Judge a Pod: the Pod, with what it may hold at most as part of its request; or why it must wait.

        `quotas`: those of its namespace, and their mirrors, by name.
        """
        asked = self.judges(pod)
        most: dict[str, int] = {}
        for quota, term in self._limits(pod, quotas):
            if term.resource not in asked:
                continue
            if asked[term.resource] is None:
                return (
                    f"ResourceQuota {quota.name} limits {term.resource}, and how much of it the Pod takes is only "
                    "known when it is bound: delete it, and ask for a stated amount, without ApplyForAll or "
                    "exclusivePolicy PCIeLevel"
                )
            own = self._own(pod, quota, term, quotas.get(mirror_name(quota.name)))
            if isinstance(own, str):
                return (
                    f"it does not state {term.resource}, because it was created before ResourceQuota {quota.name} "
                    f"limited that: {own}"
                )
            most[term.resource] = min(own, most.get(term.resource, own))
        bounds = {**dict(pod.request.most), **most}
        return replace(pod, request=replace(pod.request, most=tuple(sorted(bounds.items())))) if most else pod

    async def _read(self, namespace: str, deadline: float) -> dict[str, Quota]:
        """Read the quotas of a namespace that name devices, and their mirrors, by name."""
        types, quotas = self._table.within(namespace), dict[str, Quota]()
        path = RESOURCE_QUOTAS.path(namespace=namespace)
        async for page, _ in self._kube.list_pages(path, limit=_PAGE, deadline=deadline):
            found = [one for obj in page if (one := read_quota(obj, types)) is not None]
            quotas |= {one.name: one for one in found}
        return quotas

    def _limits(self, pod: PodInfo, quotas: Mapping[str, Quota]) -> Iterator[tuple[Quota, Term]]:
        """The limits that count a Pod, and not by a name that it states."""
        for quota in self._unstated.originals(quotas):
            if in_scopes(pod.scope, quota.scopes, unread=True):
                for term in self._unstated.terms(quota):
                    if not (term.name in pod.states and term.name not in self._unstated.written):
                        yield quota, term

    def _own(self, pod: PodInfo, quota: Quota, term: Term, mirror: Quota | None) -> int | str:
        """The most that a Pod may hold of a limit; or what it waits for."""
        behind = "it waits until this replica has seen the Pods that another one has seen"
        listed = mirror.listed if mirror is not None and mirror.owner == quota.uid else NOBODY
        if mirror is None or pod.uid not in listed.pods:
            return "it waits until its namespace's quotas take it into account, which takes about a second"
        if not self._unstated.is_full(pod.namespace) or self._pods.revision() < listed.seen:
            return behind
        sums = self._unstated.sums(quota, listed)
        limits = mirrored(quota, self._table.within(pod.namespace), self._unstated.written, sums)
        own, later = self._turn(pod.uid, quota, term, listed)
        if not own:
            return behind
        if not enforced(mirror, {term.resource: limits[term.resource]}):
            return "it waits until the API server enforces the rest of the quota, which takes about a second"
        # A mirror that is new may not count all that the quota itself does.
        counted = max(used(mirror, term.resource), used(quota, term.resource) if term.own else 0)
        held = term.before + sums.get(term.key, 0) - later
        if counted + held <= term.most:
            return own
        return (
            f"the limit is {term.most}, {counted} of it is counted, and this Pod and those before it would hold {held} "
            "more; it waits until Pods of its namespace end, or the quota is raised"
        )

    def _turn(self, uid: str, quota: Quota, term: Term, listed: Listed) -> tuple[int, int]:
        """What a Pod may hold of a limit, and what those may that are listed after it and hold nothing yet."""
        own = later = 0
        turn = False
        for one, key, amount in self._unstated.waiting(quota, listed):
            if key == term.key and one == uid:
                own, turn = amount, True
            elif key == term.key and turn and not self._is_held(one):
                later += amount
        return own, later
