"""A dialect: the names under which a Pod asks for devices of a type, and what a number under each name means.

A dialect is data. `allocator.vocabulary.dialects` is the table of those that every installation reads, and
`allocator.vocabulary.peers` that of other products' dialects, which the settings turn on. A type that the settings
declare brings a dialect of its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Term:
    """One name of a dialect.

    Attributes:
        name: a resource's full name or, among a dialect's annotations, an annotation's key.
        states: what it states: one of the type's tails, its plain tail (all of a device alike), or its split (the
            number of devices over which the other amounts are spread). "": nothing that is allocated; it is removed
            from the Pod's resources and kept in the original-request annotation.
        factor: the tail's units in one unit of the name: 2**20 for MiB of memory, 100 for a fraction of a device.
        counts: it counts whole devices.
        each: the amount is per device, not for the container's devices together.
        template: it counts devices, each of which gives this template's share; "" for none.
        sized: its unit depends on the product's installation (`Dialect.sized`); `factor` is the product's default, or
            0 if it has none.
        clamped: more than all of a device counts as all of it.
        decimal: an annotation that states a decimal number; others state whole numbers.
        below: the amount, in the tail's unit, must be less than this; 0 for no bound.
        quantity: an annotation that states bytes as a Kubernetes quantity.
        limits: an annotation that states the most memory which the container may use of each device, and not what it
            asks for: the memory tail in whose unit; "" for any other.
        beside: the annotation whose amount such a limit raises; "": a limit alone is what is asked as well.
    """

    name: str
    states: str
    factor: int = 1
    counts: bool = False
    each: bool = False
    template: str = ""
    sized: bool = False
    clamped: bool = False
    decimal: bool = False
    below: int = 0
    quantity: bool = False
    limits: str = ""
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Form:
    """Annotations that name the container which they are about in their key, between a beginning and an end.

    Attributes:
        beginning: of the key.
        end: of the key.
        states: what the value states of that container, as `Term.states`.
        limits: as `Term.limits`.
        beside: as `Term.beside`.
        mode: it states how cards are to be shared, as `Selects.mode`.
        refusal: why a Pod with such an annotation is refused, and what to write; "" if it is read.
        term: what the value means, under a name with CONTAINER in the container's place; derived.
    """

    beginning: str
    end: str
    states: str = ""
    limits: str = ""
    beside: str = ""
    mode: bool = False
    refusal: str = ""
    term: Term = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        quantity = bool(self.states or self.limits) and not self.beside
        term = Term(
            self.key("CONTAINER"),
            self.states,
            each=bool(self.states),
            quantity=quantity,
            decimal=bool(self.beside),
            limits=self.limits,
            beside=self.beside,
        )
        object.__setattr__(self, "term", term)

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
    """The annotations by which a dialect's Pods choose among devices; "" for none.

    Attributes:
        models: parts of model names, separated by commas: one of them must be in the device's model.
        not_models: none of them may be in it.
        models_first: where `models` is stated, `not_models` is not read.
        ids: ids of devices, separated by commas, of which the device must be one.
        not_ids: ids of devices that are not to be used.
        numa: "true" keeps each container's devices in one NUMA node.
        mode: how cards are to be shared.
        given: the values of `mode` that mean no more than koordgate does; others are refused.
        unread: annotations that have no effect here, about which the author is warned.
    """

    models: str = ""
    not_models: str = ""
    models_first: bool = False
    ids: str = ""
    not_ids: str = ""
    numa: str = ""
    mode: str = ""
    given: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """All of these annotations."""
        read = (self.models, self.not_models, self.ids, self.not_ids, self.numa, self.mode)
        return (*filter(None, read), *self.unread)


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
        annotations: annotations of a Pod that ask for devices for one container.
        container: the annotation that names this container; without it, the first container is meant.
        own: only koordgate, or an author who knows it, writes these names. Otherwise they are some device plugin's, and
            a Pod with them may belong to another scheduler.
        equal: Kubernetes requires the request to equal the limit, as it does outside its own domain.
        whole: all memory of devices, of which no core is stated, asks for whole devices. An explicit 0 of memory does
            not ask for all of it in this sense.
        memory: percent of each device's memory that is asked if the Pod states none; 0: the Pod must state some.
        size: bytes of each device's memory that are asked if a container states none, in place of `memory`; 0: none.
        core: percent of each device's compute that are asked if a container states none; 0: none.
        defaulted: an installation of the product may set `size` and `core`.
        together: all containers of the Pod share one device, where they ask for parts of it.
        vendor: whose devices are meant, in small letters; "": anybody's.
        title: the product, as people name it; "" for koordgate's own names.
        both: the tail of the memory that counts if a container states bytes and a ratio; "": that is refused.
        needs: names of which a container must state one above 0; empty: any name asks for devices.
        either: names of which a Pod may use one only.
        full_core: 100 percent of compute or more are whole devices, whatever memory is stated beside them.
        selects: the annotations by which its Pods choose among devices.
        forms: annotations about the container that their key names. All of a Pod are about one container.
        by_name: term's name -> term; derived.
        beginnings: of its forms; derived.
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
    size: int = 0
    core: int = 0
    defaulted: bool = False
    together: bool = False
    vendor: str = ""
    title: str = ""
    both: str = ""
    needs: tuple[str, ...] = ()
    either: tuple[str, ...] = ()
    full_core: bool = False
    selects: Selects = Selects()
    forms: tuple[Form, ...] = ()
    by_name: Mapping[str, Term] = field(init=False, repr=False, compare=False)
    beginnings: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        read = (form.term for form in self.forms if form.states or form.limits)
        terms = (*self.terms, *self.annotations, *read)
        object.__setattr__(self, "by_name", {term.name: term for term in terms})
        object.__setattr__(self, "beginnings", tuple(dict.fromkeys(form.beginning for form in self.forms)))

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
