"""Which sets of devices of one type an ask allows, and which it prefers."""

from typing import Final

from allocator.devices.terms import Terms
from allocator.topology.sets import PLAIN_RULE, SetRule
from allocator.vocabulary.preference import DeviceOrder

BY_RANK: Final = SetRule(rank_first=True)


def set_rule(terms: Terms, company: int, *, whole: bool) -> SetRule:
    """Make the rule for an ask of whole devices, or of parts of devices.

    `company`: whole devices that the gang's other Pods are still to get.
    """
    wishes, wiring = terms.wishes, terms.node.wiring
    near = _mates(terms) if wishes.gang else frozenset()
    scope = terms.hint.scope or PLAIN_RULE.scope
    partitioned = terms.kind.partitioned
    required = whole and partitioned and (wishes.partition is not None or wiring.honour_partitions)
    partitions = wiring.table(terms.kind.name) if partitioned and terms.order is not DeviceOrder.MINOR else None
    if not whole or (terms.order is DeviceOrder.MINOR and not required):
        plain = scope is PLAIN_RULE.scope and not near and partitions is None
        return BY_RANK if plain else SetRule(scope, rank_first=True, partitions=partitions, near=near)
    partitions = wiring.table(terms.kind.name) if partitioned else None
    if not (near or partitions or required or wishes.waiting) and scope is PLAIN_RULE.scope:
        return PLAIN_RULE
    spec = wishes.partition
    return SetRule(
        scope=scope,
        partitions=partitions,
        partition_required=required,
        restricted=spec is not None and spec.restricted,
        ring_bandwidth=spec.ring_bandwidth if spec else None,
        near=near,
        company=company,
    )


def _mates(terms: Terms) -> frozenset[str]:
    """Devices of this type that other Pods of the gang hold on the node."""
    return frozenset(
        share.id
        for holding in terms.node.holdings.values()
        if holding.gang == terms.wishes.gang
        for share in holding.shares
        if share.type == terms.kind.name
    )
