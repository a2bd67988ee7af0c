"""Device types are data: one entry says what a device is made of, how it is counted, and how it is shown.

GPU, RDMA and FPGA are three entries; a configuration adds more ("Automatically recognize different kind devices. When
a new device added, we don't need modify any code": the device proposal, "Scheduling"), also of several resources, as
GPUs and NPUs have. Dialects define how a type is asked for (`allocator.vocabulary.dialects`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

from allocator.vocabulary.device import HOPPER, RATIO, Board
from allocator.vocabulary.dialects import DIALECTS, PEERS, Dialect, Form, Term
from allocator.vocabulary.names import (
    DOMAINS,
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    QUOTA_CPUS,
    QUOTA_DOMAIN,
    RDMA,
    TYPE_FPGA,
    TYPE_GPU,
    TYPE_RDMA,
    VISIBLE_DEVICES_ENV,
    is_quota_resource,
)

FULL: Final = 100  # percent: one whole device


class Unit(StrEnum):
    """What a number counts.

    PERCENT of a device (above 100: whole devices); DEVICES, whole ones only; UNITS of a device that holds any number
    of them (places in a queue, addresses of a pool, cores); BYTES of a device.
    """

    PERCENT = "percent"
    DEVICES = "devices"
    UNITS = "units"
    BYTES = "bytes"


class Template(NamedTuple):
    """A share into which the vendor divides a device: a part of a device is available only in these sizes."""

    name: str  # as the vendor spells it, such as "vir04"
    # of one device, one for each of the type's tails; None if it follows from the other memory tail
    amounts: tuple[int | None, ...]
    models: tuple[str, ...] = ()  # the models that offer it; empty: all

    def covers(self, asked: Iterable[int | None]) -> bool:
        """Return whether it has at least the asked amount of everything."""
        return all(not want or (has is not None and has >= want) for has, want in zip(self.amounts, asked, strict=True))


@dataclass(frozen=True, eq=False)
class DeviceType:
    """What devices of one type consist of, and how they are counted and shown."""

    name: str  # as Device objects and the device-allocated annotation spell it
    # the resources that a device consists of, in the order in which people read them; an ask has one amount for each
    tails: tuple[str, ...]
    unit: Unit = Unit.PERCENT
    # of each tail; by default that of the plain resource, with percent in place of whole devices
    units: tuple[Unit, ...] = ()
    words: tuple[str, ...] = ()  # name of each tail in messages; by default the tail
    plain: str = ""  # the tail that states all of a device at once: "gpu" states compute and memory alike
    # the tail that states over how many devices an ask is split; "" for none. Of the built-in types only GPU has one.
    split: str = ""
    # the tails (bytes, percent) that state the same amount in two units; each follows from the other
    memory: tuple[str, str] | None = None
    domains: tuple[str, ...] = ()  # the domains in which the tails are spelled; empty for a configured type
    names: Mapping[str, str] = field(default_factory=dict)  # tail -> its one full name, for a configured type
    environment: str = ""  # the variable that lists a container's devices by id; "" for none
    nothing: str = ""  # that variable's value for a container that asks for no such device
    # tail -> the variable that lists what a container may use of it on each of its devices
    limits: Mapping[str, str] = field(default_factory=dict)
    # indices into `tails`, the most important first: what is compared to find how well an ask fits
    fit: tuple[int, ...] = (0,)
    noun: str = "device"  # one device, as messages name it
    plural: str = ""  # several devices, as messages name them; by default derived from the name
    # bytes are written beside a ratio if all devices that a Pod may get have the same memory
    states_memory: bool = False
    # a device without a model of its own has the model that its Device object is labelled with
    model_of_node: bool = False
    partitioned: bool = False  # whole devices may have to be a set of the node's partition table
    boards: tuple[Board, ...] = ()  # partition tables by model, for nodes that state none
    # the shares that a part of a device must be, smallest first; empty: any part is available
    templates: tuple[Template, ...] = ()

    def __post_init__(self) -> None:
        each = Unit.UNITS if self.unit is Unit.UNITS else Unit.PERCENT
        object.__setattr__(self, "units", self.units or (each,) * len(self.tails))
        object.__setattr__(self, "words", self.words or self.tails)
        object.__setattr__(self, "plural", self.plural or f"{self.name} devices")

    @cached_property
    def percent(self) -> tuple[bool, ...]:
        """Whether each tail counts in percent."""
        return tuple(unit is Unit.PERCENT for unit in self.units)

    @cached_property
    def whole(self) -> tuple[int | None, ...]:
        """The amounts by which all of a device is asked for: 100 percent each, and none in other units."""
        return tuple(FULL if percent else None for percent in self.percent)

    @cached_property
    def sized(self) -> tuple[int, int]:
        """The index in `tails` of the resource by which devices are large, and how much of it counts as 1.

        Bytes count in whole GiB: cards of one make may differ by less.
        """
        return self.fit[0], 2**30 if self.units[self.fit[0]] is Unit.BYTES else 1

    @cached_property
    def charged(self) -> Mapping[str, str]:
        """Tail, or the plain tail -> the resource that quotas count for it, in the tail's unit.

        The plain one of a type with several tails is in percent of a device.
        """
        named = [tail for tail in dict.fromkeys((self.plain, *self.tails)) if tail]
        # The tails of built-in types differ between types already.
        own = {tail: self.name if tail == self.plain else f"{self.name}-{tail}" for tail in named}
        return {tail: f"{QUOTA_DOMAIN}/{tail if self.domains else own[tail]}" for tail in named}

    def __eq__(self, other: object) -> bool:
        """Compare by value; nearly always both are the same object."""
        if self is other or not isinstance(other, DeviceType):
            return self is other
        return all(getattr(self, one.name) == getattr(other, one.name) for one in fields(self))

    def __hash__(self) -> int:
        """Hash the name alone: requests that name a type are looked up far more often than types are compared."""
        return hash(self.name)

    @property
    def simple(self) -> bool:
        """Whether a device consists of the plain resource only."""
        return self.tails == (self.plain,)

    @property
    def restated(self) -> str:
        """The tail of the bytes that a ratio states as well; "" for none."""
        return self.memory[0] if self.memory else ""

    def in_bytes(self, tail: str) -> bool:
        """Return whether a tail counts bytes."""
        return tail in self.tails and self.units[self.tails.index(tail)] is Unit.BYTES

    def counted(self, amounts: Sequence[int]) -> tuple[int, ...]:
        """What quotas count of one device of which these amounts are taken.

        `amounts`: one for each of `tails`, in the tail's unit. Returns one for each of `charged`, in its order.
        """
        if self.simple:
            return tuple(amounts)
        share = max([amount for amount, percent in zip(amounts, self.percent, strict=True) if percent], default=FULL)
        return share, *(amount for tail, amount in zip(self.tails, amounts, strict=True) if tail != self.plain)

    def resource_name(self, domain: str, tail: str) -> str:
        """Spell one of the type's resources in a domain; a configured type has one spelling of each."""
        return f"{domain}/{tail}" if self.domains else self.names.get(tail, tail)

    def spellings(self, tail: str) -> tuple[str, ...]:
        """All canonical spellings of one of the type's resources."""
        if self.domains:
            return tuple(f"{domain}/{tail}" for domain in self.domains)
        return (self.names[tail],) if tail in self.names else ()

    def template(self, name: str) -> Template:
        """The template of this name."""
        return next(one for one in self.templates if one.name == name)

    def template_resource(self, name: str) -> str:
        """Spell the resource that counts devices with this template's share: `huawei.com/npu-vir04`."""
        return f"{self.names[self.plain]}-{name}"

    def template_of(self, amounts: Mapping[str, int]) -> str:
        """Name the template that has these amounts; "" if none has."""
        for one in self.templates:
            if all(has is None or amounts.get(tail) == has for tail, has in zip(self.tails, one.amounts, strict=True)):
                return one.name
        return ""

    def own_dialects(self) -> tuple[Dialect, ...]:
        """The dialect that a configured type brings along; none for a type whose dialects are in the table."""
        if not self.names:
            return ()
        whole = self.unit is Unit.DEVICES
        terms = [Term(name, tail, counts=whole and tail == self.plain) for tail, name in self.names.items()]
        terms += [Term(self.template_resource(one.name), self.split, template=one.name) for one in self.templates]
        return (Dialect(next(iter(self.names.values())), self.name, tuple(terms)),)


