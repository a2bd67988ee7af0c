"""What admission changes in a Pod that asks for devices (pure): resources, schedulerName, environment, one annotation.

Translating a translated Pod changes nothing.

In the domain kubernetes.io, gpu.shared (the number of cards over which the amounts are split) is removed from the
resources. kube-scheduler would look for nodes that report it, and cannot be configured to ignore it (an extender's
managedResources must not be of that domain). It is then read from the annotation. In Koordinator's domain it remains,
because Koordinator's scheduler needs it in the resources.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as evolve
from typing import Any, Final, NamedTuple

from allocator.quantity import QuantityError, format_bytes, format_int, to_int
from allocator.request.devices import ContainerReading, PodReading, foreign_npu, unequal_parts
from allocator.request.original import originals, read_measured
from allocator.request.quotaamounts import charges
from allocator.request.selection import echo
from allocator.request.sharing import unstated_users
from allocator.request.unread import NOTHING, Unread, beside_ours, find_unread
from allocator.vocabulary.asks import DeviceAsk, Regions
from allocator.vocabulary.cardmemory import bytes_of
from allocator.vocabulary.delivery import KEEPERS, REQUIRED
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes, Unit
from allocator.vocabulary.names import (
    DEFAULT_SCHEDULER,
    DEVICE_SHARING,
    DIALECT,
    GANG_GATE,
    GANG_TOGETHER,
    KOORDINATOR_DOMAIN,
    KUBERNETES_DOMAIN,
    LIMITS,
    ORIGINAL_REQUEST,
    RESOURCE_MAPS,
    asked_limit,
    is_quota_resource,
)
from allocator.vocabulary.outcome import Problem
from allocator.wire.gang import foreign_gang
from allocator.wire.podannotations import read_sharing, write_limit, write_sharing
from allocator.wire.strict import annotation_path
from webhook.admission.additions import (
    NO_DEFAULTS,
    SlotDefaults,
    TaintKeys,
    shown_types,
    translate_env,
    translate_tolerations,
    wanted_env,
)
from webhook.admission.limits import NOT_REQUIRED, LimitPolicy
from webhook.admission.scope import NO_SCOPE, PolicyScope
from webhook.admission.unread import belongs_to_others, unread_warnings
from webhook.patch import Operation, add, pointer, remove, set_annotations
from webhook.settings import SchedulerNames

_MAX_LENGTH: Final = 317  # characters of a namespace and a name
_ENCODED: Final = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode


@dataclass(frozen=True, slots=True)
class TranslationPolicy:
    """How this installation translates."""

    domain: str  # the domain that resource names are written in
    types: DeviceTypes = BUILT_IN  # the device types that may be asked for
    schedulers: SchedulerNames = SchedulerNames()  # the schedulerNames that Pods get  # noqa: RUF009 frozen
    # whether the split (gpu.shared) is written beside every ask, as Koordinator's own webhook does: its scheduler takes
    # amounts without it for one card, and adds up those of several containers
    split: bool = False
    scope: PolicyScope = NO_SCOPE  # the Pods that an administrator puts under the NUMA policies of nodes
    gates: bool = False  # whether Pods whose gang is bound as a whole get a scheduling gate
    charges: bool = False  # whether what quotas are to count is written beside what is requested
    # what containers that state no amount get together, where the Pod does not state it
    slots: SlotDefaults = NO_DEFAULTS
    # whether every container that asks for devices finds in its environment what it may use of them
    quota_environment: bool = False
    limits: LimitPolicy = NOT_REQUIRED  # what keeps memory limits, and where they are required
    # keys of taints that Pods tolerate if they ask for devices of a type
    tolerations: TaintKeys = field(default_factory=dict)

    def within(self, namespace: str) -> "TranslationPolicy":
        """The same for the Pods of a namespace, which may use other dialects."""
        types = self.types.within(namespace)
        return self if types is self.types else evolve(self, types=types)

    @property
    def by_sum(self) -> bool:
        """Whether Koordinator's own scheduler is used, which reads the sum of a Pod's requests only."""
        return self.split and self.domain == KOORDINATOR_DOMAIN


class Translation(NamedTuple):
    """The edits to one Pod."""

    reading: PodReading  # the Pod as it was read
    operations: tuple[Operation, ...] = ()  # JSON Patch; empty if nothing is asked or something is wrong
    warnings: tuple[str, ...] = ()  # for the author
    problems: tuple[Problem, ...] = ()  # why it cannot be translated


def translate(  # noqa: PLR0913 keyword-only
    pod: Mapping[str, Any],
    policy: TranslationPolicy,
    memory_per_gpu: int | None,
    *,
    alike: bool = True,
    charged_memory: int | None = None,
    states: Collection[str] | None = None,
    zeros: Collection[str] = (),
    namespace: str = "",
    classed: Callable[[PodReading], tuple[str, Sequence[str]]] = lambda _reading: ("", ()),
) -> Translation:
    """Translate a Pod that is not `too_large`.

    `memory_per_gpu`: bytes of the smallest GPU that the Pod could land on: memory is then stated; None to state none.
    `alike`: whether all that it could land on have as much: only then quotas count by it. `charged_memory`: what quotas
    count by if memory is not to be stated. `states`: what is written of what quotas count; None for all. `zeros`:
    resources of device plugins that every container is to state as 0 once they are translated, because a LimitRange of
    the namespace wants them stated. `classed`: returns the RuntimeClass that the Pod as read is to have, "" to leave it
    as it is, and warnings.
    """
    reading = read_measured(pod, policy.types, implied=False, slots=policy.slots.of(namespace))
    unread = find_unread(pod, policy.types, reading.unknown)
    request = reading.request
    limited = policy.limits.requires(pod, request, namespace)
    settled = _settled(pod, policy, reading, unread, limited=limited)
    if settled is not None:
        return settled
    alone = _left_alone(reading)
    others = () if alone else unread_warnings(pod, policy.types, unread, ours=bool(request.containers))
    warnings = [*alone, *others, *reading.warnings]
    if not request:
        return Translation(reading, warnings=tuple(warnings))
    if request.containers and (gang := foreign_gang(pod)):
        warnings.append(f"gang {gang[:_MAX_LENGTH]} is of another namespace: this Pod counts as one without a gang")
    operations: list[Operation] = []
    written: dict[str, Any] = {}
    known = originals(pod)
    shown = shown_types(reading, policy.types)
    states_quotas = request.states_quotas or (policy.quota_environment and bool(request.containers))
    users = unstated_users(reading.sharing) if reading.sharing else {}
    zeros = zeros if request.containers else ()
    variables = policy.limits.variables if limited else {}
    for container, spec in _walk(pod, reading):
        changed = _translate_resources(container, spec, policy, memory_per_gpu, zeros, operations)
        if changed and not (
            known.get(container.name) and _is_translated(container, policy.types, zeros) and _agrees(container)
        ):
            of_users = users.get(container.name, ())
            written[container.name] = _original(container, spec, policy.types, of_users)
        if shown:
            wanted = wanted_env(container, shown, states_quotas=states_quotas, limits=variables)
            translate_env(container, spec, wanted, operations, warnings)
    if policy.charges and (states is None or states or _states_charges(reading)):
        memory = charged_memory if memory_per_gpu is None else memory_per_gpu if alike else None
        of_none = states is not None and not states
        counted = () if of_none else charges(reading, request, pod["spec"], memory)
        amounts = [_among(one.amounts, states) for one in counted] or [{}] * len(reading.containers)
        _translate_charges(pod, reading, policy.types, amounts, zeros, operations)
    translate_scheduler(pod, policy.schedulers.of(namespace), operations, warnings)
    translate_tolerations(pod, reading, policy.tolerations, operations)
    runtime_class, told_of_it = classed(reading)
    operations.extend([add("/spec/runtimeClassName", runtime_class)] if runtime_class else [])
    warnings.extend(told_of_it)
    if request.wishes.all_or_nothing:
        _gate(pod, policy, operations, warnings)
    annotations = _sharing(pod, reading, policy.types) if states_quotas else {}
    annotations |= {LIMITS: REQUIRED} if limited and not request.wishes.limits else {}
    annotations |= _asked_limits(pod, reading, policy, warnings, limited=limited) if reading.limits else {}
    if written:
        annotations |= _originals(reading, known, written)
    operations[:0] = set_annotations(pod, annotations) if annotations else []
    return Translation(reading, tuple(operations), tuple(warnings))


def _asked_limits(
    pod: Mapping[str, Any], reading: PodReading, policy: TranslationPolicy, warnings: list[str], *, limited: bool
) -> dict[str, str]:
    """Write the limits of memory that a Pod states in another dialect; its author is told if nothing keeps them."""
    stated = (pod.get("metadata") or {}).get("annotations") or {}
    limits = {asked_limit(container): write_limit(limit) for container, limit in reading.limits}
    if not limited:
        named = ", ".join(f"{container} {write_limit(limit)}" for container, limit in reading.limits)
        keeps = policy.limits.provider in KEEPERS
        warnings.append(
            f"nothing keeps this Pod to its limits of GPU memory ({named[:_MAX_LENGTH]}), so that a program may "
            f"use all of a card; {f'write {LIMITS}: {REQUIRED}' if keeps else 'an administrator sets limits.provider'}"
        )
    return {key: text for key, text in limits.items() if key not in stated}


def _originals(reading: PodReading, known: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, str]:
    """Write what containers asked for before they were translated, now or earlier, and in which dialects."""
    kept = {c.name: found for c in reading.containers if (found := known.get(c.name)) is not None}
    text = _ENCODED({**kept, **written})
    echoed = echo(reading.dialects)
    return {ORIGINAL_REQUEST: text, DIALECT: echoed} if echoed else {ORIGINAL_REQUEST: text}


def _sharing(pod: Mapping[str, Any], reading: PodReading, types: DeviceTypes) -> dict[str, str]:
    """Write how containers share devices if the Pod does not state it, or not all of it: nobody reads a default later.

    An annotation that names no type says no more than that containers find what they may use in their environment.
    """
    stated = (pod.get("metadata") or {}).get("annotations") or {}
    sharing = reading.sharing or {}
    if read_sharing(stated, types.by_name) == sharing:
        return {}
    return {DEVICE_SHARING: write_sharing(sharing)}


def _in_sum(reading: PodReading) -> list[Problem]:
    """Find what Koordinator's own scheduler would not do as it is asked: it reads the sum of a Pod's requests only."""
    groups = [one for one in reading.groups if len(one.members) > 1]
    if groups:
        message = (
            "containers cannot share one holding here, because Koordinator's scheduler reads the sum of the Pod's "
            f"requests only; give each container its own amount, and write regions: {Regions.GROUP_EACH}"
        )
        return [Problem(annotation_path(DEVICE_SHARING), message)]
    return unequal_parts(reading.containers)


def _settled(
    pod: Mapping[str, Any], policy: TranslationPolicy, reading: PodReading, unread: Unread, *, limited: bool
) -> Translation | None:
    """The answer for a Pod that is another product's, or that cannot be translated; None for any other."""
    if belongs_to_others(pod, reading, unread, policy.types):
        return Translation(reading, warnings=tuple(unread_warnings(pod, policy.types, unread, ours=False)))
    problems = [*reading.problems]
    if not problems and policy.by_sum:
        problems += _in_sum(reading)
    if not problems and limited:
        problems += policy.limits.problems(reading)
    if not problems:
        problems += _unequal(reading.containers, policy.domain)
    if not problems and unread is not NOTHING and reading.asks_devices:
        problems += beside_ours(unread, policy.types)
    return Translation(reading, problems=tuple(problems)) if problems else None


