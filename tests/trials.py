"""How often a property is tried."""

from hypothesis import settings


def examples(usual: int) -> int:
    """`usual` in `make test`; a profile that does not try 100 examples scales it proportionally."""
    return max(1, usual * settings.default.max_examples // 100)
