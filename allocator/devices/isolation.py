"""What a Pod may demand of its node: isolation on one GPU (label gpu-isolation-provider), and memory limits."""

from typing import Final

from allocator.vocabulary.asks import DeviceAsk, PodRequest
from allocator.vocabulary.devicetype import FULL
from allocator.vocabulary.names import ISOLATION_PROVIDER, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot
from allocator.vocabulary.outcome import Refusal


def not_isolated(request: PodRequest, node: NodeSnapshot) -> Refusal | None:
    """Refuse a node whose GPUs are not isolated as a Pod demands; whole GPUs need no isolation."""
    wanted = request.wishes.isolation
    if not wanted or wanted == node.isolation:
        return None
    if not any(is_share(container.ask) for container in request.containers):
        return None
    has = f"is {node.isolation}" if node.isolation else "is not set"
    text = f"the Pod's label {ISOLATION_PROVIDER} is {wanted}, the Node's {has}"
    return Refusal(f"{node.name}: {text}; use nodes with this label", permanent=True, short=text)


def is_share(ask: DeviceAsk) -> bool:
    """Whether it takes a part of a GPU; bytes always count as a part."""
    memory = ask.type.memory
    return ask.type.name == TYPE_GPU and not ask.whole and memory is not None and ask.amount(memory[1]) != FULL


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
    why = node.delivery.way(request.wishes.runtime_class, limits=True).no_limits
    if why == "":
        return None
    short = "the node does not keep memory limits, which the Pod requires"
    return Refusal(f"{node.name}: {short}: {why or NOT_KNOWN}", short=short)
