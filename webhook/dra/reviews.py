"""`/validate-claim`: an allocation of a ResourceClaim is refused where Pods hold the card, in that very write.

`allocator.claimed` argues why neither a bind nor an allocation can be answered with what the other was given.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Final

from allocator.claimed import reserve
from allocator.vocabulary.holdings import Holding, ResourceClaim
from allocator.vocabulary.outcome import Refusal
from allocator.wire.nodeallocation import RecordError
from allocator.wire.resourceclaim import ClaimError, read_resource_claim
from koordgate.kube.errors import KubeError
from webhook.ledger.ledger import BusyError, Ledger
from webhook.review import RefusalReason, Request, Response, allowed, denied, errored
from webhook.view.claimfeed import LiveClaims
from webhook.view.cluster import ClusterView

# Nodes on which attempts that were not performed may reserve something for one claim: the API server gave them up, and
# the scheduler tried others. Whoever forges reviews can reserve no more.
_MAX_NODES: Final = 4


class ClaimWebhook:
    """The review of writes to `resourceclaims/status`.

    `live`: reads claims that the view has not seen at the reviewed revision. `clock`: seconds since the epoch.
    `given_back_s`: seconds within which what was reserved for an allocation that was not performed is given back.
    """

    def __init__(
        self, cluster: ClusterView, ledger: Ledger, live: LiveClaims, clock: Callable[[], int], given_back_s: float
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._given_back_s = given_back_s

    async def validate(self, request: Request, deadline: float) -> Response:
        """Reserve what a new allocation holds, or refuse it."""
        about = f"ResourceClaim {request.namespace}/{request.name}"
        try:
            old = read_resource_claim(request.old_object, self._cluster.claims.drivers)
            new = read_resource_claim(_as_stored(request), self._cluster.claims.drivers)
        except ClaimError as error:
            return denied(f"{about}: {error}", RefusalReason.UNREADABLE, HTTPStatus.BAD_REQUEST)
        if not new.holds or (new.devices, new.unread, new.node) == (old.devices, old.unread, old.node):
            return allowed()
        reach = self._cluster.claims.reach(_either(old, new), self._cluster.devices)
        wanted = {node: holding for node, holding in reach.items() if holding.shares}
        try:
            if wanted and not await self._is_current(old, deadline):
                why = f"{about} has changed since revision {old.revision}: read it again, and allocate it again"
                return denied(why, RefusalReason.OUTDATED, HTTPStatus.CONFLICT)
            for node, holding in wanted.items():
                refusal = await self._reserved(node, holding, deadline, dry_run=request.dry_run)
                if refusal is not None:
                    return denied(self._told(about, refusal), RefusalReason.NO_ROOM)
        except (KubeError, BusyError, RecordError, ClaimError) as error:
            return errored(f"{about}: {error}")
        return allowed()

    async def _is_current(self, old: ResourceClaim, deadline: float) -> bool:
        """Whether the claim is, or may still be, as the API server says that it is.

        Nobody but the API server could otherwise make a reservation whose fence is later than the claim.
        """
        known = self._cluster.claims.known(old.uid)
        if known is None or known.revision < old.revision:
            known = await self._live(old.namespace, old.name, deadline)
        return known is not None and (known.uid, known.revision) == (old.uid, old.revision)

    async def _reserved(self, node: str, wanted: Holding, deadline: float, *, dry_run: bool) -> Refusal | None:
        """Reserve what a claim will hold of a node; why it may not have it, if it may not."""
        others = [one for one in self._ledger.nodes_of(wanted.uid) if one != node and self._is_open(one, wanted.uid)]
        if len(others) >= _MAX_NODES:
            return Refusal(f"devices of {', '.join(others)} were reserved for it by attempts that were not performed")
        change = reserve(
            replace(wanted, since=self._clock()), lambda holdings: self._cluster.snapshot_on(node, holdings)
        )
        if dry_run:
            return change((await self._ledger.read(node, deadline)).holdings)[1]
        return await self._ledger.change(node, change, deadline)

    def _is_open(self, node: str, uid: str) -> bool:
        """Whether something is reserved for a claim on a node by an attempt that may still be performed."""
        reservation = self._ledger.record(node).holdings.get(uid)
        return reservation is not None and not self._cluster.claims.is_over(reservation)

    def _told(self, about: str, refusal: Refusal) -> str:
        return (
            f"{about} is not allocated: {refusal.message}. The scheduler tries again by itself; choose another device, "
            "or have koordgate's chart keep DRA from devices that Pods hold (dra.taints). What is being given back is "
            f"free within {self._given_back_s:g} s"
        )


def _as_stored(request: Request) -> Mapping[str, Any]:
    """The new object with the identity and the revision of the stored one."""
    return {**request.object, "metadata": request.old_object.get("metadata")}


def _either(old: ResourceClaim, new: ResourceClaim) -> ResourceClaim:
    """What a claim holds whether the write is performed or not. The API server allows no other allocation over one."""
    if not old.holds:
        return new
    devices = (*new.devices, *(one for one in old.devices if one not in new.devices))
    return replace(new, devices=devices, unread=old.unread or new.unread, node=new.node or old.node)
