"""The Node's annotation koordgate.io/delivery-proved: when a Pod last showed how the node gives containers cards."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, Self

from allocator.wire.values import UNREADABLE, as_json, as_object, as_text

DELIVERY_PROVED: Final = "koordgate.io/delivery-proved"
_LONGEST: Final = 4096  # characters of the annotation
_TIME: Final = "%Y-%m-%dT%H:%M:%SZ"


class Result(StrEnum):
    """What a Pod showed about delivery."""

    RIGHT = "right"  # it saw the cards that it was given, and no others
    MISSING = "missing"  # it ran without a card that it was given
    OTHERS = "others"  # it saw cards that it was not given
    NOT_CREATED = "not-created"  # its container could not be created


@dataclass(frozen=True, slots=True)
class DeliveryProof:
    """One record.

    Attributes:
        at: when the Pod ran.
        way: in which the cards came, a `Delivery`; "" where that was not known.
        result: what it showed.
        image: that it ran.
    """

    at: datetime
    way: str
    result: Result
    image: str

    @property
    def when(self) -> str:
        """The time, for people."""
        return f"{self.at:%Y-%m-%d %H:%M} UTC"

    def write(self) -> str:
        """Write the annotation."""
        stated = {"time": self.at.strftime(_TIME), "way": self.way, "result": str(self.result), "image": self.image}
        return json.dumps(stated, separators=(",", ":"))

    @classmethod
    def read(cls, text: object) -> Self | None:
        """Read the annotation; None if it is missing, or is no such record: it then proves nothing."""
        if not isinstance(text, str) or len(text) > _LONGEST:
            return None
        try:
            found = as_object(as_json(text))
            at = datetime.strptime(as_text(found["time"]), _TIME).replace(tzinfo=UTC)
            return cls(at, str(found.get("way", "")), Result(as_text(found["result"])), str(found.get("image", "")))
        except UNREADABLE:
            return None
