"""The form of the tables: a Pod in another product's dialect, and what it asks for here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from builders import GIB, MIB, ask, container, pod, sidecar_container
from npus import TYPES as NPUS

from allocator.vocabulary.asks import DeviceAsk
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from webhook.settings import parse, types_of

Raw = dict[str, Any]
NV = "nvidia"
ALWAYS = ("koordinator", "nvidia", "npu", "mig")  # tables of names that no setting turns off


def share(
    count: int = 1, *, core: int = 0, ratio: int | None = None, mib: int = 0, memory: int = 0, vendor: str = NV
) -> DeviceAsk:
    """The same share of each of some cards, with memory in MiB or in bytes."""
    return ask(count, core=core, ratio=ratio, memory=mib * MIB or memory or None, vendor=vendor)


def cards(count: int = 1, vendor: str = NV) -> DeviceAsk:
    """Whole cards."""
    return ask(count, core=100, ratio=100, vendor=vendor)


@dataclass(frozen=True)
class Row:
    """A Pod, and what becomes of it.

    Attributes:
        name: says what is special.
        limits: of the app containers a, b, ..., requests alike.
        asks: container -> what it asks for; empty for nothing.
        refused: part of the refusal; "" if it is admitted.
        warned: part of a warning; "" if there is none.
        source: the product's file and function, or test, that the row follows; "ours" where koordgate differs on
            purpose, which docs/reference/dialects.md tells.
        init: limits of init containers i, j, ...
        sidecars: limits of sidecars s, t, ...
        annotations: of the Pod.
        settings: keys of the dialect's settings besides `enabled`.
        one_card: whether all containers share one card.
        limit: container -> the bytes of each of its cards that it may use, where these are more than it asks for.
        portion: container -> the 100000ths of each of its cards, likewise.
        stored: whether the API server stores such a Pod if no webhook refuses it.
    """

    name: str
    limits: tuple[Mapping[str, Any], ...] = ({},)
    asks: Mapping[str, DeviceAsk] = field(default_factory=dict)
    refused: str = ""
    warned: str = ""
    source: str = ""
    init: tuple[Mapping[str, Any], ...] = ()
    sidecars: tuple[Mapping[str, Any], ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    one_card: bool = False
    limit: Mapping[str, int] = field(default_factory=dict)
    portion: Mapping[str, int] = field(default_factory=dict)
    stored: bool = True

    def pod(self, **fields: Any) -> Raw:
        """The Pod."""
        first = [container(n, limits=one, requests=one) for n, one in zip("ijklm", self.init, strict=False)]
        first += [sidecar_container(n, limits=one, requests=one) for n, one in zip("stu", self.sidecars, strict=False)]
        apps = [container(n, limits=one, requests=one) for n, one in zip("abcdefgh", self.limits, strict=False)]
        return pod(*apps, init=first, annotations=self.annotations or None, **fields)


def types(dialect: str, settings: Mapping[str, Any] | None = None) -> DeviceTypes:
    """The table of an installation in which one dialect is on."""
    return _types(dialect, tuple(sorted((settings or {}).items())))


@cache
def _types(dialect: str, settings: tuple[tuple[str, Any], ...]) -> DeviceTypes:
    if dialect in ALWAYS:
        return NPUS if dialect == "npu" else BUILT_IN
    keys = "".join(f", {key}: {value}" for key, value in settings)
    return types_of(parse(f"dialects: {{{dialect}: {{enabled: true{keys}}}}}"))


__all__ = ["ALWAYS", "GIB", "MIB", "NV", "Row", "cards", "share", "types"]
