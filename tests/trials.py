"""How often a property is tried."""

from hypothesis import settings


def examples(whole: int) -> int:
    """The examples of a property that states `whole`, in the profile that is loaded: 100 there are all of them."""
    assert settings.default is not None
    return max(1, whole * settings.default.max_examples // 100)
