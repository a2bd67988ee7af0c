"""What admission adds to a Pod besides resources: variables, a RuntimeClass, tolerations, slots.

Their values are annotations that the bind writes: the kubelet resolves them when the container starts.

The API server itself puts the overhead, nodeSelector and tolerations of a RuntimeClass on the Pod, once more after its
webhooks (Kubernetes, plugin/pkg/admission/runtimeclass).

Nodes with cards are often tainted with the name of the resource that their device plugin reports. The API server's
plugin ExtendedResourceToleration lets Pods onto them that ask for this name (Kubernetes,
plugin/pkg/admission/extendedresourcetoleration). A Pod that asks for a share of such a card in another name is let onto
them here, by the same toleration.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import methodcaller
from typing import Any, Final

from allocator.devices.delivery import AUTO, DeliveryRules
from allocator.request.devices import ContainerReading, PodReading
from allocator.vocabulary.delivery import LIMIT_VARIABLES, Delivery
from allocator.vocabulary.devicetype import FULL, DeviceType, DeviceTypes
from allocator.vocabulary.names import (
    CUDA_DEVICES_ENV,
    NVIDIA,
    TYPE_GPU,
    VISIBLE_DEVICES_ENV,
    device_quota,
    visible_devices,
)
from webhook.patch import Operation, add, remove, replace
from webhook.view.reach import DeliveryReach

_NAME: Final = methodcaller("get", "name")
_READ: Final = frozenset({*LIMIT_VARIABLES, CUDA_DEVICES_ENV})  # beside those that a container is to have
_MAX_REMOVALS: Final = 16  # of entries of one list; more cost the API server the square of the list's length
Entries = dict[str, dict[str, Any]]  # variable -> its entry


def shown_types(reading: PodReading, types: DeviceTypes) -> tuple[DeviceType, ...]:
    """The types whose variable every container of a Pod gets.

    The GPU variable is set for every Pod that asks for any device, because an image may request all GPUs by itself.
    Variables of other types are set if the Pod asks for the type. A Pod without devices gets none.
    """
    asked = {ask.type.name for container in reading.containers for ask in container.requests}
    if not asked:
        return ()
    return tuple([kind for kind in types.types if kind.environment and (kind.nothing or kind.name in asked)])


def wanted_env(
    container: ContainerReading, shown: Sequence[DeviceType], *, states_quotas: bool, limits: Mapping[str, str]
) -> Entries:
    """Write a container's environment entries.

    An entry refers to the container's own annotation. A container that asks for no such device gets the type's value
    `nothing`, or no entry if that is empty, and no entries about what it may use.
    `shown`: the types whose variables the containers of the Pod get. `limits`: variables by which what keeps the Pod's
    memory limits learns them of each container with GPUs -> the beginning of the annotation's key; none if no limits
    are required.
    """
    entries: Entries = {}
    for kind in shown:
        variable = kind.environment
        if container.requests and any(ask.type == kind for ask in container.requests):
            entries[variable] = _from_annotation(variable, visible_devices(container.name, kind.name))
            for tail, limit in kind.limits.items() if states_quotas else ():
                entries[limit] = _from_annotation(limit, device_quota(container.name, tail))
            for limit, prefix in limits.items() if kind.name == TYPE_GPU else ():
                entries[limit] = _from_annotation(limit, f"{prefix}{container.name}")
        elif kind.nothing:
            entries[variable] = {"name": variable, "value": kind.nothing}
    return entries


def closed_env(wanted: Entries) -> Iterator[str]:
    """The variables that this container is to be without; none in a Pod without devices, which has no entry of ours."""
    return (variable for variable in LIMIT_VARIABLES if wanted and variable not in wanted)


def _from_annotation(variable: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}}


def is_wanted_env(entry: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Compare an entry with ours; the API server adds `apiVersion: v1` to a fieldRef."""
    if entry == wanted:
        return True
    reference = (entry.get("valueFrom") or {}).get("fieldRef") or {}
    path = (wanted.get("valueFrom") or {}).get("fieldRef", {}).get("fieldPath")
    return (
        path is not None
        and entry == {"name": wanted["name"], "valueFrom": {"fieldRef": reference}}
        and reference == {"apiVersion": "v1", "fieldPath": path}
    )


