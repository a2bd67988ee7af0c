"""The settings of memory limits on GPUs."""

from typing import Annotated

from msgspec import Meta

from allocator.vocabulary.limits import LimitProvider
from koordgate.settings import Section

_NamespaceOrAll = Annotated[str, Meta(pattern=r"^(\*|[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)$")]


class LimitSettings(Section, frozen=True):
    """Memory limits of containers on GPUs, kept on the node by what is not koordgate's.

    Attributes:
        provider: what keeps them: none, nvidia-toolkit or nvidia-fractions.
        require: namespaces in which Pods for parts of GPUs must have them; "*" for all. A Pod's annotation
            koordgate.io/limits may require them too.
    """

    provider: LimitProvider = LimitProvider.NONE
    require: tuple[_NamespaceOrAll, ...] = ()

    def __post_init__(self) -> None:
        """Check what concerns both keys."""
        if self.require and self.provider is LimitProvider.NONE:
            raise ValueError("require is set and provider is none: name what keeps limits, or leave require empty")
