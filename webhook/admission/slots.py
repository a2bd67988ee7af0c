"""What containers that state no amount get together of one device, where their Pod does not state it (pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class SlotDefaults:
    """The default slots of an installation (FLIP-53: `taskmanager.defaultSlotResourceFraction`).

    Attributes:
        types: type's name -> percent of one device.
        namespaces: namespace -> the same, which precedes `types` there.
    """

    types: Mapping[str, int] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def of(self, namespace: str) -> Mapping[str, int]:
        """The default slots in a namespace."""
        own = self.namespaces.get(namespace)
        return self.types if own is None else {**self.types, **own}


NO_DEFAULTS: Final = SlotDefaults()
