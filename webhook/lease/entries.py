"""The two entries that the health lease opens, as they are in the webhook configurations, and their changes (pure).

No other entry is ever touched: those of Bindings choose the devices, and the others stop nobody.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from allocator.vocabulary.names import OPENED
from koordgate.kube.resource import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Resource

Raw = dict[str, Any]

_FAIL, _IGNORE = "Fail", "Ignore"
_SINCE: Final = " since "


class Guarded(Enum):
    """An entry that guards our own Pods: the resource of its configuration, and its name there."""

    MUTATING = (MUTATING_WEBHOOKS, "pods.mutate.koordgate.io")
    VALIDATING = (VALIDATING_WEBHOOKS, "pods.validate.koordgate.io")

    @property
    def resource(self) -> Resource:
        """Of the configuration."""
        return self.value[0]

    @property
    def entry(self) -> str:
        """The name of the entry."""
        return self.value[1]


class Stands(Enum):
    """How an entry stands."""

    SHUT = "failurePolicy is Fail"
    STALE = "failurePolicy is Fail, and the annotation says that it was opened"
    OPEN = "failurePolicy is Ignore, and the annotation says that the lease's keeper opened it"
    FOREIGN = "failurePolicy is Ignore, and somebody else has set it"
    ABSENT = "there is no such entry"


@dataclass(frozen=True, slots=True)
class EntryState:
    """An entry as it was read.

    Attributes:
        stands: how.
        since: when it was opened, as the annotation says; "" if it is not open.
        index: its place among the configuration's entries.
        revision: the configuration's resourceVersion.
        noted: whether the configuration has annotations.
    """

    stands: Stands
    since: str = ""
    index: int = 0
    revision: str = ""
    noted: bool = False


def state_of(guarded: Guarded, config: Mapping[str, Any] | None) -> EntryState:
    """Read the state of an entry in its configuration; None if there is no configuration."""
    about = (config or {}).get("metadata") or {}
    notes = about.get("annotations") or {}
    name, found, since = str(notes.get(OPENED, "")).partition(_SINCE)
    ours = bool(found) and name == guarded.entry
    for index, hook in enumerate((config or {}).get("webhooks") or ()):
        if hook.get("name") != guarded.entry:
            continue
        if hook.get("failurePolicy", _FAIL) == _IGNORE:
            stands = Stands.OPEN if ours else Stands.FOREIGN
        else:
            stands = Stands.STALE if OPENED in notes else Stands.SHUT
        return EntryState(stands, since if ours else "", index, str(about.get("resourceVersion", "")), bool(notes))
    return EntryState(Stands.ABSENT)


def opening(guarded: Guarded, state: EntryState, now: str) -> list[Raw]:
    """Write the patch that opens an entry, on condition that its configuration is as it was read.

    Args:
        guarded: the entry.
        state: as it was read: shut.
        now: the time, for the annotation.
    """
    note = f"{guarded.entry}{_SINCE}{now}"
    noted = (
        {"op": "add", "path": f"/metadata/annotations/{_escaped(OPENED)}", "value": note}
        if state.noted
        else {"op": "add", "path": "/metadata/annotations", "value": {OPENED: note}}
    )
    return [*_unchanged(guarded, state), _policy(state, _IGNORE), noted]


def shutting(guarded: Guarded, state: EntryState) -> list[Raw]:
    """Write the patch that shuts an entry, or forgets that it was opened, on the same condition."""
    policy = [_policy(state, _FAIL)] if state.stands is Stands.OPEN else []
    forgotten = {"op": "remove", "path": f"/metadata/annotations/{_escaped(OPENED)}"}
    return [*_unchanged(guarded, state), *policy, forgotten]


def _unchanged(guarded: Guarded, state: EntryState) -> list[Raw]:
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": state.revision},
        {"op": "test", "path": f"/webhooks/{state.index}/name", "value": guarded.entry},
    ]


def _policy(state: EntryState, value: str) -> Raw:
    return {"op": "replace", "path": f"/webhooks/{state.index}/failurePolicy", "value": value}


def _escaped(key: str) -> str:
    """A key in a JSON Pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