def _stated_env(env: Sequence[Mapping[str, Any]], wanted: Entries) -> dict[str, list[int]]:
    """Find the entries that matter here, by variable."""
    names = [*map(_NAME, env)]
    matter = (_READ | wanted.keys()) & {*names} if names else ()
    return {variable: [at for at, name in enumerate(names) if name == variable] for variable in matter}


def translate_env(
    container: ContainerReading,
    spec: Mapping[str, Any],
    wanted: Entries,
    operations: list[Operation],
    warnings: list[str],
) -> None:
    """Make a container's environment have each of these entries exactly once, and none that is closed to authors.

    The author is warned of a variable by which CUDA would look for other cards than those that the container gets.
    """
    env: Sequence[Mapping[str, Any]] = spec.get("env") or ()
    at = f"{container.pointer}/env"
    stated = _stated_env(env, wanted)
    missing = _correct_env(container, env, stated, wanted, operations, warnings) if stated else [*wanted.values()]
    if spec.get("env") is None and missing:
        operations.append(add(at, missing))
    else:  # first, so that later entries may refer to them
        operations += [add(f"{at}/0", own) for own in reversed(missing)]


def _correct_env(
    container: ContainerReading,
    env: Sequence[Mapping[str, Any]],
    stated: Mapping[str, list[int]],
    wanted: Entries,
    operations: list[Operation],
    warnings: list[str],
) -> list[dict[str, Any]]:
    """Replace and remove what the author set; returns the entries that are still to be added."""
    at = f"{container.pointer}/env"
    missing: list[dict[str, Any]] = []
    first: dict[int, dict[str, Any]] = {}  # entries that are replaced, by index
    surplus: list[int] = []
    for variable, own in wanted.items():
        found = stated.get(variable, [])
        if len(found) == 1 and is_wanted_env(env[found[0]], own):
            continue
        if not found:
            missing.append(own)
            continue
        first[found[0]] = own
        surplus += found[1:]
        warnings.append(
            f"{container.path}.env: {variable} was set by the author; koordgate decides which devices a "
            "container sees and what it may use of them, and has replaced it"
        )
    for variable in closed_env(wanted):
        if variable in stated:
            surplus += stated[variable]
            warnings.append(
                f"{container.path}.env: {variable} was set by the author; koordgate decides what a container may use "
                "of its devices, and has removed it"
            )
    if CUDA_DEVICES_ENV in stated and any(ask.type.environment == VISIBLE_DEVICES_ENV for ask in container.requests):
        warnings.append(
            f"{container.path}.env: {CUDA_DEVICES_ENV} was set by the author; the container sees its own cards alone, "
            "which CUDA numbers from 0, and an index or UUID of the host then names another card or none: remove it"
        )
    if len(surplus) > _MAX_REMOVALS:
        gone = set(surplus)
        kept = [first.get(index, entry) for index, entry in enumerate(env) if index not in gone]
        operations.append(replace(at, [*missing, *kept]))
        return []
    operations += [replace(f"{at}/{index}", own) for index, own in first.items()]
    operations += [remove(f"{at}/{index}") for index in sorted(surplus, reverse=True)]
    return missing


_PATH: Final = "spec.runtimeClassName"
_MAX_LENGTH: Final = 253  # characters of a name