class ResourceName(NamedTuple):
    """What a name means by itself: the type, the first dialect that contains it, and its term there."""

    type: DeviceType
    dialect: Dialect
    term: Term

    @property
    def tail(self) -> str:
        """The tail that it states."""
        return self.term.states

    @property
    def counts_devices(self) -> bool:
        """Whether it counts whole devices, not percent."""
        return self.term.counts


class DeviceTypeError(ValueError):
    """A device type or a dialect conflicts with another; the message says which name is taken."""


@dataclass(frozen=True)
class DeviceTypes:
    """The table of types, and the dialects in which they are asked for."""

    types: tuple[DeviceType, ...]  # in the order in which their devices are chosen
    dialects: tuple[Dialect, ...] = DIALECTS  # the table of dialects; those of configured types come with the types
    # dialects that are known and not read, but for those with a name of another type
    off: tuple[Dialect, ...] = field(default=(), compare=False)
    # namespace -> the table for its Pods, where it differs
    scoped: Mapping[str, "DeviceTypes"] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for at, one in enumerate(self.types):
            if any(one.name == other.name for other in self.types[:at]):
                raise DeviceTypeError(f"device type {one.name} exists already; give the new one another name")
            if one.domains and one.split and not one.states_memory:
                # Translated into kubernetes.io it would be lost: only the split of such a type is read back.
                raise DeviceTypeError(
                    f"device type {one.name}: {one.split} would be lost in translation; only a type of the settings "
                    "may be split over devices"
                )
        variables: dict[str, str] = {}
        for one in self.types:
            for variable in filter(None, (one.environment, *one.limits.values())):
                whose = variables.setdefault(variable, one.name)
                if whose != one.name:
                    raise DeviceTypeError(
                        f"variable {variable} of device type {one.name} is already that of {whose}; use another"
                    )
        _check_charged(self.types, self.resources)
        taken = (self.resources, self.annotations)
        object.__setattr__(self, "off", tuple(one for one in self.off if _is_free(one, *taken)))

    @cached_property
    def known(self) -> "DeviceTypes":
        """The table in which dialects that are off are read too, as a translated Pod's annotation is."""
        return DeviceTypes(self.types, (*self.dialects, *self.off)) if self.off else self

    @cached_property
    def by_name(self) -> Mapping[str, DeviceType]:
        """Type's name -> type."""
        return {one.name: one for one in self.types}

    @cached_property
    def spoken(self) -> Mapping[str, tuple[Dialect, ...]]:
        """Type's name -> its dialects, in the table's order."""
        return {
            one.name: (*(each for each in self.dialects if each.type == one.name), *one.own_dialects())
            for one in self.types
        }

    @cached_property
    def resources(self) -> Mapping[str, ResourceName]:
        """Full resource name -> what it means."""
        return self._meanings(lambda dialect: dialect.terms)

    @cached_property
    def annotations(self) -> Mapping[str, ResourceName]:
        """Key of a Pod's annotation that asks for devices -> what it means."""
        return self._meanings(lambda dialect: dialect.annotations)

    @cached_property
    def said(self) -> Mapping[str, ResourceName]:
        """Names of annotations, and of forms of them by which Pods ask -> what they mean."""
        return self._meanings(
            lambda dialect: (*dialect.annotations, *(form.term for form in dialect.forms if form.states))
        )

    def _meanings(self, terms: Callable[[Dialect], Iterable[Term]]) -> dict[str, ResourceName]:
        known: dict[str, ResourceName] = {}
        for one in self.types:
            for dialect in self.spoken[one.name]:
                _add(known, one, dialect, terms(dialect))
        return known

    @cached_property
    def annotated(self) -> tuple[tuple[DeviceType, Dialect], ...]:
        """The types and dialects that ask by annotations."""
        return tuple(
            (one, dialect)
            for one in self.types
            for dialect in self.spoken[one.name]
            if dialect.annotations or dialect.forms
        )

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """The beginnings of the forms of annotations that ask."""
        return tuple(dict.fromkeys(one for _, dialect in self.annotated for one in dialect.beginnings))

    @cached_property
    def selections(self) -> frozenset[str]:
        """The annotations by which a dialect's Pods choose among devices."""
        return frozenset(key for one in (*self.dialects, *self.off) for key in one.selects.keys)

    @cached_property
    def domains(self) -> frozenset[str]:
        """The domains of the resources of other products' dialects."""
        theirs = (term.name for one in self.dialects if not one.own for term in one.terms)
        return frozenset(name.partition("/")[0] for name in theirs)

    @cached_property
    def restated(self) -> frozenset[tuple[str, str]]:
        """The (type, tail) of the bytes that a ratio states as well."""
        return frozenset((one.name, one.restated) for one in self.types if one.restated)

    @cached_property
    def charged_bytes(self) -> frozenset[str]:
        """The resources that quotas count in bytes."""
        return frozenset(one.charged[tail] for one in self.types for tail in one.tails if one.in_bytes(tail))

    def with_types(self, more: Iterable[DeviceType]) -> "DeviceTypes":
        """Return the table with further types.

        Raises DeviceTypeError: a name or a resource is taken.
        """
        return DeviceTypes((*self.types, *more), self.dialects, self.off)

    def with_dialects(self, more: Iterable[Dialect]) -> "DeviceTypes":
        """Return the table with further dialects of its types, after the existing ones.

        Raises DeviceTypeError: a resource is another type's.
        """
        added = tuple(more)
        names = {one.name for one in added}
        return DeviceTypes(self.types, (*self.dialects, *added), tuple(o for o in self.off if o.name not in names))

    def with_scopes(self, scoped: Mapping[str, "DeviceTypes"]) -> "DeviceTypes":
        """Return the table with other tables for the Pods of some namespaces."""
        return DeviceTypes(self.types, self.dialects, self.off, dict(scoped))

    def form_of(self, key: str) -> tuple[Dialect, Form] | None:
        """What an annotation that names a container in its key is; None for one that does not ask for devices."""
        if not key.startswith(self.beginnings):
            return None
        found = ((dialect, dialect.form_of(key)) for _, dialect in self.annotated)
        return next(((dialect, form) for dialect, form in found if form is not None), None)

    def asks_in(self, annotations: Collection[str]) -> bool:
        """Whether any of these annotations asks for devices."""
        if not self.annotations.keys().isdisjoint(annotations):
            return True
        return bool(self.beginnings) and any(self.form_of(key) is not None for key in annotations)

    def within(self, namespace: str) -> "DeviceTypes":
        """The table for the Pods of a namespace."""
        return self.scoped.get(namespace, self) if self.scoped else self


