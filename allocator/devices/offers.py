"""The devices of one type that a decision may choose from."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from allocator.devices.offer import Amounts, Offer
from allocator.devices.terms import Terms
from allocator.topology.joint import free_function
from allocator.vocabulary.device import Device
from allocator.vocabulary.hints import NO_HINT, Selector
from allocator.vocabulary.holdings import Function, Share
from allocator.vocabulary.models import GPU_COUNT, GPU_MEMORY_MIB, GPU_PRODUCT, MODEL, MODEL_LABELS, model_name
from allocator.vocabulary.names import DEVICE_ID, GPU_MEMORY, TYPE_GPU
from allocator.vocabulary.node import NodeSnapshot, left

_MIB: Final = 2**20


def find_offers(terms: Terms, steps: int) -> tuple[list[Offer], int]:
    """Find the devices that could be chosen. The Pod holds nothing of them yet, in any step of its life.

    Returns the offers in the node's order, and their number if `Terms.only` did not restrict them.
    """
    offers = _open(terms, steps)
    wanted = terms.hint.functions
    if terms.only is None:
        if wanted is not None:
            offers = _with_functions(offers, wanted, terms.node.functions_held())
        return offers, len(offers)
    taken = terms.node.functions_held()
    known = len(offers) if wanted is None else len(_with_functions(offers, wanted, set(taken)))
    offers = [_limited(offer, terms.only[offer.device.id], terms) for offer in offers if offer.device.id in terms.only]
    if wanted is not None:
        named = {function.bus_id for share in terms.only.values() for function in share.functions}
        offers = _with_functions(offers, wanted, taken, named)
    return offers, known


def _open(terms: Terms, steps: int) -> list[Offer]:
    """List the usable devices inside the NUMA nodes that the hint selects and that no Pod has exclusively."""
    node, numa, used = terms.node, terms.numa, terms.node.used
    name, tails = terms.kind.name, terms.kind.tails
    closed = _closed(terms)
    hinted = terms.hint is not NO_HINT
    nothing = ((0,) * len(tails),) * steps
    offers = []
    capacity: Amounts = ()
    whose: Mapping[str, int] | None = None  # devices of one node mostly share one capacity
    for device in node.devices:
        if device.type != name or device.id in closed:
            continue
        if numa is not None and not (device.numa_node is None or device.numa_node in numa):
            continue
        held = used.get(device.id)
        if hinted and not _hinted(device, held, terms):
            continue
        if device.capacity is not whose:
            whose = device.capacity
            capacity = tuple([whose[tail] for tail in tails])
        free = capacity if held is None else left(capacity, held, tails)
        offers.append(Offer(device, held, capacity, free, nothing))
    return offers


def _closed(terms: Terms) -> frozenset[str]:
    """Devices that are unusable, that another Pod has exclusively, or beside which the Pod would not be alone.

    PCIeLevel closes whole PCIe roots; if a device's root is unknown, it closes at least that device.
    """
    node = terms.node
    closed = node.unusable | node.unshared if node.unshared else node.unusable
    if not (terms.alone or node.alone):
        return closed
    ids = {*node.used, *node.kubelet_held} if terms.alone else node.alone
    roots = {device.pcie for device in node.devices if device.id in ids and device.pcie is not None}
    return closed.union(ids, (device.id for device in node.devices if device.pcie in roots))


def _hinted(device: Device, held: Mapping[str, int] | None, terms: Terms) -> bool:
    if terms.unshared and held is not None:
        return False
    selector = terms.hint.selector
    return selector is None or selector.matches(selectable(device, terms.node))


def selectable(device: Device, node: NodeSnapshot) -> Mapping[str, str]:
    """The labels by which a hint may select a device: its own, and those that every device has.

    A GPU also has the labels that NVIDIA's feature discovery gives its node, as far as they say what it is. Models are
    in the one spelling to which hints reduce them.
    """
    labels = {DEVICE_ID: device.id, "koordgate.io/minor": str(device.minor), MODEL: device.model}
    if device.type == TYPE_GPU:
        labels[GPU_PRODUCT] = device.model
        labels[GPU_MEMORY_MIB] = str(device.has_at_most(GPU_MEMORY) // _MIB)
        labels[GPU_COUNT] = str(sum(one.type == TYPE_GPU for one in node.devices))
    labels.update(device.labels)
    for key in MODEL_LABELS & labels.keys():
        labels[key] = model_name(labels[key])
    return labels


def _limited(offer: Offer, most: Share, terms: Terms) -> Offer:
    """Limit what is free of a device to what may be taken of it."""
    allowed = (most.amounts.get(tail, 0) for tail in terms.kind.tails)
    offer.free = tuple([min(free, amount) for free, amount in zip(offer.free, allowed, strict=True)])
    return offer


def _with_functions(
    offers: Iterable[Offer], wanted: Selector, taken: set[str], named: Collection[str] | None = None
) -> list[Offer]:
    """Keep the devices that have a free virtual function that the hint selects, and attach that function to each.

    `taken`: bus ids of the functions that a Pod holds; a function that two devices list is given once. `named`: bus ids
    of the functions that may be given; None for all.
    """
    kept = []
    for offer in offers:
        functions = offer.device.functions
        if named is not None:
            functions = tuple(one for one in functions if one.bus_id in named)
        function = free_function(functions, wanted, taken)
        if function is not None:
            offer.comes_with(Function(-1 if function.minor is None else function.minor, function.bus_id))
            taken.add(function.bus_id)
            kept.append(offer)
    return kept