def _unequal(containers: Sequence[ContainerReading], domain: str) -> Iterator[Problem]:
    """Find limits above their requests, which Kubernetes allows in its own domain only."""
    for container in containers if domain != KUBERNETES_DOMAIN else ():
        if container.requests != container.limits:
            message = f"the request must equal the limit, because this installation writes it as {domain}"
            yield Problem(f"{container.path}.resources", f"{message}; write the same amount in both")


def _left_alone(reading: PodReading) -> list[str]:
    """Warn the author of a Pod whose devices are not allocated although it names some that others have counted."""
    npu = foreign_npu(reading.unknown)
    if not npu:
        return []
    return [f"koordgate allocates no device to this Pod: {npu} is of no type that its setting devices.types declares"]


def _walk(pod: Mapping[str, Any], reading: PodReading) -> Iterator[tuple[ContainerReading, Mapping[str, Any]]]:
    spec = pod["spec"]
    specs = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return zip(reading.containers, specs, strict=True)


def _is_translated(container: ContainerReading, types: DeviceTypes, zeros: Collection[str]) -> bool:
    """Whether an earlier call may have translated a container: what its author wrote is in the annotation only."""
    meanings = [types.resources[name] for names in container.names for name in names if name not in zeros]
    of_memory = [one for one in meanings if one.type.states_memory]
    left = all(one.tail not in {one.type.plain, one.type.split} for one in of_memory)
    return bool(of_memory) and left and all(one.dialect.own for one in meanings)


