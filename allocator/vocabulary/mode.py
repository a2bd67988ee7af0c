"""What koordgate does in a namespace: enforce, observe, or nothing."""

from collections.abc import Mapping
from enum import StrEnum

from allocator.vocabulary.names import MODE_LABEL


class Mode(StrEnum):
    """The mode of a namespace."""

    ENFORCE = "enforce"
    """Pods are translated, validated, given devices, and guarded."""
    SHADOW = "shadow"
    """What would be done is reported; nothing is changed, and nobody is refused."""
    OFF = "off"
    """Nothing is done."""


def mode_of(labels: Mapping[str, object], default: Mode) -> Mode:
    """The mode that the labels of a Namespace state; the default where they state none that is known.

    The selectors of the chart's webhooks say the same, so that the API server decides alike while no replica answers.
    """
    stated = labels.get(MODE_LABEL)
    return next((mode for mode in Mode if mode == stated), default)
