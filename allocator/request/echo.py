"""What a translated Pod is told of the dialect that it was read in, so that later settings change nothing for it."""

from collections.abc import Mapping
from typing import Any

from allocator.quantity import format_bytes
from allocator.vocabulary.dialect import Dialect
from allocator.vocabulary.names import DIALECT


def echo(dialect: Dialect) -> str:
    """The annotation's text: `hami; memory unit 1Mi`."""
    unit = dialect.unit
    return f"{dialect.name}; memory unit {format_bytes(unit)}" if unit else dialect.name


def echoed(pod: Mapping[str, Any]) -> str:
    """The name of the dialect that a Pod's annotation states; "" if it states none."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(DIALECT)
    return text.partition(";")[0].strip() if isinstance(text, str) else ""