def _agrees(container: ContainerReading) -> bool:
    """Whether the resources have bytes of memory if the annotation says that the author stated some."""
    asks = (ask for ask in container.requests if ask.type.states_memory)
    return container.stated.derived or all(ask.amount(ask.type.restated) is not None for ask in asks)


def _original(
    container: ContainerReading, spec: Mapping[str, Any], types: DeviceTypes, users: Collection[str] = ()
) -> dict[str, dict[str, Any]]:
    """Copy a container's device resources as its author wrote them: none of types that it uses without an amount."""
    stated = container.stated
    original: dict[str, dict[str, Any]] = {}
    for key, there in zip(RESOURCE_MAPS, container.names, strict=True):
        names = [name for name in there if types.resources[name].type.name not in users]
        if not names:
            continue
        resources = spec["resources"][key]
        original[key] = {name: resources[name] for name in names if not (stated.derived and _is_bytes(name, types))}
        if stated.shared is not None and (split := _split_name(names, types)):
            original[key][split] = format_int(stated.shared)
    if not original:  # asked by annotations alone, which no longer count once the resources state it
        splits = {
            ask.type.resource_name(KUBERNETES_DOMAIN, ask.type.split): format_int(ask.count)
            for ask in container.requests
            if ask.type.states_memory and ask.type.split and ask.is_split
        }
        return {RESOURCE_MAPS[1]: splits} if splits else {}
    return original


