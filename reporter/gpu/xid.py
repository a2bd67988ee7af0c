"""Xid errors and what each means for the card: data, with sources.

Names and what to do are NVIDIA's "Xid catalog" (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
Catalog", column "Immediate Action"): RESTART_APP and IGNORE leave a card in service, RESET_GPU and RESTART_BM do not.
13, 31, 43, 45, 68 and 109 are the application errors that NVIDIA's device plugin (internal/rm/health.go) and
Koordinator (pkg/koordlet, states_device_linux.go) ignore; for 109 the catalogue is stricter and asks for a reset.
NVML reports only the number. If the catalogue's answer depends on more, the error makes the card suspect, and what the
driver wants done with it (its recovery action, Xid 154) decides.
"""

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final


class Xids(IntEnum):
    """What an Xid error means for the card, from harmless to worst."""

    APPLICATION = auto()  # a program's own fault
    NOTICE = auto()  # something was noted, or repaired
    SUSPECT = auto()  # it may pass: the card takes nothing new until it was clean for a while
    FATAL = auto()  # it does not pass by itself


class Remedy(IntEnum):
    """What brings a card back, from the easiest to the hardest; each includes those before it."""

    TIME = 0
    RESET = 1
    REBOOT = 2
    REPLACEMENT = 3


WORDS: Final = {
    Remedy.TIME: "wait",
    Remedy.RESET: "reset the card, or restart the node",
    Remedy.REBOOT: "restart the node; if it happens again, replace the card",
    Remedy.REPLACEMENT: "replace the card",
}


@dataclass(frozen=True, slots=True)
class XidKind:
    """One number of the catalogue."""

    name: str
    says: Xids  # what that means for the card
    remedy: Remedy = Remedy.TIME  # what brings it back


def _all(says: Xids, remedy: Remedy, names: dict[int, str]) -> dict[int, XidKind]:
    return {number: XidKind(name, says, remedy) for number, name in names.items()}


_COPY_ENGINES: Final = dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85), "copy engine exception")
_MORE_COPY_ENGINES: Final = dict.fromkeys(range(126, 136), "copy engine exception")
_VIDEO: Final = dict.fromkeys((60, 68, 82, 83, 84, 86, 88, 89, 139, 142), "video engine exception")
_MORE_VIDEO: Final = dict.fromkeys(range(96, 106), "video engine exception")
_NVLINK_5: Final = dict.fromkeys(range(144, 151), "NVLink error")

KINDS: Final[dict[int, XidKind]] = {
    **_all(
        Xids.APPLICATION,
        Remedy.TIME,
        {
            8: "GPU stopped processing",
            11: "invalid or corrupted push buffer stream",
            13: "graphics engine exception",
            25: "invalid or illegal push buffer stream",
            31: "GPU memory page fault",
            32: "invalid or corrupted push buffer stream",
            37: "driver firmware error",
            43: "GPU stopped processing",
            45: "preemptive cleanup after earlier errors",
            66: "illegal access by the driver",
            67: "illegal access by the driver",
            69: "graphics engine class error",
            80: "corrupted data sent to the GPU",
            109: "context switch timeout",
            141: "CUDA fast path error",
            **_COPY_ENGINES,
            **_MORE_COPY_ENGINES,
            **_VIDEO,
            **_MORE_VIDEO,
        },
    ),
    **_all(
        Xids.NOTICE,
        Remedy.TIME,
        {
            14: "test message",
            63: "GPU memory remapped or page retired",
            93: "InfoROM wear limit exceeded",
            106: "test message",
            107: "test message",
            137: "NVLink privilege error",
            154: "GPU recovery action changed",
            160: "channel retired",
            162: "power smoothing engaged again",
            163: "power smoothing disengaged",
            164: "power smoothing near the end of its life",
            165: "power smoothing at the end of its life",
        },
    ),
    **_all(
        Xids.SUSPECT,
        Remedy.TIME,
        {
            38: "driver firmware error",
            44: "graphics engine fault during a context switch",
            78: "vGPU start error",
            92: "high rate of single-bit memory errors",
            94: "contained memory error",
            121: "chip-to-chip link error",
            151: "key rotation error",
            156: "resource retired",
            157: "resource could not be retired",
            159: "coherent interface error",
            161: "channel could not be retired",
            168: "less GPU memory than there was",
            **_NVLINK_5,
        },
    ),
    **_all(
        Xids.FATAL,
        Remedy.RESET,
        {
            46: "GPU stopped processing",
            48: "uncorrectable (double bit) memory error",
            61: "internal micro-controller breakpoint",
            62: "internal micro-controller halt",
            64: "GPU memory could not be remapped or the page not retired",
            74: "NVLink error",
            95: "uncontained memory error",
            110: "security fault",
            119: "GSP firmware does not answer",
            120: "GSP firmware error",
            136: "NVLink training failed",
            140: "unrecovered memory error",
            143: "GPU initialization error",
            155: "NVLink error",
            158: "GPU timeout",
            167: "PCIe timeout",
            169: "internal micro-controller halt",
            171: "uncorrectable error in DRAM",
            172: "uncorrectable error in SRAM",
        },
    ),
    **_all(
        Xids.FATAL,
        Remedy.REBOOT,
        {54: "auxiliary power is not connected", 79: "GPU has fallen off the bus"},
    ),
}

UNKNOWN: Final = XidKind("an unknown error", Xids.SUSPECT)


def kind_of(xid: int) -> XidKind:
    """Look up an Xid; one that is not known makes a card suspect."""
    return KINDS.get(xid, UNKNOWN)
