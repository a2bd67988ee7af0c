"""A cluster in which the search for some Pods is as long as it can be."""

from typing import Any

from builders import container, device_entry, gpu, holding, part, pod
from world import World

from koordgate.kube.resource import DEVICES, NODES
from webhook.ledger.store import Record

Raw = dict[str, Any]

NODE_NAMES = [f"m{number}" for number in range(6)]


def hostile(name: str, namespace: str = "default", cards: int = 8, **about: Any) -> Raw:
    """A Pod of one container more than a node has cards, each of a little more than half a card."""
    asked = (
        container(
            f"c{at}", limits={"kubernetes.io/gpu": str(51 + at % 8)}, requests={"kubernetes.io/gpu": str(51 + at % 8)}
        )
        for at in range(cards + 1)
    )
    return pod(*asked, name=name, namespace=namespace, uid=f"uid-{name}", **about)


def add_uneven_nodes(world: World) -> None:
    """Add six nodes of eight cards of which others hold unequal parts: no two cards of the cluster are alike."""
    for number, name in enumerate(NODE_NAMES):
        ids = [f"GPU-{name}-{at}" for at in range(8)]
        world.add_node(name, *(device_entry(at, id=one) for at, one in enumerate(ids)))
        taken = [part(gpu(at, device_id=one), 1 + at + number) for at, one in enumerate(ids)]
        held = {f"u{name}{at}": holding(f"u{name}{at}", one) for at, one in enumerate(taken)}
        world.parts.ledger.observe(Record(name, 1, held))
    world.see(NODES, DEVICES)
