"""What containers that state no amount get together of one device, where their Pod does not state it (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from allocator.vocabulary.devicetype import FULL


@dataclass(frozen=True, slots=True)
class SlotDefaults:
    """The default slots of an installation.

    FLIP-53, "Public Interfaces": `taskmanager.defaultSlotResourceFraction`, and `taskmanager.numberOfTaskSlots` as 1/N.
    """

    # type's name -> percent of one device, or "1/N" for the slots of a device that has N of them
    types: Mapping[str, int | str] = field(default_factory=dict)
    # namespace -> the same, which precedes `types` there
    namespaces: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)

    def of(self, namespace: str) -> Mapping[str, int]:
        """The default slots in a namespace, in percent; N of 1/N fit on a device."""
        stated = {**self.types, **self.namespaces.get(namespace, {})}
        return {kind: slot if isinstance(slot, int) else int(FULL * Fraction(slot)) for kind, slot in stated.items()}


NO_DEFAULTS: Final = SlotDefaults()
