"""A dialect: the names under which a Pod asks for devices of a type, and what a number under each name means.

A dialect is data. `allocator.vocabulary.dialects` is the table of those that every installation reads, and
`allocator.vocabulary.dialects` that of other products' dialects, which the settings turn on. A type that the settings
declare brings a dialect of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a dialect."""

    name: str  # a resource's full name or, among a dialect's annotations, an annotation's key
    # what it states: one of the type's tails, its plain tail (all of a device alike), or its split (the number of
    # devices over which the other amounts are spread). "": nothing that is allocated; it is removed from the Pod's
    # resources and kept in the original-request annotation.
    states: str
    factor: int = 1  # the tail's units in one unit of the name: 2**20 for MiB of memory, 100 for a fraction of a device
    counts: bool = False  # it counts whole devices
    each: bool = False  # the amount is per device, not for the container's devices together
    template: str = ""  # it counts devices, each of which gives this template's share; "" for none
    # its unit depends on the product's installation (`Dialect.sized`); `factor` is the product's default, or 0 if it
    # has none
    sized: bool = False
    clamped: bool = False  # more than all of a device counts as all of it
    decimal: bool = False  # an annotation that states a decimal number; others state whole numbers
    below: int = 0  # the amount, in the tail's unit, must be less than this; 0 for no bound
    quantity: bool = False  # an annotation that states bytes as a Kubernetes quantity
    # an annotation that states the most memory which the container may use of each device, and not what it asks for:
    # the memory tail in whose unit; "" for any other
    limits: str = ""
    beside: str = ""  # the annotation whose amount such a limit raises; "": a limit alone is what is asked as well


@dataclass(frozen=True)
class Form:
    """Annotations that name the container which they are about in their key, between a beginning and an end."""

    beginning: str
    end: str
    states: str = ""  # what the value states of that container, as `Term.states`
    limits: str = ""  # as `Term.limits`
    beside: str = ""  # as `Term.beside`
    mode: bool = False  # it states how cards are to be shared, as `Selects.mode`
    refusal: str = ""  # why a Pod with such an annotation is refused, and what to write; "" if it is read

    @cached_property
    def term(self) -> Term:
        """What the value means, under a name with CONTAINER in the container's place."""
        return Term(
            self.key("CONTAINER"),
            self.states,
            each=bool(self.states),
            quantity=bool(self.states or self.limits) and not self.beside,
            decimal=bool(self.beside),
            limits=self.limits,
            beside=self.beside,
        )

    def key(self, container: str) -> str:
        """The annotation about a container."""
        return f"{self.beginning}{container}{self.end}"

    def container(self, key: str) -> str | None:
        """The container that an annotation of this form is about; None for any other annotation."""
        between = len(key) - len(self.end)
        if between < len(self.beginning) or not (key.startswith(self.beginning) and key.endswith(self.end)):
            return None
        return key[len(self.beginning) : between]


@dataclass(frozen=True, slots=True)
class Selects:
    """The annotations by which a dialect's Pods choose among devices; "" for none."""

    models: str = ""  # parts of model names, separated by commas: one of them must be in the device's model
    not_models: str = ""  # none of them may be in it
    models_first: bool = False  # where `models` is stated, `not_models` is not read
    ids: str = ""  # ids of devices, separated by commas, of which the device must be one
    not_ids: str = ""  # ids of devices that are not to be used
    numa: str = ""  # "true" keeps each container's devices in one NUMA node
    mode: str = ""  # how cards are to be shared
    given: tuple[str, ...] = ()  # the values of `mode` that mean no more than koordgate does; others are refused
    unread: tuple[str, ...] = ()  # annotations that have no effect here, about which the author is warned

    @property
    def keys(self) -> tuple[str, ...]:
        """All of these annotations."""
        read = (self.models, self.not_models, self.ids, self.not_ids, self.numa, self.mode)
        return (*filter(None, read), *self.unread)


@dataclass(frozen=True)
class Dialect:
    """One way to ask for devices of one type.

    A name may belong to several dialects of a type: `nvidia.com/gpu` counts whole cards by itself and, beside HAMi's
    names, the cards of which a share is taken. A Pod uses the first dialect of the table that has all the names that
    the Pod writes.
    """

    name: str  # unique among the dialects of its type
    type: str  # the device type's name
    terms: tuple[Term, ...]  # the resources of containers
    annotations: tuple[Term, ...] = ()  # annotations of a Pod that ask for devices for one container
    container: str = ""  # the annotation that names this container; without it, the first container is meant
    # only koordgate, or an author who knows it, writes these names. Otherwise they are some device plugin's, and a Pod
    # with them may belong to another scheduler.
    own: bool = True
    equal: bool = True  # kubernetes requires the request to equal the limit, as it does outside its own domain
    # all memory of devices, of which no core is stated, asks for whole devices. An explicit 0 of memory does not ask
    # for all of it in this sense.
    whole: bool = False
    memory: int = 0  # percent of each device's memory that is asked if the Pod states none; 0: the Pod must state some
    # bytes of each device's memory that are asked if a container states none, in place of `memory`; 0: none
    size: int = 0
    core: int = 0  # percent of each device's compute that are asked if a container states none; 0: none
    defaulted: bool = False  # an installation of the product may set `size` and `core`
    one_device: bool = False  # all containers of the Pod share one device, where they ask for parts of it
    vendor: str = ""  # whose devices are meant, in small letters; "": anybody's
    title: str = ""  # the product, as people name it; "" for koordgate's own names
    both: str = ""  # the tail of the memory that counts if a container states bytes and a ratio; "": that is refused
    needs: tuple[str, ...] = ()  # names of which a container must state one above 0; empty: any name asks for devices
    either: tuple[str, ...] = ()  # names of which a Pod may use one only
    full_core: bool = False  # 100 percent of compute or more are whole devices, whatever memory is stated beside them
    selects: Selects = Selects()  # the annotations by which its Pods choose among devices
    # annotations about the container that their key names. All of a Pod are about one container.
    forms: tuple[Form, ...] = ()

    @cached_property
    def by_name(self) -> Mapping[str, Term]:
        """Term's name -> term."""
        read = (form.term for form in self.forms if form.states or form.limits)
        return {term.name: term for term in (*self.terms, *self.annotations, *read)}

    @cached_property
    def beginnings(self) -> tuple[str, ...]:
        """The beginnings of its forms."""
        return tuple(dict.fromkeys(form.beginning for form in self.forms))

    def __str__(self) -> str:
        return f"{self.name} ({self.title})" if self.title else self.name

    def form_of(self, key: str) -> Form | None:
        """The form that an annotation has; None for any other annotation."""
        return next((form for form in self.forms if form.container(key) is not None), None)

    def has(self, names: Iterable[str]) -> bool:
        """Return whether all these names belong to the dialect."""
        return all(name in self.by_name for name in names)

    @property
    def sized(self) -> bool:
        """Whether the unit of its memory depends on the product's installation."""
        return any(term.sized for term in self.by_name.values())

    @property
    def unit(self) -> int:
        """Bytes in one unit of its memory; 0 if that is not known, or if it states no memory in such units."""
        return next((term.factor for term in self.by_name.values() if term.sized), 0)

    def with_unit(self, unit: int) -> "Dialect":
        """The same dialect in an installation in which one unit of its memory has so many bytes."""
        terms, annotations = (
            tuple(replace(term, factor=unit) if term.sized else term for term in known)
            for known in (self.terms, self.annotations)
        )
        return replace(self, terms=terms, annotations=annotations)
