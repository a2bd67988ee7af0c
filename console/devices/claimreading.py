"""What ResourceClaims (DRA) hold, as far as the user may read it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.devicetype import DeviceType
from allocator.wire.resourceclaim import ClaimError, read_resource_claim, read_resource_slice
from allocator.wire.values import UNREADABLE
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, NotFound
from koordgate.kube.resource import RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from webhook.view.changes import Changes
from webhook.view.claims import ClaimTable

Raw = dict[str, Any]

_PAGE: Final = 100  # objects a page


async def read_claims(kube: KubeClient, drivers: Mapping[str, DeviceType]) -> tuple[ClaimTable, str]:
    """Read what ResourceClaims hold; with why they could not be read, if the user may not.

    Raises KubeError: the API server refuses for another reason, or cannot be reached.
    """
    read: dict[Resource, list[Raw]] = {RESOURCE_SLICES: [], RESOURCE_CLAIMS: []}
    try:
        for resource, objects in read.items() if drivers else ():
            async for page, _ in kube.list_pages(resource.path(), limit=_PAGE):
                objects.extend(page)
    except NotFound:
        return ClaimTable(Changes(), drivers), ""  # the cluster has no DRA
    except Forbidden as error:
        return ClaimTable(Changes(), drivers), claims_not_read(error)
    return claim_table(read[RESOURCE_CLAIMS], read[RESOURCE_SLICES], drivers)


def claims_not_read(error: Exception) -> str:
    """Say that the user may not read what ResourceClaims hold."""
    return f"what ResourceClaims hold is not shown, except for what koordgate reserved: {error}"


def claim_table(
    claims: Iterable[Raw], slices: Iterable[Raw], drivers: Mapping[str, DeviceType]
) -> tuple[ClaimTable, str]:
    """What ResourceClaims hold; with why some of it is not known, "" if all is."""
    table = ClaimTable(Changes(), drivers)
    try:
        for obj in slices:
            if (listed := read_resource_slice(obj, drivers)) is not None:
                table.put_slice(listed)
        for obj in claims:
            table.put(read_resource_claim(obj, drivers))
    except (ClaimError, *UNREADABLE) as error:
        return table, f"what ResourceClaims hold is not shown completely: {error}"
    return table, ""
