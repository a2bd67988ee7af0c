"""What is wrong with a card (pure): what Xid errors mean, and what its own readings show.

Names and what to do are NVIDIA's "Xid catalog" (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
Catalog", column "Immediate Action"): RESTART_APP and IGNORE leave a card in service, RESET_GPU and RESTART_BM do not.
13, 31, 43, 45, 68 and 109 are the application errors that NVIDIA's device plugin (internal/rm/health.go) and
Koordinator (pkg/koordlet, states_device_linux.go) ignore; for 109 the catalogue is stricter and asks for a reset.
NVML reports only the number. If the catalogue's answer depends on more, the error makes the card suspect, and what the
driver wants done with it (its recovery action, Xid 154) decides.

A standing fault lasts as long as the facts show it. A card that no longer reports something has not recovered: MIG
mode, for example, hides remapped rows. An unknown fault is not an absent one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final

from reporter.gpu.facts import FabricState, GpuFacts, RecoveryAction


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
    **_all(Xids.FATAL, Remedy.REBOOT, {54: "auxiliary power is not connected", 79: "GPU has fallen off the bus"}),
}

UNKNOWN: Final = XidKind("an unknown error", Xids.SUSPECT)


def kind_of(xid: int) -> XidKind:
    """Look up an Xid; one that is not known makes a card suspect."""
    return KINDS.get(xid, UNKNOWN)


MANY_RETIRED_PAGES: Final = 60  # NVIDIA, "Dynamic Page Retirement": from here on a board must be replaced


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a card."""

    says: Xids  # SUSPECT or FATAL
    remedy: Remedy  # what returns the card to service
    reason: str  # one word, for conditions: "RowRemapFailed"
    text: str  # what is wrong, in plain words
    xid: int | None = None  # the number of the Xid error, if the fault is one

    @property
    def weight(self) -> tuple[int, int]:
        """A key that orders faults, the worst last."""
        return (self.says, self.remedy)

    @property
    def message(self) -> str:
        """What is wrong, and what to do."""
        return f"{self.text}; {WORDS[self.remedy]}" if self.remedy is not Remedy.TIME else self.text


def _fault(says: Xids, remedy: Remedy, reason: str, text: str) -> tuple[str, Fault]:
    return reason, Fault(says, remedy, reason, text)


STANDING: Final[Mapping[str, Fault]] = dict(
    [
        _fault(Xids.FATAL, Remedy.REBOOT, "GpuLost", "the driver does not reach the card any more"),
        _fault(Xids.FATAL, Remedy.RESET, "GpuNeedsReset", "the driver refuses the card until it is reset"),
        _fault(Xids.FATAL, Remedy.REBOOT, "RecoveryReboot", "the driver asks for a restart of the node"),
        _fault(Xids.FATAL, Remedy.RESET, "RecoveryReset", "the driver asks for a reset of the card"),
        _fault(Xids.FATAL, Remedy.RESET, "RecoveryDue", "the driver asks to drain the card, and for more after that"),
        _fault(Xids.FATAL, Remedy.REPLACEMENT, "RowRemapFailed", "a broken memory row could not be replaced"),
        _fault(Xids.FATAL, Remedy.REPLACEMENT, "SramWorn", "too many uncorrectable errors in on-chip memory"),
        _fault(Xids.FATAL, Remedy.REPLACEMENT, "ManyPagesRetired", f"{MANY_RETIRED_PAGES} or more pages are retired"),
        _fault(Xids.FATAL, Remedy.RESET, "FabricFailed", "the card could not join its NVLink fabric"),
        _fault(Xids.SUSPECT, Remedy.RESET, "PageRetirementPending", "bad memory pages are in use until a reset"),
        _fault(Xids.SUSPECT, Remedy.TIME, "FabricNotReady", "the NVLink fabric is not ready: does fabric manager run?"),
    ]
)

_ACTIONS: Final = {
    RecoveryAction.RESET: "RecoveryReset",
    RecoveryAction.REBOOT: "RecoveryReboot",
    RecoveryAction.OTHER: "RecoveryDue",
}


def _recovery(wanted: str) -> Callable[[GpuFacts], bool | None]:
    return lambda gpu: None if gpu.recovery is None else _ACTIONS.get(gpu.recovery) == wanted


def _fabric_failed(gpu: GpuFacts) -> bool | None:
    if gpu.fabric is None:
        return None
    return gpu.fabric.state is FabricState.COMPLETED and gpu.fabric.status != 0


def _fabric_not_ready(gpu: GpuFacts) -> bool | None:
    return None if gpu.fabric is None else gpu.fabric.state is not FabricState.COMPLETED


def _many_pages(gpu: GpuFacts) -> bool | None:
    return None if gpu.wear.retired_pages is None else gpu.wear.retired_pages >= MANY_RETIRED_PAGES


# Whether a card that answers shows each standing fault; None if unknown.
_SHOWS: Final[Mapping[str, Callable[[GpuFacts], bool | None]]] = {
    "GpuLost": lambda _: False,
    "GpuNeedsReset": lambda _: False,
    "RecoveryReboot": _recovery("RecoveryReboot"),
    "RecoveryReset": _recovery("RecoveryReset"),
    "RecoveryDue": _recovery("RecoveryDue"),
    "RowRemapFailed": lambda gpu: gpu.wear.remap_failed,
    "SramWorn": lambda gpu: gpu.wear.sram_worn,
    "ManyPagesRetired": _many_pages,
    "FabricFailed": _fabric_failed,
    "PageRetirementPending": lambda gpu: gpu.wear.retirement_pending,
    "FabricNotReady": _fabric_not_ready,
}


def standing(gpu: GpuFacts, before: frozenset[str] = frozenset()) -> frozenset[str]:
    """Name the standing faults of a card that answers.

    `before`: those that it had; they stay if the card does not report on them.
    """
    found = set()
    for reason, shows in _SHOWS.items():
        shown = shows(gpu)
        if shown or (shown is None and reason in before):
            found.add(reason)
    return frozenset(found)


def notes(gpu: GpuFacts) -> tuple[str, ...]:
    """Remarks about a card that are no reason to take it out of service.

    Pending remaps and repairs do not affect running work until the next reset (NVIDIA, "A100 GPU memory error
    management", "Error Recovery and Response Flags").
    """
    said = []
    if gpu.wear.remap_pending:
        said.append("broken memory rows are replaced at the next reset; work is not affected until then")
    if gpu.wear.repair_pending:
        said.append("a repair is made at the next reset; work is not affected until then")
    if not gpu.xid_events:
        said.append("it does not report Xid errors; only its readings show faults")
    if gpu.memory is None:
        said.append("it does not report its amount of memory, so no share of it can be allocated")
    return tuple(said)
