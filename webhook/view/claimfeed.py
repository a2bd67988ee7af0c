"""Watches of ResourceClaims and ResourceSlices, and the reading of a single claim."""

from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from allocator.vocabulary.holdings import ResourceClaim
from allocator.wire.resourceclaim import read_resource_claim, read_resource_slice
from allocator.wire.values import UNREADABLE
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import RESOURCE_CLAIMS
from webhook.view.cluster import ClusterView
from webhook.view.feed import Complain, Listing

Raw = dict[str, Any]


class ClaimFeed(Listing):
    """Takes in ResourceClaims."""

    def __init__(self, cluster: ClusterView) -> None:
        super().__init__()
        self._claims = cluster.claims
        self._uids: dict[tuple[str, str], str] = {}

    def there(self, obj: Raw) -> None:
        """Take in a claim."""
        claim = read_resource_claim(obj, self._claims.drivers)
        key = claim.namespace, claim.name
        before = self._uids.get(key)
        if before is not None and before != claim.uid:
            # Deleted and created again between two events, unless this is an old list.
            known = self._claims.known(before)
            self._claims.drop(before, deleted=known is not None and known.revision < claim.revision)
        self._uids[key] = claim.uid
        self._claims.put(claim)

    def drop(self, obj: Raw) -> None:
        """Take in that the API server deleted a claim."""
        super().drop(obj)
        self._claims.drop(obj["metadata"]["uid"], deleted=True)

    def gone(self, namespace: str, name: str) -> None:
        """Forget a claim that a list does not name."""
        uid = self._uids.pop((namespace, name), None)
        if uid is not None:
            self._claims.drop(uid, deleted=False)


class SliceFeed(Listing):
    """Takes in ResourceSlices.

    `complain`: called with a slice's name and what could not be read of it; with nothing where all could.
    """

    def __init__(self, cluster: ClusterView, complain: Complain) -> None:
        super().__init__()
        self._cluster = cluster
        self._complain = complain

    def there(self, obj: Raw) -> None:
        """Take in a slice; the devices of one that cannot be read are unknown."""
        name = obj["metadata"]["name"]
        problems: tuple[str, ...] = ()
        listed = None
        try:
            listed = read_resource_slice(obj, self._cluster.claims.drivers)
        except UNREADABLE as error:
            problems = (str(error),)
        if listed is None:
            self._cluster.claims.drop_slice(name)
        else:
            self._cluster.claims.put_slice(listed)
        self._complain(name, problems)

    def gone(self, namespace: str, name: str) -> None:  # noqa: ARG002 cluster-scoped
        """Forget a slice."""
        self._cluster.claims.drop_slice(name)
        self._complain(name, ())


LiveClaims = Callable[[str, str, float], Awaitable[ResourceClaim | None]]
"""Reads a claim by namespace and name, within some seconds; None where there is none."""


def kube_claims(kube: KubeClient, drivers: Collection[str]) -> LiveClaims:
    """Make the function that reads by GET.

    `drivers`: whose devices count.
    """

    async def read(namespace: str, name: str, deadline: float) -> ResourceClaim | None:
        try:
            path = RESOURCE_CLAIMS.path(name, namespace)
        except ValueError:
            return None  # no claim can have such a name
        try:
            return read_resource_claim(await kube.get(path, deadline=deadline), drivers)
        except NotFound:
            return None

    return read


async def _none(_namespace: str, _name: str, _deadline: float) -> None:
    return None


NO_CLAIMS: Final[LiveClaims] = _none