def _is_bytes(name: str, types: DeviceTypes) -> bool:
    """Return whether a resource is the bytes that admission may state beside a ratio, always in its own names."""
    kind, dialect, term = types.resources[name]
    return dialect.own and kind.states_memory and term.states == kind.restated


def _split_name(names: Sequence[str], types: DeviceTypes) -> str:
    """The name of the split in the domain that a container uses; "" if its dialect is not a domain."""
    for name in names:
        kind, dialect, _ = types.resources[name]
        if kind.states_memory:
            return kind.resource_name(dialect.name, kind.split)
    return ""


def _translate_resources(
    container: ContainerReading,
    spec: Mapping[str, Any],
    policy: TranslationPolicy,
    memory_per_gpu: int | None,
    zeros: Collection[str],
    operations: list[Operation],
) -> bool:
    """Rewrite a container's two maps in the canonical resources; return whether it had any and anything changed."""
    if not (zeros or _writes(container)):
        return _remove_zero(container, operations)
    resources = spec.get("resources")
    before = len(operations)
    if resources is None:  # asked by an annotation alone
        resources = {}
        operations.append(add(f"{container.pointer}/resources", {}))
    target = _written(container.requests, policy, memory_per_gpu) | dict.fromkeys(zeros, "0")
    targets = (target, target)
    if container.limits != container.requests:
        most = _written(container.limits, policy, memory_per_gpu) | dict.fromkeys(zeros, "0")
        targets = (dict.fromkeys(most, "0") | target, most)  # a missing request would be read as the limit
    for key, target, names in zip(RESOURCE_MAPS, targets, container.names, strict=True):
        at = f"{container.pointer}/resources/{key}"
        if resources.get(key) is None:
            operations.append(add(at, target))
            continue
        present: Mapping[str, object] = resources[key]
        operations += [remove(at + pointer(name)) for name in names if name not in target]
        for name, text in target.items():
            if name not in present or not _same(present[name], text):
                operations.append(add(at + pointer(name), text))
    return len(operations) > before and bool(container.requests or any(container.names))


def _states_charges(reading: PodReading) -> bool:
    """Whether a Pod already states something for quotas."""
    return any(is_quota_resource(one.name) for one in reading.unknown)


def _among(amounts: Mapping[str, int], names: Collection[str] | None) -> Mapping[str, int]:
    return amounts if names is None else {name: one for name, one in amounts.items() if name in names}


def _translate_charges(
    pod: Mapping[str, Any],
    reading: PodReading,
    types: DeviceTypes,
    counted: Sequence[Mapping[str, int]],
    zeros: Collection[str],
    operations: list[Operation],
) -> None:
    """Write what quotas are to count into every container, in place of what its author or an earlier call wrote.

    It is written after `_translate_resources`, into the maps that this has made.
    """
    for (container, spec), amounts in zip(_walk(pod, reading), counted, strict=True):
        resources = spec.get("resources")
        if not (resources or amounts):
            continue
        in_bytes = types.charged_bytes
        target = {n: format_bytes(one) if n in in_bytes else str(one) for n, one in amounts.items()}
        made = _writes(container) or bool(zeros)
        if resources is None and not made:
            operations.append(add(f"{container.pointer}/resources", {}))
        for key in RESOURCE_MAPS:
            at = f"{container.pointer}/resources/{key}"
            present: Mapping[str, object] | None = (resources or {}).get(key)
            if present is None and not made:
                operations.extend([add(at, target)] if target else [])
                continue
            present = present or {}
            surplus = [name for name in present if is_quota_resource(name) and name not in target]
            operations.extend([remove(at + pointer(name)) for name in surplus])
            for name, text in target.items():
                if name not in present or not _same(present[name], text):
                    operations.append(add(at + pointer(name), text))


