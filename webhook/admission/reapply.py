"""What an update of a translated Pod states again as its author wrote it (pure).

Tools apply a manifest again and again. The stored Pod has no longer all that its author wrote, so that such an update
adds it, beside what admission wrote. The API server refuses that: a Pod's resources, scheduler and environment cannot
change. What equals the record (`ORIGINAL_REQUEST`) is therefore replaced by what is stored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from allocator.quantity import QuantityError, to_int
from allocator.request.original import originals, read_asks
from allocator.vocabulary.delivery import LIMIT_VARIABLES
from allocator.vocabulary.devicetype import DeviceTypes
from allocator.vocabulary.names import DEVICE_SHARING, RESOURCE_MAPS, is_quota_resource
from allocator.vocabulary.outcome import Problem, excerpt
from allocator.wire.podannotations import read_sharing
from webhook.admission.additions import reapply_tolerations, shown_types
from webhook.admission.translate import TranslationPolicy, translate_scheduler
from webhook.patch import Operation, add, remove, set_annotations

_SECTIONS: Final = ("initContainers", "containers")
_MAX_TOLD: Final = 8  # problems of one update
Raw = Mapping[str, Any]


@dataclass(slots=True)
class Reapplied:
    """The edits to one update."""

    operations: list[Operation] = field(default_factory=list)  # JSON Patch
    warnings: list[str] = field(default_factory=list)  # for the author
    # what differs from what the Pod asked for when it was created
    problems: list[Problem] = field(default_factory=list)


def reapply(old: Raw, new: Raw, policy: TranslationPolicy) -> Reapplied:
    """Put back what admission wrote into a Pod, where an update states again what the author wrote."""
    types = policy.types
    answer = Reapplied()
    if not (old.get("spec") and new.get("spec")):
        return answer
    recorded = originals(old)
    variables = _variables(old, types)
    for at, path, before, after in _containers(old, new):
        original = recorded.get(after["name"])
        problems = _resources(at, path, before, after, original, types.known, answer.operations)
        answer.problems += islice(problems, _MAX_TOLD - len(answer.problems))
        _environment(f"{at}/env", before.get("env"), after.get("env"), variables, answer.operations)
    namespace = (old.get("metadata") or {}).get("namespace", "")
    translate_scheduler(new, policy.schedulers.of(namespace), answer.operations, answer.warnings)
    reapply_tolerations(old, new, policy.tolerations, answer.operations)
    answer.operations += _sharing(old, new, types)
    return answer


def _containers(old: Raw, new: Raw) -> Iterator[tuple[str, str, Raw, Raw]]:
    """Each container that is in both Pods: where it is, and what it was and would be."""
    for section in _SECTIONS:
        stored = {one["name"]: one for one in old["spec"].get(section) or ()}
        for index, after in enumerate(new["spec"].get(section) or ()):
            if after.get("name") in stored:
                yield f"/spec/{section}/{index}", f"spec.{section}[{index}]", stored[after["name"]], after


def _resources(
    at: str, path: str, before: Raw, after: Raw, original: object, types: DeviceTypes, operations: list[Operation]
) -> Iterator[Problem]:
    """Put back a container's device resources, and find those that neither the record nor the stored Pod states.

    `original`: what it asked for by the record; None if that does not name it.
    """
    made = after.get("resources") is not None
    for key in RESOURCE_MAPS:
        stored, stated = _map(before.get("resources"), key), _map(after.get("resources"), key)
        asked = _map(original, key)
        written = [name for name in (*stored, *stated) if name in asked or name in types.resources]
        # All that is there was written by admission, so that a manifest never states it.
        silent = not any(map(_some, asked.values())) and (original is not None or not written)
        target = dict(stated)
        for name in sorted({*written, *filter(is_quota_resource, (*stored, *stated))}):
            there, now = stored.get(name), stated.get(name)
            if _same(there, now):
                continue
            if not (silent if now is None else _same(now, asked.get(name))):
                was = asked.get(name, there)
                message = (
                    f"{'none' if now is None else excerpt(now)}, but the Pod asked for "
                    f"{'none' if was is None else excerpt(was)} when it was created: the devices of a Pod cannot be "
                    "changed; write what it asked for, or delete the Pod and create it again"
                )
                yield Problem(f"{path}.resources.{key}[{name}]", message)
            elif there is None:
                del target[name]
            else:
                target[name] = there
        if target != stated:
            operations.extend([] if made else [add(f"{at}/resources", {})])
            made = True
            operations.append(add(f"{at}/resources/{key}", target))


def _map(resources: object, key: str) -> Raw:
    found = resources.get(key) if isinstance(resources, dict) else None
    return found if isinstance(found, dict) else {}


def _same(one: object, other: object) -> bool:
    """Compare two quantities; what is left out equals only that."""
    if one is None or other is None or one == other:
        return one == other
    try:
        return to_int(one) == to_int(other)
    except QuantityError:
        return False


def _variables(pod: Raw, types: DeviceTypes) -> frozenset[str]:
    """The variables that admission writes into the containers of a Pod, or removes from them."""
    shown = shown_types(read_asks(pod, types, implied=False), types)
    names = (name for kind in shown for name in (kind.environment, *kind.limits.values()))
    return frozenset((*names, *LIMIT_VARIABLES)) if shown else frozenset()


def _some(amount: object) -> bool:
    """Whether an amount asks for anything."""
    return not _same(amount, 0)


def _environment(
    at: str,
    stored: Sequence[Raw] | None,
    stated: Sequence[Raw] | None,
    variables: frozenset[str],
    operations: list[Operation],
) -> None:
    """Put back a container's environment if nothing in it differs but variables that authors do not decide."""
    theirs = [[one for one in env or () if one.get("name") not in variables] for env in (stored, stated)]
    if stored == stated or theirs[0] != theirs[1]:
        return
    operations.append(remove(at) if stored is None else add(at, stored))


def _sharing(old: Raw, new: Raw, types: DeviceTypes) -> list[Operation]:
    """Put back the annotation in which admission stated the slots that the author had left out."""
    stored, stated = (((one.get("metadata") or {}).get("annotations") or {}) for one in (old, new))
    if DEVICE_SHARING not in stored or stored[DEVICE_SHARING] == stated.get(DEVICE_SHARING):
        return []
    known = types.known.by_name
    was, now = read_sharing(stored, known), read_sharing(stated, known)
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return []
    filled = {
        kind: one._replace(slot=was[kind].slot) if kind in was and not one.slot else one for kind, one in now.items()
    }
    return set_annotations(new, {DEVICE_SHARING: stored[DEVICE_SHARING]}) if filled == was else []
