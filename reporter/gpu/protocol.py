"""The messages between `guarded` and its NVML process: one JSON object per line."""

import msgspec

from reporter.gpu.facts import CgroupMemory, GpuProcess, MemoryLimit, NodeReading, XidEvent

MAX_LINE = 4 * 2**20  # bytes; a node of 16 cards needs about 50 kB


class Ask(msgspec.Struct, frozen=True):
    """A question."""

    number: int
    uuid: str | None = None  # list the processes on this card
    cgroups: tuple[tuple[str, str], ...] = ()  # tell the memory of these (card's UUID, cgroup) pairs
    limits: tuple[MemoryLimit, ...] = ()  # set these. Without any of the three, a full reading is wanted.


class NvmlReading(msgspec.Struct, frozen=True, tag="reading"):
    """A full reading."""

    number: int
    node: NodeReading


class Processes(msgspec.Struct, frozen=True, tag="processes"):
    """The processes on one card."""

    number: int
    processes: tuple[GpuProcess, ...]


class Memory(msgspec.Struct, frozen=True, tag="memory"):
    """The memory of cgroups, in the order in which they were asked for."""

    number: int
    memory: tuple[CgroupMemory, ...]


class Limited(msgspec.Struct, frozen=True, tag="limited"):
    """Why each limit is not in force, and the cure, or ""; in the order in which they were asked for."""

    number: int
    problems: tuple[str, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """This question cannot be answered; others may be."""

    number: int
    message: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """NVML as a whole cannot be used; the process ends."""

    reason: str
    message: str


class Xid(msgspec.Struct, frozen=True, tag="xid"):
    """An Xid error happened."""

    event: XidEvent


Answer = NvmlReading | Processes | Memory | Limited | Refused | Failed | Xid

# They raise msgspec.MsgspecError, a ValueError, for a line that is no such message.
ASKS = msgspec.json.Decoder(Ask)
ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def encode(message: Ask | Answer) -> bytes:
    """Write one line."""
    return msgspec.json.encode(message) + b"\n"
