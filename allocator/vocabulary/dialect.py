"""What one dialect is: the names under which a Pod asks for devices of a type, and what a number under each means.

A dialect is data. `allocator.vocabulary.dialects` is the table of those that every installation reads; a type that a
configuration declares brings one of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a dialect.

    Attributes:
        name: a resource's full name or, among a dialect's annotations, an annotation's key.
        states: what it states: one of the type's tails, its plain tail (all of a device alike), or its split (over how
            many devices the other amounts are spread).
        factor: how much of that one of the name's own unit is: 2**20 for MiB of memory, 100 for a fraction of a device.
        counts: it counts whole devices.
        each: the amount is for each device, not for the container's devices together.
        template: it counts devices of which each gives the share of this template of the type; "" for none.
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

    A name may belong to several dialects of a type (`nvidia.com/gpu` is whole cards by itself and, beside HAMi's
    names, the number of cards that a share is taken of): a Pod speaks the first dialect of the table that has all the
    names that the Pod writes.

    Attributes:
        name: unique among the dialects of its type.
        type: the device type's name.
        terms: the resources of containers.
        annotations: annotations of a Pod that ask for devices of one container; decimal fractions are understood.
        container: the annotation that names this container; the first one where it is absent.
        own: only koordgate, or an author who knows it, writes these names; else they are some device plugin's, and a
            Pod with them may be another scheduler's.
        equal: Kubernetes wants the request to equal the limit, as it does outside its own domain.
        whole: a number of devices without any amount asks for whole ones.
        memory: percent of each device's memory that are asked where the Pod states none; 0: it must state some.
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
    by_name: Mapping[str, Term] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {term.name: term for term in (*self.terms, *self.annotations)})

    def has(self, names: Iterable[str]) -> bool:
        """Tell whether all these names are of the dialect."""
        return all(name in self.by_name for name in names)
