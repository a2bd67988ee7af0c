"""What a Pod holds, in the few words of a table."""

from collections.abc import Iterable

from allocator.vocabulary.holdings import Share


def shares_words(shares: Iterable[Share]) -> str:
    """Name devices by their types and minors, as `gpu 0,1`."""
    by_type: dict[str, list[str]] = {}
    for share in shares:
        by_type.setdefault(share.type, []).append(str(share.minor))
    return "; ".join(f"{kind} {','.join(minors)}" for kind, minors in by_type.items())
