"""What is to be done about a holding whose Pod is not known to be bound to its node and alive (pure).

A bind that was answered may still be performed, for as long as an API request lives. What it was answered with is
therefore given back in two steps. First the holding is marked: from then on, no bind is answered with it. It is
released after a grace that is longer than any API request lives, and only if it still bears that mark. Both times are
those for which one replica has seen the holding as it is, by its own monotonic clock: no step compares clocks. The
first one may be of any length; only the second one must outlast a request.

What a Pod of a gang that is bound as a whole was given is held for it again then: the others may be bound already, and
the gang would be half without this room. The gang's keeper gives it back if none of them is.

A Pod may end while its bind is under way. Its end and what the bind records are two events, and either may be seen
first: whoever sees the second one releases the holding. A Pod's end finds what is recorded; a holding that is seen for
the first time is looked at (`look`), because the Pod's end may have come before it.
"""

import math
from typing import Final, Literal, Protocol

from allocator.vocabulary.holdings import WITHOUT_LIMIT, Holding

Ended = Literal["gone", "finished", "unbound", "moved"]
"""Why a holding is released."""

Sweep = Ended | Literal["end", "keep", "hold again"]
"""What is done: release the holding for this reason, mark it, remove the mark, or make it a hold of its gang again."""

Look = Literal["now", "later"]
"""When a Pod is looked for: at once, or if nothing was seen of its bind in the time that a bind takes."""

_LONGEST_HOLD_S: Final = 24 * 3600  # of a gang, as the settings allow


class BoundTo(Protocol):
    """What is asked of a Pod."""

    @property
    def node(self) -> str:
        """The node that it is bound to; "" for none."""

    @property
    def over(self) -> bool:
        """Whether it holds nothing and will never be bound."""

    @property
    def all_or_nothing(self) -> bool:
        """Whether it asks that its gang is bound as a whole."""


def is_suspect(holding: Holding, node: str, pod: BoundTo | None) -> bool:
    """Whether something may have to be done about a holding.

    `pod`: as last seen; None where it was not.
    """
    return pod is None or pod.node != node or pod.over or bool(holding.ending)


def look(holding: Holding, node: str, pod: BoundTo | None) -> Look | None:
    """Decide when a holding that is seen for the first time is looked at; None: nothing is to be found out.

    A Pod that waits is looked at later as well: the watch that tells its end may be late.
    `pod`: as last seen; None where it was not, or is gone.
    """
    if not is_suspect(holding, node, pod):
        return None
    if pod is None or pod.over or pod.node:
        return "now"
    return None if holding.until else "later"


def patience(holding: Holding, grace: float) -> float:
    """Seconds for which a holding must have been seen as it is before its Pod's not being bound has consequences.

    `holding`: of a Pod that is not bound. `grace`: seconds that are longer than any API request lives.
    """
    if holding.ending:
        return grace
    if holding.until == WITHOUT_LIMIT:
        return math.inf
    if holding.until:  # the gang's keeper gives it back; this is for one that nobody tends
        return grace + min(max(holding.until - holding.since, 0), _LONGEST_HOLD_S)
    return grace / 2


def judge(
    holding: Holding, node: str, live: tuple[str, BoundTo | None] | None, seen_s: float, grace: float
) -> Sweep | None:
    """Decide what is done about a holding; None: nothing yet.

    `live`: the UID and the state of the Pod of that name, as read from the API server after the holding was seen; None
    where there is none, and None for the state of a Pod that is not ours: nothing of it shows its bind. `seen_s`:
    seconds for which the holding has been seen as it is.
    """
    if live is None or live[0] != holding.uid:
        return "gone"
    pod = live[1]
    if pod is not None and pod.over:
        return "finished"
    if pod is not None and pod.node:
        right: Sweep | None = "keep" if holding.ending else None
        return right if pod.node == node else "moved"
    if seen_s <= patience(holding, grace):
        return None
    if not holding.ending:
        return "end"
    return "hold again" if pod is not None and pod.all_or_nothing and not holding.until else "unbound"