def _is_free(dialect: Dialect, *taken: Mapping[str, ResourceName]) -> bool:
    """Return whether none of a dialect's names belongs to another type."""
    meanings = (known.get(name) for known in taken for name in dialect.by_name)
    return all(meaning is None or meaning.type.name == dialect.type for meaning in meanings)


def _add(known: dict[str, ResourceName], kind: DeviceType, dialect: Dialect, terms: Iterable[Term]) -> None:
    """Note what a dialect's names mean; a name that an earlier dialect of the type has keeps its first meaning.

    Raises DeviceTypeError: a name belongs to another type, or is in the dialect twice.
    """
    for term in terms:
        first = known.setdefault(term.name, ResourceName(kind, dialect, term))
        if first.type.name != kind.name:
            raise DeviceTypeError(
                f"resource {term.name} of device type {kind.name} is already that of {first.type.name}"
            )
        if first.dialect is dialect and first.term is not term:
            raise DeviceTypeError(f"resource {term.name} of device type {kind.name} is named twice; name it once")


def _check_charged(types: Iterable[DeviceType], resources: Iterable[str]) -> None:
    """Check that quotas count no two things under one name.

    Raises DeviceTypeError: they would; the message says which.
    """
    charged = {QUOTA_CPUS: "CPUs"}
    for one in types:
        for name in one.charged.values():
            whose = charged.setdefault(name, one.name)
            if whose != one.name:
                raise DeviceTypeError(
                    f"device type {one.name}: quotas count {name}, which is already that of {whose}; use another name"
                )
    taken = next(filter(is_quota_resource, resources), "")
    if taken:
        raise DeviceTypeError(f"resource {taken}: the domain {QUOTA_DOMAIN} is koordgate's own; use another")


