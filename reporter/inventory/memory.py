"""What each NUMA node has: CPUs, memory without huge pages, and huge pages.

As Koordinator reports them (pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go): zones `node-N`.
"""

import re
from pathlib import Path
from typing import Final

from allocator.vocabulary.cputopology import CpuTopology
from allocator.wire.numazones import NumaZone
from reporter.inventory import files

_TOTAL: Final = re.compile(r"MemTotal:\s+([0-9]{1,15}) kB", re.ASCII)
_PAGES: Final = {"hugepages-2048kB": ("hugepages-2Mi", 2 * 2**20), "hugepages-1048576kB": ("hugepages-1Gi", 2**30)}


def read_zones(sysfs: Path, topology: CpuTopology | None) -> dict[int, NumaZone]:
    """Read the online NUMA nodes, by number; amounts that cannot be read are left out.

    `topology`: the CPUs; a node's CPUs are left out without it.
    """
    folder = sysfs / "devices" / "system" / "node"
    zones: dict[int, NumaZone] = {}
    for name in files.names(folder):
        number = name.removeprefix("node")
        if name == number or not number.isdecimal():
            continue
        amounts = _memory(folder / name)
        if topology is not None:
            amounts["cpu"] = 1000 * topology.nodes.get(int(number), 0).bit_count()
        if amounts:
            zones[int(number)] = NumaZone(amounts, amounts)
    return dict(sorted(zones.items()))


def _memory(node: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    pages = 0
    for folder, (resource, size) in _PAGES.items():
        count = files.number(node / "hugepages" / folder / "nr_hugepages")
        if count is not None and count >= 0:
            pages += count * size
            found[resource] = count * size
    total = _TOTAL.search(files.text(node / "meminfo") or "")
    if total is not None:
        found["memory"] = max(int(total[1]) * 1024 - pages, 0)
    return found
