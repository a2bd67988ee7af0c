"""How often a property is tried."""

from hypothesis import settings


def examples(usual: int) -> int:
    """`usual` in `make test`, and in proportion more or less under a profile that tries more or fewer than 100."""
    return max(1, usual * settings.default.max_examples // 100)
