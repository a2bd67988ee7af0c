"""Reads ResourceClaims from the API server itself, for when the view may be behind."""

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from allocator.vocabulary.claims import ResourceClaim
from allocator.wire.resourceclaim import read_resource_claim
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import NotFound
from koordgate.kube.resource import RESOURCE_CLAIMS

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