def runtime_class(
    pod: Mapping[str, Any],
    reading: PodReading,
    rules: DeliveryRules,
    reach_of: Callable[[Mapping[str, Any]], DeliveryReach],
    handler_of: Callable[[str], str],
) -> tuple[str, Sequence[str]]:
    """Decide which RuntimeClass a Pod gets.

    `pod`: as submitted; one that names a RuntimeClass keeps it. `reach_of`: how a Pod would get cards on the nodes that
    it selects; asked for Pods that want NVIDIA's cards only. `handler_of`: the handler of a RuntimeClass; "" where the
    cluster has none of this name. Returns the RuntimeClass to set, "" for none; and warnings for the author.
    """
    if not _asks_for_nvidia(reading):
        return "", ()
    reach = reach_of(pod)
    stated = str((pod.get("spec") or {}).get("runtimeClassName") or "")
    if stated and stated != rules.runtime_class:
        handler = handler_of(stated)
        if handler and reach.showing and handler not in reach.showing and not reach.by_nri:
            cure = f"leave it out, or name {rules.runtime_class}" if rules.runtime_class else "leave it out"
            what = (
                f"{stated[:_MAX_LENGTH]} has the handler {handler}, which is none of those that show containers cards"
            )
            return "", (f"{_PATH}: {what} ({', '.join(sorted(reach.showing))}): {cure}",)
        return "", ()
    wanted = rules.delivery == Delivery.RUNTIME_CLASS or (rules.delivery == AUTO and reach.classed)
    added = rules.runtime_class if wanted and not stated else ""
    fails = reach.classed_fails if stated or added else reach.plain_fails
    if not fails:
        return added, ()
    what = "no node that this Pod selects can show its containers their cards, and it waits until one can"
    return added, (f"{what}: one {fails}",)


def _asks_for_nvidia(reading: PodReading) -> bool:
    asks = [ask for container in reading.containers for ask in (*container.requests, *container.limits)]
    return any(ask.type.name == TYPE_GPU and ask.vendor in {"", NVIDIA} for ask in asks)


TaintKeys = Mapping[str, Sequence[str]]  # device type -> keys of taints


def translate_tolerations(
    pod: Mapping[str, Any], reading: PodReading, keys: TaintKeys, operations: list[Operation]
) -> None:
    """Let a Pod tolerate the taints of the types of which it asks for devices."""
    asked = dict.fromkeys([ask.type.name for container in reading.containers for ask in container.requests])
    stated: Sequence[Mapping[str, Any]] | None = pod["spec"].get("tolerations")
    missing = [
        _toleration(key)
        for key in dict.fromkeys([key for kind in asked for key in keys.get(kind, ())])
        if not any(_covers(one, key) for one in stated or ())
    ]
    if stated is None and missing:
        operations.append(add("/spec/tolerations", missing))
    else:
        operations.extend(add("/spec/tolerations/-", one) for one in missing)


def reapply_tolerations(
    old: Mapping[str, Any], new: Mapping[str, Any], keys: TaintKeys, operations: list[Operation]
) -> None:
    """Put back the tolerations that were written, and their order if an update changes nothing else of them.

    An update may replace the list as a whole: in a manifest it is no map. Nobody may remove a toleration from a Pod.
    """
    stored, stated = old["spec"].get("tolerations") or [], new["spec"].get("tolerations") or []
    ours = [_toleration(key) for key in dict.fromkeys(key for of in keys.values() for key in of)]
    back = [one for one in stored if one in ours and one not in stated]
    if back:
        same = _contains(stored, stated) and _contains([*stated, *back], stored)
        operations.append(add("/spec/tolerations", stored if same else [*stated, *back]))


def _contains(many: Collection[Any], few: Collection[Any]) -> bool:
    return all(one in many for one in few)


def _toleration(key: str) -> dict[str, str]:
    return {"key": key, "operator": "Exists"}


def _covers(toleration: Mapping[str, Any], key: str) -> bool:
    """Whether a toleration is for all taints with a key, whatever their values and effects."""
    same = toleration.get("key") in {key, None, ""} and toleration.get("operator") == "Exists"
    return same and not toleration.get("effect") and toleration.get("tolerationSeconds") is None


@dataclass(frozen=True, slots=True)
class SlotDefaults:
    """The default slots of an installation.

    FLIP-53, "Public Interfaces": `taskmanager.defaultSlotResourceFraction`, and `taskmanager.numberOfTaskSlots` as 1/N.
    """

    # type's name -> percent of one device, or "1/N" for the slots of a device that has N of them
    types: Mapping[str, int | str] = field(default_factory=dict)
    # namespace -> the same, which precedes `types` there
    namespaces: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)

    def of(self, namespace: str) -> Mapping[str, int]:
        """The default slots in a namespace, in percent; N of 1/N fit on a device."""
        stated = {**self.types, **self.namespaces.get(namespace, {})}
        return {kind: slot if isinstance(slot, int) else int(FULL * Fraction(slot)) for kind, slot in stated.items()}


NO_DEFAULTS: Final = SlotDefaults()
