"""The Device object's annotation koordgate.io/runtime: what the node's container runtime can do, for delivery."""

import json
from typing import Any, Final

from allocator.vocabulary.delivery import NodeRuntime
from allocator.vocabulary.excerpt import excerpt
from allocator.wire.values import UNREADABLE, as_json, as_list, as_object, as_text

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
        "noLimits": runtime.no_limits,
    }
    kept = {key: value for key, value in stated.items() if value not in (None, [], "")}
    if runtime.no_limits == "":  # limits are kept; where it is left out, that is not known
        kept["noLimits"] = ""
    return json.dumps(kept, separators=(",", ":"))


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
                no_limits=_text(found["noLimits"]) if "noLimits" in found else None,
            ),
            "",
        )
    except UNREADABLE as error:
        return None, f"annotation {NODE_RUNTIME}: {error}; how the node shows cards is not known"


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
