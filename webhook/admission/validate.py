"""What admission refuses in a Pod (pure): what can never work, what is forged, and what was not translated."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

from allocator.quantity import LARGEST, QuantityError, to_int
from allocator.request.cpus import QOS_LABEL
from allocator.request.devices import ContainerReading, PodReading
from allocator.request.original import read_asks, read_measured
from allocator.request.quotaamounts import Charge, charges
from allocator.request.sharing import unstated_users
from allocator.request.unread import find_unread
from allocator.vocabulary.cpunode import QosClass
from allocator.vocabulary.delivery import REQUIRED, states_limit
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.names import (
    DEVICE_SHARING,
    DIALECT,
    LIMITS,
    MIRROR_POD,
    NUMA_SCOPE,
    ORIGINAL_REQUEST,
    OWN_CPUS,
    RESOURCE_MAPS,
    is_allocation_annotation,
    is_delivery_annotation,
    is_quota_resource,
)
from allocator.vocabulary.outcome import Problem
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.strict import annotation_path
from webhook.admission.additions import Entries, closed_env, is_wanted_env, shown_types, wanted_env
from webhook.admission.limits import NOT_REQUIRED, LimitPolicy
from webhook.admission.scope import NO_SCOPE, PolicyScope
from webhook.admission.unread import belongs_to_others
from webhook.quotas.limits import NamespaceLimits, beyond
from webhook.review import Request

_UNSEEN: Final = (
    "koordgate's mutating webhook did not see this Pod, or another webhook changed it afterwards; an administrator "
    "must look at the MutatingWebhookConfigurations"
)
_MISCOUNTED: Final = (
    "a replica of another release, or with another quota.enabled, may have translated this Pod: create it again when "
    f"the roll-out of koordgate is over. If none is under way, {_UNSEEN}"
)
_BOUND: Final = (QosClass.LSE, QosClass.LSR)  # the classes with CPUs of their own


def is_mirror(pod: Mapping[str, Any], username: str, groups: tuple[str, ...]) -> bool:
    """Return whether a Pod mirrors a static Pod of a kubelet; only that node's own identity may claim it."""
    node = (pod.get("spec") or {}).get("nodeName")
    claimed = MIRROR_POD in _annotations(pod)
    return claimed and bool(node) and username == f"system:node:{node}" and "system:nodes" in groups


def created(
    request: Request,
    scheduler_name: str,
    types: DeviceTypes = BUILT_IN,
    scope: PolicyScope = NO_SCOPE,
    limits: NamespaceLimits | None = None,
    memory: LimitPolicy = NOT_REQUIRED,
    states: Collection[str] | None = None,
) -> list[Problem]:
    """Find what is wrong in a Pod to be created; the caller lets mirror Pods pass.

    `request`: of a Pod that is not `too_large`. `scheduler_name`: of the scheduler that must bind it. `types`: the
    device types that may be asked for. `scope`: the Pods that an administrator puts under the NUMA policies of nodes.
    `limits`: what its namespace limits; None if what the Pod states for quotas is not judged. `memory`: what keeps
    memory limits, and where they are required. `states`: what Pods of the namespace state for quotas at present; None
    for everything.
    """
    pod = request.object
    problems = _forged_at_birth(pod)
    if scope.lacks_mark(request.namespace, pod, types):
        problems.append(_untranslated(f"metadata.annotations[{NUMA_SCOPE}]", "is missing"))
    reading = read_measured(pod, types, implied=False)
    others = belongs_to_others(pod, reading, find_unread(pod, types, reading.unknown), types)
    problems.extend(() if others else reading.problems)
    asked = reading.request
    if reading.problems or not asked:
        return problems
    spec = pod["spec"]
    problems.extend(_sent(spec, reading, scheduler_name, others=others))
    if others:
        return problems
    specs = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    shown = shown_types(reading, types)
    users = unstated_users(reading.sharing or {})
    limited = memory.requires(pod, asked, request.namespace)
    problems.extend(memory.problems(reading) if limited else ())
    if limited and not asked.wishes.limits:
        problems.append(_untranslated(annotation_path(LIMITS), "is missing"))
    variables = memory.variables if limited else {}
    for container, container_spec in zip(reading.containers, specs, strict=True):
        wanted = wanted_env(container, shown, states_quotas=asked.states_quotas, limits=variables)
        problems.extend(_environment(container, container_spec, wanted))
        problems.extend(_parts(container, container_spec, users.get(container.name, ()), types))
    if limits is not None:
        problems.extend(_judged(reading, spec, charges(reading, asked, spec), limits, states))
    return problems


