"""The table of dialects for the chart, as a file that the chart's templates read.

Helm cannot call Python. The file is therefore kept in the tree: `make generate` writes it, and a test compares it with
the table.
"""

import json
from pathlib import Path
from typing import Final

from allocator.request.unread import ANNOTATIONS, FOREIGN, KEY_DOMAINS, LABELS, OTHERS, OWN_DOMAIN, is_ours
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import PEERS, Dialect
from allocator.vocabulary.names import DEVICE_SHARING

FILE: Final = Path("files", "dialects.json")


def text(types: DeviceTypes = BUILT_IN) -> str:
    """Write the file.

    Its keys are:

    - `types`: names that types of one's own may not have;
    - `resources`: all resource names by which Pods ask for devices;
    - `plugins`: those of them that nodes report by a vendor's device plugin;
    - `splits`: by domain, those that are not counted anywhere;
    - `annotations`: annotations by which Pods ask for devices, among them the one that names users of them;
    - `peers`: name of another product's dialect -> its `resources` and `annotations`, the `forms` (beginning and end)
      of annotations that name a container, and whether it needs a `memoryUnit`;
    - `foreign`: names of device plugins that no dialect has, and `beginnings` of such names;
    - `known`: all resource names of the table, and how names of their `domains` begin: others there are misspelt;
    - `keys`: the annotations and labels of a Pod that are read, and the `domains` of keys that are looked at.
    """
    known = {
        "types": list(types.by_name),
        "resources": sorted(types.resources),
        "plugins": sorted(name for name, meaning in types.resources.items() if not meaning.dialect.own),
        "splits": _splits(types),
        "annotations": sorted([DEVICE_SHARING, *types.annotations]),
        "peers": {one.name: _peer(one) for one in PEERS},
        "foreign": sorted(one.name for one in FOREIGN if not one.begins),
        "beginnings": sorted(one.name for one in FOREIGN if one.begins),
        "known": sorted(types.known.resources),
        "domains": sorted({*(name.partition("/")[0] + "/" for name in types.known.resources), f"{OWN_DOMAIN}/"}),
        "keys": {
            "annotations": sorted(filter(is_ours, {*ANNOTATIONS, *OTHERS})),
            "labels": sorted(filter(is_ours, {*LABELS, *OTHERS})),
            "domains": [f"{domain}/" for domain in KEY_DOMAINS],
        },
    }
    return json.dumps(known, indent=2) + "\n"


def _peer(dialect: Dialect) -> dict[str, object]:
    return {
        "resources": sorted(term.name for term in dialect.terms),
        "annotations": sorted(term.name for term in dialect.annotations),
        "forms": [[form.beginning, form.end] for form in dialect.forms],
        "needsMemoryUnit": dialect.sized and not dialect.unit,
    }


def _splits(types: DeviceTypes) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for kind in types.types:
        for domain in kind.domains if kind.split else ():
            found.setdefault(domain, []).append(kind.resource_name(domain, kind.split))
    return found


def write(chart: Path, types: DeviceTypes = BUILT_IN) -> Path:
    """Write the file into a chart's folder; returns its path."""
    path = chart / FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(text(types), encoding="utf-8")
    return path
