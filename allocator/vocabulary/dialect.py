"""A dialect: the names under which a Pod asks for devices of a type, and what a number under each name means.

A dialect is data. `allocator.vocabulary.dialects` is the table of those that every installation reads. A type that the
settings declare brings a dialect of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a dialect.

    Attributes:
        name: a resource's full name or, among a dialect's annotations, an annotation's key.
        states: what it states: one of the type's tails, its plain tail (all of a device alike), or its split (the
            number of devices over which the other amounts are spread).
        factor: the tail's units in one unit of the name: 2**20 for MiB of memory, 100 for a fraction of a device.
        counts: it counts whole devices.
        each: the amount is per device, not for the container's devices together.
        template: it counts devices, each of which gives this template's share; "" for none.
    """

    name: str
    states: str
    factor: int = 1
    counts: bool = False
    each: bool = False
    template: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to ask for devices of one type.

    A name may belong to several dialects of a type: `nvidia.com/gpu` counts whole cards by itself and, beside HAMi's
    names, the cards of which a share is taken. A Pod uses the first dialect of the table that has all the names that
    the Pod writes.

    Attributes:
        name: unique among the dialects of its type.
        type: the device type's name.
        terms: the resources of containers.
        annotations: annotations of a Pod that ask for devices for one container; decimal fractions are understood.
        container: the annotation that names this container; without it, the first container is meant.
        own: only koordgate, or an author who knows it, writes these names. Otherwise they are some device plugin's, and
            a Pod with them may belong to another scheduler.
        equal: Kubernetes requires the request to equal the limit, as it does outside its own domain.
        whole: a number of devices without any amount asks for whole ones.
        memory: percent of each device's memory that is asked if the Pod states none; 0: the Pod must state some.
        together: all containers of the Pod share one device.
        vendor: whose devices are meant, in small letters; "": anybody's.
        by_name: term's name -> term; derived.
    """

    name: str
    type: str
    terms: tuple[Term, ...]
    annotations: tuple[Term, ...] = ()
    container: str = ""
    own: bool = True
    equal: bool = True
    whole: bool = False
    memory: int = 0
    together: bool = False
    vendor: str = ""
    by_name: Mapping[str, Term] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {term.name: term for term in (*self.terms, *self.annotations)})

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all these names belong to the dialect."""
        return all(name in self.by_name for name in names)
