"""What the audit log says of a bind: what the Pod was given, where, by which preference and for what reason (pure).

The API server puts the webhook's name before each key. docs/operate/operations.md lists them.
"""

from enum import StrEnum

from allocator.vocabulary.cputopology import format_cpuset
from allocator.vocabulary.holdings import Holding

_MAX: int = 1_000  # characters of what is held; 128 whole cards may be more


class Occasion(StrEnum):
    """Why a Pod was given these devices on this node.

    SENT: the filter judged this node the best by the preference, and reserved them. NAMED: kube-scheduler chose the
    node, by its own scoring or after the answer of another replica. GANG: they were held for the Pod with its gang.
    AGAIN: an earlier bind of the Pod was answered with them. STATED: the Pod's annotations state them.
    """

    SENT = "the filter found this node the best for the Pod"
    NAMED = "kube-scheduler chose the node"
    GANG = "room was held here for the Pod with its gang"
    AGAIN = "an earlier bind of the Pod was answered with the same"
    STATED = "the annotations of the Pod state this"


def account(holding: Holding, node: str, preference: str, reason: Occasion, *, recorded: bool) -> dict[str, str]:
    """The audit annotations of a bind.

    `recorded`: whether the ledger has it; False for a dry run.
    """
    return {
        "held": _summary(holding),
        "node": node,
        "pod-uid": holding.uid,
        "preference": preference,
        "reason": reason,
        "recorded": "yes" if recorded else "no",
    }


def _summary(holding: Holding) -> str:
    """Devices as type:minor:id, then CPUs; in bounds, by whole devices."""
    parts = [f"{share.type}:{share.minor}:{share.id}" for share in holding.shares]
    if holding.cpus is not None and holding.cpus.cpus:
        parts.append(f"cpus:{format_cpuset(holding.cpus.cpus)}")
    told: list[str] = []
    left = _MAX
    for number, part in enumerate(parts):
        left -= len(part) + 1
        if left < 0:
            return " ".join([*told, f"and {len(parts) - number} more"])
        told.append(part)
    return " ".join(told)