GPU_TYPE: Final = DeviceType(
    TYPE_GPU,
    tails=(GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO),
    units=(Unit.PERCENT, Unit.BYTES, Unit.PERCENT),
    words=("core", "memory", "memory"),
    plain=GPU,
    split=GPU_SHARED,
    memory=(GPU_MEMORY, GPU_MEMORY_RATIO),
    domains=DOMAINS,
    environment=VISIBLE_DEVICES_ENV,
    nothing="void",
    limits={GPU_MEMORY: "KOORDGATE_GPU_MEMORY_BYTES", GPU_CORE: "KOORDGATE_GPU_CORE_PERCENT"},
    fit=(1, 0),  # memory first: it cannot be shared in time
    noun="card",
    plural="GPUs",
    states_memory=True,
    model_of_node=True,
    partitioned=True,
    boards=(HOPPER,),
)
RDMA_TYPE: Final = DeviceType(TYPE_RDMA, tails=(RDMA,), plain=RDMA, domains=DOMAINS)
FPGA_TYPE: Final = DeviceType(TYPE_FPGA, tails=(FPGA,), plain=FPGA, domains=DOMAINS)
BUILT_IN: Final = DeviceTypes((GPU_TYPE, RDMA_TYPE, FPGA_TYPE), off=PEERS)


