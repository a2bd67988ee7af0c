"""Which nodes keep containers to their memory of a GPU, which a Pod may require."""

from typing import Final

from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.names import TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal

NOT_KNOWN: Final = (
    "it is not known whether its driver and container toolkit keep them: let koordgate's reporter run there, in a "
    "version that tells it"
)
"""What is said of a node of which it is not told whether limits are kept there, and the cure."""


def without_limits(request: PodRequest, node: NodeSnapshot) -> Refusal | None:
    """Refuse a node that does not keep the memory limits that a Pod requires; None for any other.

    Where it is not known whether limits are kept, they are not.
    """
    if not request.wishes.limits or not any(one.ask.type.name == TYPE_GPU for one in request.containers):
        return None
    why = node.delivery.way(request.wishes.runtime_class).no_limits
    if why == "":
        return None
    short = "the node does not keep memory limits, which the Pod requires"
    return Refusal(f"{node.name}: {short}: {why or NOT_KNOWN}", short=short)
