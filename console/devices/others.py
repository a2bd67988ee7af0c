"""What running Pods of other products hold, for display: read once, or followed by a watch."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from allocator.vocabulary.adopted import ForeignHolding
from allocator.vocabulary.device import Device
from allocator.vocabulary.holdings import Holding
from allocator.wire.deviceobject import NodeDevices
from allocator.wire.foreignpods import NO_ADOPTION, Adoption
from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden
from koordgate.kube.resource import PODS
from webhook.view.changes import Changes
from webhook.view.feed import Listing
from webhook.view.foreign import ForeignTable

Raw = dict[str, Any]
AnyHolding = Holding | ForeignHolding

BOUND: Final = {"fieldSelector": "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}
"""Selects the Pods that may hold something."""

_PAGE: Final = 250  # objects a page
_NODE: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)  # other names would change a selector
_MOST_APART: Final = 8  # nodes whose Pods are listed node by node, rather than all Pods


class Others(NamedTuple):
    """What Pods of other products hold."""

    table: ForeignTable  # these Pods by node
    unread: str = ""  # why they are not known, a sentence; "" if they are. Any GPU may then be held by one.

    def on(self, listed: NodeDevices, devices: Sequence[Device]) -> tuple[ForeignHolding, ...]:
        """What they hold of a node's devices, by namespace, name and UID."""
        found = self.table.on(listed.node, devices, listed.numberings).values()
        return tuple(sorted(found, key=lambda one: (one.namespace, one.name, one.uid)))


def nobody() -> Others:
    """No Pod of another product counts."""
    return Others(ForeignTable(Changes(), NO_ADOPTION))


def not_read(why: object) -> str:
    """Say that Pods of other products are not known."""
    return f"what Pods of other products hold is not known, so every GPU counts as held: {why}"


async def read_others(kube: KubeClient, adoption: Adoption, nodes: Iterable[str] = ()) -> Others:
    """Read the Pods of other products that count; says why they could not be read, if the user may not list Pods.

    `adoption`: which Pods count. Where none do, none are listed. `nodes`: those that are asked about; empty for all.
    Raises KubeError: the API server refuses for another reason, or cannot be reached.
    """
    table = ForeignTable(Changes(), adoption)
    if not adoption.peers:
        return Others(table)
    wanted = sorted(set(nodes))
    asked: list[Mapping[str, str]] = [BOUND]
    if wanted and len(wanted) <= _MOST_APART and all(map(_NODE.fullmatch, wanted)):
        asked = [{"fieldSelector": f"spec.nodeName={node}"} for node in wanted]
    try:
        for params in asked:
            async for page, _ in kube.list_pages(PODS.path(), limit=_PAGE, params=params):
                for pod in page:
                    table.read(pod)
    except Forbidden as error:
        return Others(table, not_read(error))
    return Others(table)


class FollowedOthers(Listing):
    """Follows the Pods of other products.

    `changed`: called with each node on which one came, changed or went.
    """

    def __init__(self, adoption: Adoption, changed: Callable[[str], object]) -> None:
        super().__init__()
        changes = Changes()
        self._reader = changes.reader()
        self._changed = changed
        self.table = ForeignTable(changes, adoption)

    def there(self, obj: Raw) -> None:
        """Take in a Pod."""
        self.table.read(obj)
        self._tell()

    def gone(self, namespace: str, name: str) -> None:
        """Forget a Pod."""
        self.table.drop(namespace, name)
        self._tell()

    def _tell(self) -> None:
        for node in self._reader.drain():
            self._changed(node)


def told_holder(one: AnyHolding) -> str:
    """Name who holds something; a Pod of another product with that product."""
    return f"{one.holder} ({told_product(one)})" if isinstance(one, ForeignHolding) else one.holder


def told_product(one: ForeignHolding) -> str:
    """Name the product that placed a Pod, and say so if what the Pod holds is not certain."""
    return f"{one.peer.value}, in doubt" if one.doubt is not None else one.peer.value


def is_claim(one: AnyHolding) -> bool:
    """Whether a ResourceClaim holds it."""
    return isinstance(one, Holding) and bool(one.fence)


def holder_data(one: AnyHolding) -> Raw:
    """Who holds something, as data (docs/kubectl.md)."""
    about: Raw = {"kind": "ResourceClaim"} if is_claim(one) else {}
    about |= {"namespace": one.namespace, "name": one.name, "uid": one.uid}
    if isinstance(one, ForeignHolding):
        about |= {"product": one.peer.value, "evidence": one.evidence, "doubt": one.why, "within": one.within}
    return about
