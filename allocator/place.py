"""The one decision: `place(request, node)`.

Filter, score, bind, dry run and simulation all call it, so they can never disagree.
"""

from dataclasses import dataclass

from allocator.gpu import choose_gpus
from allocator.holdings import NodeSnapshot, Share
from allocator.outcome import Refusal
from allocator.request import PodRequest


@dataclass(frozen=True, slots=True)
class Placement:
    """What a Pod gets on a node.

    Attributes:
        node: its name.
        shares: one a device, in the order of type and minor.
    """

    node: str
    shares: tuple[Share, ...]


def place(request: PodRequest, node: NodeSnapshot) -> Placement | Refusal:
    """Decide what a Pod would get on a node.

    Pure: the same request and node give the same answer. The node's holdings must not include the Pod's own.

    Returns:
        The placement, or why the node cannot hold the Pod.
    """
    shares = choose_gpus(request, node)
    return shares if isinstance(shares, Refusal) else Placement(node.name, shares)
