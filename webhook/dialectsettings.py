"""The settings of one of other products' dialects, and what the dialect is in an installation that has them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Final

from msgspec import Meta

from allocator.quantity import QuantityError, format_bytes, to_int
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.meant import did_you_mean
from koordgate.settings import Section

_MOST_BYTES: Final = 2**40
NamespaceName = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]


class DialectSettings(Section, frozen=True):
    """Another product's dialect.

    Attributes:
        enabled: whether Pods may ask in it.
        namespaces: only Pods of these may; all, where empty.
        memory_unit: what one of its units of memory is, such as 1Mi; if empty, the product's default.
        default_memory: the memory of each card for containers that state none, such as 4Gi; if empty, all of it.
        default_cores: percent of each card's compute for containers that state none; 0 for no limit.
    """

    enabled: bool = False
    namespaces: tuple[NamespaceName, ...] = ()
    memory_unit: str = ""
    default_memory: str = ""
    default_cores: Annotated[int, Meta(ge=0, le=100)] = 0


def installed(settings: Mapping[str, DialectSettings]) -> list[Dialect]:
    """All dialects as their products' installations read them, on or off, in the table's order.

    Raises:
        ValueError: a dialect is unknown, or its settings are wrong.
    """
    known = [one.name for one in PEERS]
    if strange := sorted(settings.keys() - set(known)):
        raise ValueError(
            f"dialects.{strange[0]}: there is no such dialect; there are {', '.join(known)}"
            f"{did_you_mean(strange[0], known)}"
        )
    return [as_installed(one, settings.get(one.name, DialectSettings())) for one in PEERS]


def dialects_on(settings: Mapping[str, DialectSettings]) -> tuple[list[Dialect], dict[str, list[Dialect]]]:
    """The dialects that are on in all namespaces, and by namespace those that are on there.

    Raises:
        ValueError: as for `installed`.
    """
    everywhere: list[Dialect] = []
    scoped: dict[str, list[Dialect]] = {}
    for read in installed(settings):  # in the table's order, which decides where names are in several
        chosen = settings.get(read.name, DialectSettings())
        if not chosen.enabled:
            continue
        if not chosen.namespaces:
            everywhere.append(read)
        for namespace in chosen.namespaces:
            scoped.setdefault(namespace, []).append(read)
    return everywhere, scoped


def as_installed(dialect: Dialect, chosen: DialectSettings) -> Dialect:
    """A dialect as an installation of its product reads it.

    Raises:
        ValueError: its unit of memory is wrong or missing, or the product has no such settings.
    """
    return _defaulted(_sized(dialect, chosen), chosen)


def _sized(dialect: Dialect, chosen: DialectSettings) -> Dialect:
    """A dialect with the unit of memory of this installation.

    Raises:
        ValueError: the unit is wrong, or missing where the dialect is on.
    """
    where = f"dialects.{dialect.name}.memoryUnit"
    if not chosen.memory_unit:
        if chosen.enabled and dialect.sized and not dialect.unit:
            raise ValueError(f"{where} is missing: {dialect.title} has no default; state what one unit is, such as 1Mi")
        return dialect
    if not dialect.sized:
        raise ValueError(f"{where}: {dialect.title} counts no memory in units of an installation; remove it")
    return dialect.with_unit(_read_bytes(where, chosen.memory_unit, "one unit is"))


def _defaulted(dialect: Dialect, chosen: DialectSettings) -> Dialect:
    """A dialect with what this installation gives to containers that leave it out.

    Raises:
        ValueError: the product has no such settings, or the memory is wrong.
    """
    keys = {"defaultMemory": chosen.default_memory, "defaultCores": chosen.default_cores}
    if wrong := [] if dialect.defaulted else [key for key, value in keys.items() if value]:
        raise ValueError(f"dialects.{dialect.name}.{wrong[0]}: {dialect.title} has no such setting; remove it")
    where, size = f"dialects.{dialect.name}.defaultMemory", 0
    if chosen.default_memory:
        size = _read_bytes(where, chosen.default_memory, "the memory of a card is")
    return replace(dialect, size=size, core=chosen.default_cores)


def _read_bytes(where: str, quantity: str, what: str) -> int:
    """Read a quantity of bytes.

    Raises:
        ValueError: it is none, or out of bounds.
    """
    try:
        amount = to_int(quantity)
    except QuantityError as error:
        raise ValueError(f"{where}: {error}") from error
    if not 1 <= amount <= _MOST_BYTES:
        raise ValueError(f"{where} is {quantity}: {what} from 1 byte to {format_bytes(_MOST_BYTES)}")
    return amount