def own_type(name: str, resource: str, unit: Unit, environment: str = "") -> DeviceType:
    """Make a type that the settings declare: one resource of one name."""
    return DeviceType(name, tails=(name,), unit=unit, plain=name, names={name: resource}, environment=environment)


class Part(NamedTuple):
    """One of the resources that a device consists of.

    Attributes:
        name: as records, messages and templates name it.
        resource: the full name under which Pods ask for it.
        unit: percent, bytes or units.
        ratio: for bytes, the full name under which Pods ask for them in percent of a device; "" for none.
    """

    name: str
    resource: str
    unit: Unit = Unit.PERCENT
    ratio: str = ""


class TemplateSpec(NamedTuple):
    """A template as declared: amounts by the name of a part, or in percent by the name of bytes with `-ratio`."""

    name: str
    amounts: Mapping[str, int]
    models: tuple[str, ...] = ()


def composed_type(
    plain: DeviceType,
    parts: Sequence[Part],
    *,
    split: str = "",
    templates: Iterable[TemplateSpec] = (),
    boards: Iterable[Board] = (),
    partitioned: bool = False,
) -> DeviceType:
    """Make a type whose devices consist of several resources.

    Args:
        plain: the type as `own_type` makes it. Its resource asks for all parts of a device alike, in percent or as
            whole devices.
        parts: what a device consists of, in the order in which people read them.
        split: the full name that states over how many devices the amounts are split; "" for none.
        templates: the only shares of a device that are available; empty: any share is.
        boards: partition tables by model.
        partitioned: whole devices follow the node's partition table, whether stated or by board.

    Raises:
        DeviceTypeError: the declarations contradict each other; the message says which.
    """
    name = plain.name
    if plain.unit is Unit.UNITS:
        raise DeviceTypeError(f"device type {name}: with amounts its unit is percent or devices, not units")
    _check_parts(plain, parts)
    tails: list[str] = []
    units: list[Unit] = []
    words: list[str] = []
    names = dict(plain.names)
    memory: tuple[str, str] | None = None
    for part in parts:
        tails.append(part.name)
        units.append(part.unit)
        words.append(part.name)
        names[part.name] = part.resource
        if part.ratio:
            ratio = part.name + RATIO
            memory = (part.name, ratio)
            tails.append(ratio)
            units.append(Unit.PERCENT)
            words.append(part.name)
            names[ratio] = part.ratio
    listed = tuple(boards)
    over = f"{name}.shared"
    if split:
        names[over] = split
    scarce = [units.index(Unit.BYTES)] if Unit.BYTES in units else []
    return DeviceType(
        name,
        tails=tuple(tails),
        unit=plain.unit,
        units=tuple(units),
        words=tuple(words),
        plain=plain.plain,
        split=over if split else "",
        memory=memory,
        names=names,
        environment=plain.environment,
        fit=tuple(dict.fromkeys((*scarce, 0))),
        model_of_node=True,
        partitioned=partitioned or bool(listed),
        boards=listed,
        templates=_templates(name, tails, memory, templates),
    )