def _requests(container: Mapping[str, Any]) -> Mapping[str, object]:
    return (container.get("resources") or {}).get("requests") or {}


def _stated(containers: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """What a Pod states for quotas, in any container."""
    maps = ((one.get("resources") or {}).get(key) or {} for one in containers for key in RESOURCE_MAPS)
    return frozenset(name for amounts in maps for name in amounts if is_quota_resource(name))


def _most(counted: Sequence[Charge]) -> dict[str, int]:
    """The most that may be stated for a container of what follows from the memory of GPUs in reach, where it is known.

    It may be counted for one container what another makes the Pod hold, so that this is the sum.
    """
    derived = {name for charge in counted for name in charge.derived}
    unknown = {name for charge in counted for name in charge.derived.difference(charge.amounts)}
    return {name: sum(charge.amounts.get(name, 0) for charge in counted) for name in derived - unknown}


def _sent(spec: Mapping[str, Any], reading: PodReading, scheduler_name: str, *, others: bool) -> Iterator[Problem]:
    """Find what keeps a Pod from the one scheduler that gives it what it asks for.

    A Pod of another product may have another scheduler. It may not name a node: the kubelet there would choose a card
    for it that another Pod may hold.
    """
    if spec.get("nodeName"):
        message = (
            f"must be empty: the Pod {reading.request.scope}, and only a bind by {scheduler_name} gives it what it "
            "needs; remove it"
        )
        yield Problem("spec.nodeName", message)
    if not others and spec.get("schedulerName") != scheduler_name:
        yield _untranslated("spec.schedulerName", f"is not {scheduler_name} although the Pod {reading.request.scope}")


def _judged(
    reading: PodReading,
    spec: Mapping[str, Any],
    counted: Sequence[Charge],
    limits: NamespaceLimits,
    wanted: Collection[str] | None,
) -> Iterator[Problem]:
    """Find what quotas would count wrongly of a Pod, and what it takes beyond the ranges of its namespace.

    A Pod need not state what quotas count: the replica that translated it may have known of no limit. What it states
    must be right in all containers. `wanted`: what Pods state at present; None for everything.
    """
    specs = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    stated, most = _stated(specs), _most(counted)
    each = list(zip(reading.containers, specs, counted, strict=True))
    problems = [
        problem
        for container, of, charge in each
        for problem in (
            *_charged(container, of, charge, most, stated),
            *_uncounted(container, of, charge, limits.counted, wanted),
        )
    ]
    if limits.ranges and not problems:
        amounts = [
            {name: one for name, one in charge.amounts.items() if name not in stated}
            | {name: _amount(one) or 0 for name, one in _requests(of).items() if name in stated}
            for _, of, charge in each
        ]
        problems = [*beyond(limits.ranges, reading.containers, amounts)]
    yield from problems


def _charged(
    container: ContainerReading,
    spec: Mapping[str, Any],
    charge: Charge,
    most: Mapping[str, int],
    stated: Collection[str],
) -> Iterator[Problem]:
    """Find what quotas would count wrongly of a container.

    What follows from the memory of GPUs in reach is not compared exactly: the replica that wrote it may have seen other
    nodes. `stated`: what any container of the Pod states.
    """
    resources = spec.get("resources") or {}
    for key in RESOURCE_MAPS:
        there: Mapping[str, object] = resources.get(key) or {}
        path = f"{container.path}.resources.{key}"
        for name in sorted({*filter(is_quota_resource, there), *charge.amounts}.intersection(stated)):
            wanted, found = charge.amounts.get(name), _amount(there.get(name))
            least = 0 if name in charge.parts else 1
            follows = name in charge.derived and found is not None and least <= found <= most.get(name, LARGEST)
            if found != wanted and not follows:
                told = "does not state it" if found is None else f"states {found}"
                yield Problem(f"{path}[{name}]", f"{told}, but quotas are to count {wanted or 'none'}: {_MISCOUNTED}")


def _uncounted(
    container: ContainerReading,
    spec: Mapping[str, Any],
    charge: Charge,
    limited: AbstractSet[str],
    wanted: Collection[str] | None,
) -> Iterator[Problem]:
    """Find what quotas limit and cannot count of a container.

    What may follow from the memory of GPUs in reach is known to the replica that wrote it. `wanted`: what Pods state at
    present, so that one which does not is known not to follow; None for everything.
    """
    missing = {
        name
        for name in charge.derived & charge.unknown
        if name not in _requests(spec) and (wanted is None or name in wanted)
    }
    for name in sorted((charge.more | missing) & limited):
        message = (
            f"a quota of the namespace limits {name}, and how much of it this container takes is only known when it is "
            "bound: ask for a stated amount, without ApplyForAll or exclusivePolicy PCIeLevel"
        )
        yield Problem(f"{container.path}.resources", message)


def _amount(quantity: object) -> int | None:
    """Read an amount that quotas count; None for a missing or unreadable one."""
    try:
        return None if quantity is None else to_int(quantity)
    except QuantityError:
        return None


def _environment(container: ContainerReading, spec: Mapping[str, Any], wanted: Entries) -> Iterator[Problem]:
    for variable, own in wanted.items():
        env = [entry for entry in spec.get("env") or () if entry.get("name") == variable]
        if not (len(env) == 1 and is_wanted_env(env[0], own)):
            yield _untranslated(f"{container.path}.env", f"does not hold koordgate's {variable}")
    for variable in closed_env(wanted):
        if any(entry.get("name") == variable for entry in spec.get("env") or ()):
            yield _untranslated(f"{container.path}.env", f"holds {variable}, which koordgate did not write")


def _parts(
    container: ContainerReading, spec: Mapping[str, Any], users: Collection[str], types: DeviceTypes
) -> Iterator[Problem]:
    """Find resources that are not the container's part of a slot, of types that it uses without an amount."""
    for ask in container.requests if users else ():
        kind = ask.type
        if kind.name not in users:
            continue
        wanted = {tail: amount for tail, amount in zip(kind.tails, ask.amounts, strict=True) if amount}
        for key, names in zip(RESOURCE_MAPS, container.names, strict=True):
            resources = (spec.get("resources") or {}).get(key) or {}
            found = {
                one.tail: _amount(resources[name])
                for name in names
                if (one := types.resources[name]).type == kind
                and one.tail != kind.restated
                and _amount(resources[name]) != 0  # a LimitRange wants it stated, and nothing is asked by it
            }
            if found != wanted:
                told = ", ".join(f"{tail} {amount}" for tail, amount in wanted.items()) or "nothing"
                what = f"does not state the container's part of the {kind.name} slot ({told})"
                yield _untranslated(f"{container.path}.resources.{key}", what)


def _untranslated(path: str, what: str) -> Problem:
    return Problem(path, f"{what}: {_UNSEEN}")


def _forged_at_birth(pod: Mapping[str, Any]) -> list[Problem]:
    written = "is written by koordgate when the Pod is bound; remove it"
    shows = (
        "shows containers devices that nobody gave to the Pod; remove it, and ask for devices as a resource, or let an "
        "administrator exempt the namespace"
    )
    return [
        Problem(f"metadata.annotations[{key}]", shows if is_delivery_annotation(key) else written)
        for key in _annotations(pod)
        if is_allocation_annotation(key)
    ]


def updated(
    request: Request,
    writer: str,
    types: DeviceTypes = BUILT_IN,
    *,
    peers: Collection[str] = (),
    charged: bool = False,
) -> list[Problem]:
    """Find changes that are not allowed in an existing Pod.

    Allocation annotations, and those that admission wrote, may be changed only by `writer`. Nobody may change the QoS
    class of a Pod that has CPUs of its own or would then have them (Koordinator, pkg/webhook/pod/validating: the label
    is immutable), nor the number of CPUs of such a Pod, nor what quotas count of it.
    `writer`: the exact user who may write allocation annotations: the scheduler, because Koordinator's does before it
    binds. koordgate itself writes them into the Binding. `types`: the device types that may be asked for. `peers`: the
    exact users of other products that bind Pods, who may write by which annotations software of the nodes shows these
    Pods devices.
    """
    problems = [*_reclassified(request), *_resized(request)]
    if charged:
        problems += _recharged(request, types)
    if request.username == writer:
        return problems
    old, new = _annotations(request.old_object), _annotations(request.object)
    limited = old.get(LIMITS) == REQUIRED
    by_peer = request.username in peers
    changed = (
        Problem(f"metadata.annotations[{key}]", message)
        for key in sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        if (message := _frozen(key, limited=limited)) and not (by_peer and is_delivery_annotation(key))
    )
    return [*problems, *changed]


def _frozen(key: str, *, limited: bool) -> str:
    """Say why an annotation may not be changed; "" if it may.

    `limited`: whether the Pod's memory limits must be kept.
    """
    if is_delivery_annotation(key):
        return (
            "shows containers devices; only the bind may write it, leave it unchanged. An administrator names the "
            "binders of other products in adopt.writers"
        )
    if key in {DEVICE_SHARING, LIMITS, NUMA_SCOPE, OWN_CPUS}:
        return "is decided when the Pod is created; leave it unchanged"
    if is_allocation_annotation(key) or key in {ORIGINAL_REQUEST, DIALECT} or (limited and states_limit(key)):
        return "states what the Pod holds; only the bind may write it, leave it unchanged"
    return ""


def _reclassified(request: Request) -> list[Problem]:
    old, new = _qos(request.old_object), _qos(request.object)
    if old == new or not (old in _BOUND or new in _BOUND):
        return []
    message = (
        f"{old or 'no class'} cannot become {new or 'no class'}: CPUs are given when the Pod is bound; "
        "delete the Pod and create one of the other class"
    )
    return [Problem(f"metadata.labels[{QOS_LABEL}]", message)]


def _recharged(request: Request, types: DeviceTypes) -> list[Problem]:
    """Find a hint by which a Pod would take more or less than quotas counted when it was created."""
    old, new = request.old_object, request.object
    if _annotations(old).get(DEVICE_ALLOCATE_HINT) == _annotations(new).get(DEVICE_ALLOCATE_HINT):
        return []
    reading = read_asks(new, types, implied=False)
    if not reading.request.containers and not reading.problems:
        return []
    before = read_asks(old, types, implied=False)
    told = [str(problem) for problem in reading.problems]
    if not (reading.problems or before.problems) and (
        charges(reading, reading.request, new["spec"]) == charges(before, before.request, old.get("spec") or {})
    ):
        return []
    message = (
        "quotas counted what the Pod takes when it was created, and this hint would change that: leave exclusivePolicy "
        "and allocateStrategy unchanged, or create a new Pod"
    )
    return [Problem(f"metadata.annotations[{DEVICE_ALLOCATE_HINT}]", "; ".join(told) or message)]


def _resized(request: Request) -> list[Problem]:
    """Find CPUs that are resized in place; only the subresource `resize` can change a Pod's resources."""
    if _qos(request.old_object) not in _BOUND:
        return []
    old, new = _stated_cpus(request.old_object), _stated_cpus(request.object)
    message = "its CPUs were chosen when it was bound and cannot be resized in place; create a new Pod"
    paths = dict.fromkeys((*old, *new))
    return [Problem(path, message) for path in paths if old.get(path) != new.get(path)]


def _stated_cpus(pod: Mapping[str, Any]) -> dict[str, object]:
    """Every CPU request and limit of a Pod, by path."""
    spec = pod.get("spec") or {}
    stated = {"spec.resources": spec.get("resources")}
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind) or ()):
            stated[f"spec.{kind}[{index}].resources"] = container.get("resources")
    return {
        f"{path}.{key}[cpu]": amounts["cpu"]
        for path, resources in stated.items()
        for key in RESOURCE_MAPS
        if "cpu" in (amounts := (resources or {}).get(key) or {})
    }


def _qos(pod: Mapping[str, Any]) -> str:
    return str(((pod.get("metadata") or {}).get("labels") or {}).get(QOS_LABEL) or "")


def _annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("annotations") or {}
