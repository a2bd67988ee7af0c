"""Pods whose containers share devices, and what each container may then use."""

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from builders import GIB, container, gpu, node, pod, sidecar_container

from allocator.memorylimits import device_quotas
from allocator.place import Placement, place
from allocator.request.devices import PodReading
from allocator.request.original import read_asks
from allocator.vocabulary.asks import ContainerAsk
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.holdings import Share
from allocator.vocabulary.names import DEVICE_SHARING
from allocator.vocabulary.node import NodeSnapshot

Raw = dict[str, Any]
CARD = 80 * GIB


def uses(name: str, gpu: int | None = None, **amounts: Any) -> Raw:
    """An app that asks for this percentage of a GPU, or for other amounts (core, ratio, memory, shared, rdma)."""
    return container(name, limits=resources(gpu, amounts)) if gpu is not None or amounts else container(name)


def serves(name: str, gpu: int | None = None, **amounts: Any) -> Raw:
    """The same as a sidecar."""
    return (
        sidecar_container(name, limits=resources(gpu, amounts))
        if gpu is not None or amounts
        else sidecar_container(name)
    )


def resources(percent: int | None, amounts: Mapping[str, Any]) -> Raw:
    names = {"core": "gpu-core", "ratio": "gpu-memory-ratio", "memory": "gpu-memory", "shared": "gpu.shared"}
    stated = {"gpu": percent} if percent is not None else {}
    stated |= {names.get(key, key): amount for key, amount in amounts.items()}
    return {f"kubernetes.io/{name}": str(amount) for name, amount in stated.items()}


def sharing(*apps: Raw, init: Iterable[Raw] = (), annotations: Mapping[str, str] | None = None, **said: Any) -> Raw:
    """A Pod with the annotation; `said` is what it says of GPUs, or of types with `types`."""
    text = json.dumps(said.pop("types", {"gpu": said}))
    return pod(*apps, init=init, annotations={DEVICE_SHARING: text, **(annotations or {})})


def read(obj: Raw, slots: Mapping[str, int] | None = None, types: DeviceTypes = BUILT_IN) -> PodReading:
    """A Pod as read; nothing is wrong with it."""
    reading = read_asks(obj, types, implied=False, slots=slots or {})
    assert reading.problems == ()
    return reading


def wrong(obj: Raw, types: DeviceTypes = BUILT_IN) -> list[str]:
    """What is wrong with a Pod."""
    return [str(problem) for problem in read_asks(obj, types, implied=False).problems]


def groups(obj: Raw) -> dict[tuple[str, ...], int]:
    """Each group's containers, and the percentage of GPU memory that it asks for in all."""
    return {one.names: (one.ask.amount("gpu-memory-ratio") or 0) * one.ask.count for one in read(obj).groups}


def parts(asks: Iterable[ContainerAsk], tail: str = "gpu-memory-ratio") -> dict[str, Fraction | None]:
    """The fraction of each container."""
    return {one.name: one.parts[ask.ask.type.tails.index(tail)] for ask in asks for one in ask.members}


def fractions(obj: Raw, tail: str = "gpu-memory-ratio") -> dict[str, Fraction | None]:
    return parts(read(obj).groups, tail)


def cards(count: int = 2, memory: int = CARD) -> NodeSnapshot:
    return node(*(gpu(minor, memory) for minor in range(count)))


def held(obj: Raw, on: NodeSnapshot | None = None) -> tuple[Share, ...]:
    """What a Pod gets."""
    placed = place(read(obj).request, on or cards())
    assert isinstance(placed, Placement), placed
    return placed.shares


def quotas(obj: Raw, tail: str, on: NodeSnapshot | None = None) -> dict[str, list[int | None]]:
    """What each container may use of each of its devices."""
    on = on or cards()
    found = device_quotas(read(obj).request, held(obj, on), on.devices)
    return {name: [one.amounts[tail] for one in listed if tail in one.amounts] for name, listed in found.items()}
