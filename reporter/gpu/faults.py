"""What is wrong with a card at this moment, from its facts alone (pure).

A standing fault lasts as long as the facts show it. A card that no longer reports something has not recovered: MIG
mode, for example, hides remapped rows. An unknown fault is not an absent one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from reporter.gpu.facts import FabricState, GpuFacts, RecoveryAction
from reporter.gpu.xid import WORDS, Remedy, Xids

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
