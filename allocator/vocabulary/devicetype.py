"""Device types are data: one entry says how a type is asked for, what a device is made of, and how it is shown.

GPU, RDMA and FPGA are three entries; a configuration adds more ("Automatically recognize different kind devices. When
a new device added, we don't need modify any code": the device proposal, "Scheduling").
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from allocator.vocabulary.names import (
    DOMAINS,
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NVIDIA_GPU,
    RDMA,
    TYPE_FPGA,
    TYPE_GPU,
    TYPE_RDMA,
    VISIBLE_DEVICES_ENV,
)

FULL: Final = 100  # percent: one whole device


class Unit(StrEnum):
    """What a number in a resource means.

    PERCENT of a device (above 100: whole devices); DEVICES, whole ones only; UNITS of a device that holds any number
    of them (places in a queue, addresses of a pool), all from one device.
    """

    PERCENT = "percent"
    DEVICES = "devices"
    UNITS = "units"


@dataclass(frozen=True, slots=True)
class DeviceType:
    """How devices of one type are asked for, counted and shown.

    Attributes:
        name: as Device objects and the device-allocated annotation spell it.
        tails: the resources that a device is made of, in the order in which people read them; an ask has one amount
            for each.
        unit: of the plain resource.
        plain: the tail that states all of a device at once: "gpu" states compute and memory alike.
        split: the tail that says over how many devices an ask is split; "" where there is none.
        memory: the tails (bytes, percent) that say one thing in two units; each follows from the other.
        domains: under which the tails are spelled; empty where `resource` is the one name.
        resource: the full name of the plain resource, of a type of one's own.
        native: full names that count whole devices, as vendors' device plugins do.
        environment: the variable in which a container is told its devices' ids; "" for none.
        nothing: that variable's value for a container that asks for none.
        fit: indices into `tails`: what counts, first to last, in telling how well an ask fits.
    """

    name: str
    tails: tuple[str, ...]
    unit: Unit = Unit.PERCENT
    plain: str = ""
    split: str = ""
    memory: tuple[str, str] | None = None
    domains: tuple[str, ...] = ()
    resource: str = ""
    native: tuple[str, ...] = ()
    environment: str = ""
    nothing: str = ""
    fit: tuple[int, ...] = (0,)

    def __hash__(self) -> int:
        """A hash of the name alone: types are compared far less often than requests that name them are looked up."""
        return hash(self.name)

    def resource_name(self, domain: str, tail: str) -> str:
        """Spell one of the type's resources in a domain; a type of one's own has one spelling."""
        return f"{domain}/{tail}" if self.domains else self.resource

    def spellings(self) -> Iterator[tuple[str, "ResourceName"]]:
        """Every full name under which the type is asked for."""
        tails = tuple(dict.fromkeys((self.plain, *self.tails, *((self.split,) if self.split else ()))))
        for domain in self.domains:
            for tail in tails:
                yield f"{domain}/{tail}", ResourceName(self, domain, tail)
        if self.resource:
            yield self.resource, ResourceName(self, self.resource, self.plain)
        for name in self.native:
            yield name, ResourceName(self, name, self.plain)


class ResourceName(NamedTuple):
    """What a resource's name means: the type, the dialect (a domain, or a plain resource's own name), and the tail."""

    type: DeviceType
    dialect: str
    tail: str

    @property
    def counts_devices(self) -> bool:
        """Whether it counts whole devices, not percent."""
        return self.dialect in self.type.native or self.type.unit is Unit.DEVICES


class DeviceTypeError(ValueError):
    """A device type that cannot stand beside the others; the message says which name is taken."""


@dataclass(frozen=True, slots=True)
class DeviceTypes:
    """The table of types.

    Attributes:
        by_name: type's name -> type, in the order in which they are chosen.
        resources: full resource name -> what it means.
    """

    types: tuple[DeviceType, ...]
    by_name: Mapping[str, DeviceType] = field(init=False, repr=False, compare=False)
    resources: Mapping[str, ResourceName] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, DeviceType] = {}
        resources: dict[str, ResourceName] = {}
        environments: dict[str, str] = {}
        for one in self.types:
            if one.name in by_name:
                raise DeviceTypeError(f"device type {one.name} is there already; give the new one another name")
            by_name[one.name] = one
            whose = one.environment and environments.setdefault(one.environment, one.name)
            if whose and whose != one.name:
                raise DeviceTypeError(
                    f"variable {one.environment} of device type {one.name} is that of {whose} already; use another"
                )
            for name, meaning in one.spellings():
                if name in resources:
                    raise DeviceTypeError(
                        f"resource {name} of device type {one.name} is that of {resources[name].type.name} already"
                    )
                resources[name] = meaning
        object.__setattr__(self, "by_name", by_name)
        object.__setattr__(self, "resources", resources)

    def with_types(self, more: Iterable[DeviceType]) -> "DeviceTypes":
        """Return the table with further types.

        Raises:
            DeviceTypeError: a name or a resource is taken.
        """
        return DeviceTypes((*self.types, *more))


GPU_TYPE: Final = DeviceType(
    TYPE_GPU,
    tails=(GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO),
    plain=GPU,
    split=GPU_SHARED,
    memory=(GPU_MEMORY, GPU_MEMORY_RATIO),
    domains=DOMAINS,
    native=(NVIDIA_GPU,),
    environment=VISIBLE_DEVICES_ENV,
    nothing="void",
    fit=(1, 0),  # memory first: it is what cannot be shared in time
)
RDMA_TYPE: Final = DeviceType(TYPE_RDMA, tails=(RDMA,), plain=RDMA, domains=DOMAINS)
FPGA_TYPE: Final = DeviceType(TYPE_FPGA, tails=(FPGA,), plain=FPGA, domains=DOMAINS)
BUILT_IN: Final = DeviceTypes((GPU_TYPE, RDMA_TYPE, FPGA_TYPE))


def own_type(name: str, resource: str, unit: Unit, environment: str = "") -> DeviceType:
    """Make a type that a configuration declares: one resource of one name."""
    return DeviceType(name, tails=(name,), unit=unit, plain=name, resource=resource, environment=environment)
