"""What reporters write on the Device object: what the container runtime can do, and what containers have of memory.

`koordgate.io/memory-limits` is `{"GPU-...":[{"pod":"team/train","container":"main","state":"enforced",
"used":1073741824,"limit":2147483648,"held":2147483648}]}`. What is not known, or is not there, is left out; `wanted` is
written where it is not the limit.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from allocator.vocabulary.delivery import Bringing, EnforcerTold, Keeping, LimitProvider, MemoryUse, NodeRuntime
from allocator.vocabulary.outcome import excerpt
from allocator.wire.values import UNREADABLE, as_json, as_list, as_object, as_text, one_of

NODE_RUNTIME: Final = "koordgate.io/runtime"
_MAX: Final = 64  # handlers, kinds, parts of a version
_MAX_LENGTH: Final = 512  # characters of a text


def write_runtime(runtime: NodeRuntime) -> str:
    """Write the annotation; what is not known is left out."""
    stated: dict[str, Any] = {
        "handlers": list(runtime.handlers),
        "showing": list(runtime.showing),
        "defaultShows": runtime.default_shows,
        "kinds": list(runtime.kinds),
        "nri": runtime.nri,
        "toolkit": ".".join(map(str, runtime.toolkit)),
        "mode": runtime.mode,
        "unprivileged": runtime.unprivileged,
        "fractions": runtime.fractions or None,
        "enforcer": None if runtime.enforcer is None else _enforcer(runtime.enforcer),
    }
    return json.dumps(_kept(stated) | _limits(runtime.no_limits), separators=(",", ":"))


def _enforcer(told: EnforcerTold) -> dict[str, Any]:
    provider = "" if told.provider is LimitProvider.NONE else told.provider.value
    stated = {"brings": told.brings, "whyNot": told.why_not, "provider": provider}
    return _kept(stated) | _limits(told.no_limits)


def _kept(stated: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in stated.items() if value not in (None, [], "")}


def _limits(why_not: str | None) -> dict[str, Any]:
    """Limits are kept where this is "". Where it is left out, that is not known."""
    return {} if why_not is None else {"noLimits": why_not}


def read_runtime(text: object) -> tuple[NodeRuntime | None, str]:
    """Read the annotation.

    Returns what it tells, None if it is missing or cannot be read; and why it cannot be read, "" if it can.
    """
    if text is None:
        return None, ""
    try:
        found = as_object(as_json(text))
        return (
            NodeRuntime(
                handlers=_texts(found.get("handlers", [])),
                showing=_texts(found.get("showing", [])),
                default_shows=_flag(found, "defaultShows"),
                kinds=_texts(found.get("kinds", [])),
                nri=_flag(found, "nri"),
                toolkit=_version(_text(found.get("toolkit", ""))),
                mode=_text(found.get("mode", "")),
                unprivileged=_flag(found, "unprivileged"),
                fractions=bool(_flag(found, "fractions")),
                no_limits=_no_limits(found),
                enforcer=_told(as_object(found["enforcer"])) if "enforcer" in found else None,
            ),
            "",
        )
    except UNREADABLE as error:
        return None, f"annotation {NODE_RUNTIME}: {error}; how the node shows cards is not known"


def _told(found: dict[str, Any]) -> EnforcerTold:
    """Read what is told of the enforcer. A word that a later version has counts as none."""
    bringing, provider = _text(found.get("brings", "")), _text(found.get("provider", ""))
    return EnforcerTold(
        Bringing(bringing) if bringing in list(Bringing) else None,
        _text(found.get("whyNot", "")),
        _provider(provider),
        _no_limits(found),
    )


def _provider(text: str) -> LimitProvider:
    return LimitProvider(text) if text in list(LimitProvider) else LimitProvider.NONE


def _no_limits(found: Mapping[str, Any]) -> str | None:
    return _text(found["noLimits"]) if "noLimits" in found else None


def _texts(value: object) -> tuple[str, ...]:
    listed = as_list(value)
    if len(listed) > _MAX:
        raise ValueError(f"more than {_MAX} entries")
    return tuple(map(_text, listed))


def _text(value: object) -> str:
    text = as_text(value) if value != "" else ""
    if len(text) > _MAX_LENGTH:
        raise ValueError(f"a text of more than {_MAX_LENGTH} characters")
    return text


def _flag(found: dict[str, Any], key: str) -> bool | None:
    value = found.get(key)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{key} is {excerpt(value)!r}, neither true nor false")
    return value


def _version(text: str) -> tuple[int, ...]:
    parts = tuple(int(part) for part in text.split(".") if part.isdecimal())
    if len(parts) > _MAX:
        raise ValueError(f"a version of more than {_MAX} parts")
    return parts


MEMORY_LIMITS: Final = "koordgate.io/memory-limits"
MAX_USES_LENGTH: Final = 64 * 1024
"""Characters of the annotation; all annotations of an object together may have 256 KiB."""

_MAX_BYTES: Final = 2**63 - 1
_ORDER: Final = (Keeping.MISSING, Keeping.ENFORCED, Keeping.INJECTED, Keeping.ACCOUNTING)


def write_uses(uses: Iterable[MemoryUse]) -> str:
    """Write the annotation; "" for nothing. If it is too long, missing limits come first, and what fits."""
    found = sorted(uses, key=lambda one: (_ORDER.index(one.keeping), one.card, one.namespace, one.pod, one.container))
    entries: dict[str, list[dict[str, Any]]] = {}
    size = 2
    for one in found:
        entry = _entry(one)
        size += len(_dumped(entry)) + 1 + (0 if one.card in entries else len(_dumped(one.card)) + 3)
        if size > MAX_USES_LENGTH:
            break
        entries.setdefault(one.card, []).append(entry)
    return _dumped({card: entries[card] for card in sorted(entries)}) if entries else ""


def _dumped(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _entry(one: MemoryUse) -> dict[str, Any]:
    figures = {
        "used": one.used,
        "limit": one.limit,
        "wanted": one.wanted if one.wanted != one.limit else None,
        "held": one.held,
    }
    stated: dict[str, Any] = {key: value for key, value in figures.items() if value is not None}
    if one.provider is not LimitProvider.NONE:
        stated["provider"] = one.provider.value
    return {"pod": f"{one.namespace}/{one.pod}", "container": one.container, "state": one.keeping.value, **stated}


def read_uses(text: object) -> tuple[tuple[MemoryUse, ...], str]:
    """Read the annotation.

    Returns what it tells, by card; nothing if it is missing or cannot be read; and why it cannot be read, "" if it can.
    """
    try:
        return tuple(
            _use(card, as_object(entry))
            for card, entries in as_object(as_json(text, MAX_USES_LENGTH)).items()
            for entry in as_list(entries)
        ), ""
    except UNREADABLE as error:
        return (), f"annotation {MEMORY_LIMITS}: {error}; who uses how much of a card's memory is not known"


def _use(card: str, entry: Mapping[str, Any]) -> MemoryUse:
    namespace, _, pod = as_text(entry.get("pod")).partition("/")
    keeping, limit = _keeping(entry.get("state")), _bytes(entry, "limit")
    wanted = _bytes(entry, "wanted")
    return MemoryUse(
        as_text(card),
        namespace,
        pod,
        as_text(entry.get("container")),
        keeping,
        _bytes(entry, "used"),
        limit,
        limit if keeping in _AS_WANTED and wanted is None else wanted,
        _bytes(entry, "held") or 0,
        _provider(_text(entry.get("provider", ""))),
    )


_keeping = one_of(Keeping)
_AS_WANTED: Final = (Keeping.ENFORCED, Keeping.INJECTED)


def _bytes(entry: Mapping[str, Any], key: str) -> int | None:
    value = entry.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_BYTES:
        raise ValueError(f"{key} is no number of bytes")
    return value
