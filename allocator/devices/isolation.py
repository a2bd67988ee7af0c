"""What keeps Pods on one GPU apart, which a Pod may demand of its node (Koordinator, label gpu-isolation-provider)."""

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
