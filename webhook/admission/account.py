"""What the audit log states about a Pod's translation: what its containers were understood to ask for (pure)."""

from typing import Final

from allocator.request.devices import PodReading
from allocator.vocabulary.asks import DeviceAsk

_MOST: Final = 1_000  # characters


def asked(reading: PodReading) -> str:
    """Write what a Pod asks for, as `main: 1 gpu (gpu-core=50 gpu-memory-ratio=50)`; in bounds, by whole containers."""
    parts = [f"{one.name}: {_written(ask)}" for one in reading.containers for ask in one.requests]
    if reading.cpu is not None:
        parts.append(f"CPUs as {reading.cpu.qos}")
    told: list[str] = []
    left = _MOST
    for number, part in enumerate(parts):
        left -= len(part) + 2
        if left < 0:
            return "; ".join([*told, f"and {len(parts) - number} more"])
        told.append(part)
    return "; ".join(told)


def _written(ask: DeviceAsk) -> str:
    stated = zip(ask.type.tails, ask.amounts, strict=True)
    amounts = " ".join(f"{tail}={amount}" for tail, amount in stated if amount is not None)
    return f"{ask.count} {ask.type.name}" + f" ({amounts})" * bool(amounts)