def _check_parts(plain: DeviceType, parts: Sequence[Part]) -> None:
    """Check that amounts contradict neither each other nor the type's unit.

    Raises:
        DeviceTypeError: one does.
    """
    name = plain.name
    taken = {plain.plain, f"{name}.shared"}
    pairs = 0
    for part in parts:
        for tail in (part.name, part.name + RATIO) if part.ratio else (part.name,):
            if tail in taken:
                raise DeviceTypeError(f"device type {name}: its amount {tail} has a name that is taken; use another")
            taken.add(tail)
        if part.unit is Unit.DEVICES:
            raise DeviceTypeError(f"device type {name}: its amount {part.name} counts percent, bytes or units of one")
        if part.ratio and part.unit is not Unit.BYTES:
            raise DeviceTypeError(f"device type {name}: its amount {part.name} has a ratio, which only bytes have")
        pairs += bool(part.ratio)
        if plain.unit is Unit.PERCENT and part.unit is not Unit.PERCENT and not part.ratio:
            raise DeviceTypeError(
                f"device type {name}: percent of it say nothing of {part.unit} of {part.name}; set its unit to devices"
            )
    if pairs > 1:
        raise DeviceTypeError(f"device type {name}: two of its amounts have a ratio; only one of them may")


def _templates(
    name: str, tails: Sequence[str], memory: tuple[str, str] | None, templates: Iterable[TemplateSpec]
) -> tuple[Template, ...]:
    """Make templates with one amount per tail, the smallest first.

    Raises:
        DeviceTypeError: one names an amount that the type does not have, states bytes and their ratio, or repeats a
            name.
    """
    made: list[Template] = []
    for one in templates:
        strange = sorted(one.amounts.keys() - set(tails))
        if strange or not any(one.amounts.values()):
            why = f"the type has no amount {strange[0]}" if strange else "it has no amount above 0"
            raise DeviceTypeError(f"device type {name}: template {one.name}: {why}; use {', '.join(tails)}")
        if memory and all(tail in one.amounts for tail in memory):
            raise DeviceTypeError(f"device type {name}: template {one.name}: keep one of {' and '.join(memory)}")
        if any(one.name == other.name for other in made):
            raise DeviceTypeError(f"device type {name}: template {one.name} is declared twice")
        follows = "" if memory is None else memory[0] if memory[1] in one.amounts else memory[1]
        amounts = tuple(None if tail == follows else one.amounts.get(tail, 0) for tail in tails)
        made.append(Template(one.name, amounts, one.models))
    return tuple(sorted(made, key=lambda template: [amount or 0 for amount in template.amounts]))
