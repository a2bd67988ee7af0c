"""The mix of typical requests that an administrator states."""

from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta

from allocator.request.typical import stated
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.mix import MAX_TYPICAL, MAX_WEIGHT, Mix, MixError, mix_of
from koordgate.settings import Section

MOST_STATED: Final = MAX_WEIGHT // MAX_TYPICAL
"""The most that a request may weigh, so that all of a mix stay within their bound."""


class TypicalSettings(Section, frozen=True):
    """One typical request.

    Attributes:
        requests: resources as a container of the Pod requests them: CPU, memory, and devices in any dialect that is
            on.
        models: the models that its devices may have; any where empty.
        weight: how common it is; only its ratio to the others' counts.
    """

    requests: dict[str, str | int]
    models: tuple[str, ...] = ()
    weight: Annotated[int, Meta(ge=1, le=MOST_STATED)] = 1


StatedMix = Annotated[tuple[TypicalSettings, ...], Meta(max_length=MAX_TYPICAL)]


def read_mix(entries: Sequence[TypicalSettings], types: DeviceTypes) -> Mix:
    """Read the stated mix; empty where none is stated.

    Raises:
        ValueError: a request cannot be read or is out of bounds, or none asks for devices.
    """
    requests = []
    for number, one in enumerate(entries):
        try:
            requests.append(stated(one.requests, one.models, one.weight, types))
        except MixError as error:
            raise ValueError(f"scheduler.mix[{number}]: {error}") from error
    if requests and not any(one.ask for one in requests):
        raise ValueError("scheduler.mix: no request asks for devices; add those that the cluster's Pods make")
    return mix_of(requests)
