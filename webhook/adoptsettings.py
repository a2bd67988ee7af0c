"""The settings about running Pods of other products."""

from collections.abc import Mapping

import msgspec

from allocator.vocabulary.adopted import Product
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.peerresults import SCHEDULERS
from allocator.wire.foreignpods import Adoption
from koordgate.settings import Name, Section
from webhook.dialectsettings import NamespaceName


class AdoptSettings(Section, frozen=True):
    """Running Pods of other products.

    Attributes:
        peers: the products whose Pods count as holding what their annotations state.
        schedulers: the names of a product's schedulers, where they are not the product's own; a Pod of another
            scheduler does not count. Empty for a product: any.
        reservation_namespaces: the namespaces in which KAI and Run:ai keep their reservation Pods.
        writers: the exact users of these products, who may write on Pods that exist by which annotations software of
            the nodes shows them devices.
    """

    peers: tuple[Product, ...] = ()
    schedulers: dict[Product, tuple[Name, ...]] = msgspec.field(default_factory=dict)
    reservation_namespaces: tuple[NamespaceName, ...] = ("kai-resource-reservation", "runai-reservation")
    writers: tuple[str, ...] = ()

    def adoption(self, dialects: Mapping[str, Dialect]) -> Adoption:
        """Which Pods count.

        Args:
            dialects: of the products, as they are installed, by name.
        """
        names = {peer: frozenset(self.schedulers.get(peer, SCHEDULERS[peer])) for peer in Product}
        return Adoption(frozenset(self.peers), names, frozenset(self.reservation_namespaces), dialects)
