"""What containers have of the memory of their GPUs, and whether something keeps them to it."""

from dataclasses import dataclass
from enum import StrEnum


class Keeping(StrEnum):
    """Whether a container is kept to its memory of a card."""

    ENFORCED = "enforced"  # the driver has the limit that was decided
    MISSING = "missing"  # a limit was decided, and the driver has none, or another
    ACCOUNTING = "accounting"  # none was decided: what is used is counted, and nothing keeps the container to it


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """A container's memory of one card, in bytes."""

    card: str
    namespace: str
    pod: str
    container: str
    keeping: Keeping  # whether it is kept to its memory
    used: int | None = None  # what it uses; None if that is not known
    limit: int | None = None  # what the driver lets it have at most; None if the driver has no limit
    wanted: int | None = None  # the limit that was decided; None if none was
    held: int = 0  # what it holds of the card

    @property
    def exceeds(self) -> bool:
        """Whether it uses more than it holds, and more than it was granted beyond that."""
        return bool(self.held) and self.used is not None and self.used > max(self.held, self.wanted or 0)
