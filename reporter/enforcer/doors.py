"""What the enforcer does to the node besides answering the runtime: the driver's limits, folders, the MPS daemon.

Nothing here raises for what a node lacks. What cannot be done is answered with the reason and the cure, and each answer
has a deadline of its own, well under the runtime's 2 s: the runtime makes no other call meanwhile. Calls may overlap.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from reporter.enforcer.model import CardLimit, MpsShare


class Doors(Protocol):
    """The node; "" stands for no reason."""

    async def limit(self, limits: Sequence[CardLimit]) -> Mapping[CardLimit, str]:
        """Set limits and read them back; returns those that are not in force, and why."""

    async def empty(self, folders: Sequence[str]) -> str:
        """Make folders that are empty and writable for everybody; returns why that failed."""

    async def remove(self, folders: Sequence[str]) -> None:
        """Remove such folders, as far as they are there."""

    async def sweep(self, containers: Collection[str], limits: Collection[CardLimit]) -> None:
        """Remove what containers left that are no more: their folders, and soft limits that outlive their cgroups.

        `containers`: the ids of those that there are. `limits`: what is to be in force.
        """

    async def share(self, share: MpsShare) -> str:
        """Have the MPS daemon make or change a namespace; returns why that failed."""

    async def unshare(self, share: MpsShare) -> None:
        """Have the MPS daemon delete a namespace."""

    async def look(self, provider: str, cards: Collection[str]) -> tuple[str | None, str]:
        """Look whether a provider's limits can be kept here, at least every minute or so.

        `provider`: name of a `LimitProvider`. Returns why not, None if that is not known; and where the MPS daemon has
        a folder for each namespace, "" if it makes none.
        """