def _written(asks: Sequence[DeviceAsk], policy: TranslationPolicy, memory_per_gpu: int | None) -> dict[str, str]:
    """Write one map's asks of all types in the canonical resources."""
    target: dict[str, str] = {}
    for ask in asks:
        target |= {} if ask.empty else canonical(ask, policy.domain, memory_per_gpu, split=policy.split)
    return target


def states_least(container: ContainerReading) -> bool:
    """Whether the bytes that a container states of parts of cards follow from the memory of cards."""
    asks = (ask for ask in container.requests if ask.type.memory and ask.type.states_memory and not ask.template)
    return any(ask.amount(ask.type.restated) is None and not ask.whole for ask in asks)


def _writes(container: ContainerReading) -> bool:
    """Whether a container has amounts to write; a user's part of the slot may be less than a percent."""
    asks = (*container.requests, *container.limits)
    return bool(asks) and not all(ask.empty for ask in asks)


def _remove_zero(container: ContainerReading, operations: list[Operation]) -> bool:
    """Remove what asks for nothing from a container of a Pod that is ours by another: `nvidia.com/gpu: 0`."""
    if not any(container.names):
        return False
    for key, names in zip(RESOURCE_MAPS, container.names, strict=True):
        operations += [remove(f"{container.pointer}/resources/{key}" + pointer(name)) for name in names]
    return True


def _same(present: object, wanted: str) -> bool:
    try:
        return to_int(present) == to_int(wanted)
    except QuantityError:
        return False


def canonical(ask: DeviceAsk, domain: str, memory_per_gpu: int | None, *, split: bool = False) -> dict[str, str]:
    """Write an ask in the canonical resources, which are the ones that are counted.

    GPUs are written as core, memory ratio and memory. The split is written only if the number of devices does not
    follow from the amounts, or with `split`. It is never written in the domain kubernetes.io, where the
    original-request annotation states it. Types with one resource are written in that. Templates, and whole devices of
    a type that counts whole devices, are written as their number.
    """
    kind = ask.type
    if ask.template:
        return {kind.template_resource(ask.template): format_int(ask.count)}
    if kind.simple or (kind.unit is Unit.DEVICES and ask.whole):
        per_device = 1 if kind.unit is Unit.DEVICES else ask.amounts[0] or 0
        return {kind.resource_name(domain, kind.plain): format_int(per_device * ask.count)}
    amounts: Sequence[int | None] = ask.amounts
    if kind.memory and kind.states_memory and memory_per_gpu is not None:
        size, ratio = kind.memory
        percent = ask.amount(ratio)
        if percent is not None:
            of_memory = bytes_of(percent, memory_per_gpu)
            amounts = [of_memory if tail == size else one for tail, one in zip(kind.tails, amounts, strict=True)]
    written = {
        tail: (format_bytes if unit is Unit.BYTES else format_int)(amount * ask.count)
        for tail, unit, amount in zip(kind.tails, kind.units, amounts, strict=True)
        if amount
    }
    stated_split = (bool(kind.split) and ask.is_split) or (split and kind.states_memory)
    if stated_split and not (kind.domains and domain == KUBERNETES_DOMAIN):
        written[kind.split] = format_int(ask.count)
    return {kind.resource_name(domain, tail): text for tail, text in sorted(written.items())}


def translate_scheduler(
    pod: Mapping[str, Any], scheduler_name: str, operations: list[Operation], warnings: list[str]
) -> None:
    """Send a Pod to the one scheduler that binds it, whichever its author named."""
    current = pod["spec"].get("schedulerName")
    if current == scheduler_name:
        return
    operations.append(add("/spec/schedulerName", scheduler_name))
    if current not in {None, "", DEFAULT_SCHEDULER}:
        warnings.append(
            f"spec.schedulerName: {current} replaced by {scheduler_name}, which alone binds Pods with devices or CPUs"
        )


def _gate(pod: Mapping[str, Any], policy: TranslationPolicy, operations: list[Operation], warnings: list[str]) -> None:
    """Keep a Pod from being scheduled until room for its whole gang is held."""
    if not policy.gates:
        warnings.append(
            f"metadata.annotations[{GANG_TOGETHER}]: has no effect, because gangs.allOrNothing of this installation is "
            "off; ask an administrator, or remove it"
        )
        return
    gates = pod["spec"].get("schedulingGates")
    if gates is None:
        operations.append(add("/spec/schedulingGates", [{"name": GANG_GATE}]))
    elif all(gate.get("name") != GANG_GATE for gate in gates):
        operations.append(add("/spec/schedulingGates/0", {"name": GANG_GATE}))
