"""A machine as Linux shows it, written as files in the layout of /sys and /proc."""

import os
from pathlib import Path
from typing import Any

from allocator.vocabulary.cputopology import format_cpuset


class Machine:
    """Folders `sys` and `proc` of one machine, complete for the code that reads them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sysfs = folder / "sys"
        self.proc = folder / "proc"

    def file(self, path: str, content: Any, root: Path | None = None) -> None:
        target = (root or self.sysfs) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{content}\n")

    def link(self, path: str, to: Path) -> None:
        place = self.sysfs / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(to, place.parent))

    # CPUs and NUMA nodes

    def cpus(self, sockets: int = 2, nodes: int = 2, cores: int = 64, threads: int = 2, offline: int = 0) -> None:
        """Whole sockets of whole NUMA nodes; second threads are numbered after all first ones, as on most servers.

        Args:
            sockets: sockets of the machine.
            nodes: NUMA nodes in all.
            cores: cores of one socket; their `core_id` starts again in each socket.
            threads: threads of one core.
            offline: set of CPUs that are switched off; the kernel shows almost nothing about them.
        """
        total = sockets * cores
        every = (1 << total * threads) - 1
        self.file("devices/system/cpu/online", format_cpuset(every & ~offline))
        self.file("devices/system/cpu/smt/active", int(threads > 1))
        in_node: dict[int, int] = dict.fromkeys(range(nodes), 0)
        for number in range(total * threads):
            core = number % total
            if offline >> number & 1:
                continue
            in_node[core * nodes // total] |= 1 << number
            siblings = sum(1 << core + thread * total for thread in range(threads)) & ~offline
            place = f"devices/system/cpu/cpu{number}/topology"
            self.file(f"{place}/core_id", core % cores)
            self.file(f"{place}/physical_package_id", core // cores)
            self.file(f"{place}/core_cpus_list", format_cpuset(siblings))
        for node, cpus in in_node.items():
            self.file(f"devices/system/node/node{node}/cpulist", format_cpuset(cpus))
        self.file("devices/system/node/online", format_cpuset((1 << nodes) - 1))
        self.file(
            "cpuinfo",
            "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD EPYC 9654\n\n"
            "processor\t: 1\nvendor_id\t: other",
            self.proc,
        )

    def memory(self, node: int, kib: int, pages_2m: int = 0, pages_1g: int = 0) -> None:
        place = f"devices/system/node/node{node}"
        self.file(f"{place}/meminfo", f"Node {node} MemTotal:       {kib} kB\nNode {node} MemFree:  1 kB")
        self.file(f"{place}/hugepages/hugepages-2048kB/nr_hugepages", pages_2m)
        self.file(f"{place}/hugepages/hugepages-1048576kB/nr_hugepages", pages_1g)

    # PCI

    def pci(
        self,
        bus: str,
        vendor: int,
        device: int,
        code: int,
        *,
        root: str = "pci0000:3a",
        numa: int = 0,
        between: str = "",
        config: bytes | None = None,
    ) -> Path:
        place = self.sysfs / "devices" / root / between / bus
        place.mkdir(parents=True)
        for name, value in (("vendor", f"{vendor:#06x}"), ("device", f"{device:#06x}"), ("class", f"{code:#08x}")):
            (place / name).write_text(f"{value}\n")
        (place / "numa_node").write_text(f"{numa}\n")
        (place / "config").write_bytes(vendor.to_bytes(2, "little") + b"\0\0" if config is None else config)
        self.link(f"bus/pci/devices/{bus}", place)
        return place

    def rdma(self, name: str, bus: str, states: tuple[str, ...] = ("4: ACTIVE",), **where: Any) -> Path:
        """An RDMA NIC as the mlx5 driver shows it."""
        place = self.pci(bus, 0x15B3, 0x1021, 0x020700, **where)
        for port, state in enumerate(states, 1):
            self.file(f"ports/{port}/state", state, place / "infiniband" / name)
        (place / "infiniband" / name).mkdir(parents=True, exist_ok=True)
        (place / "infiniband" / name / "device").symlink_to("../../../" + bus)
        self.link(f"class/infiniband/{name}", place / "infiniband" / name)
        return place

    def virtual(self, physical: Path, number: int, bus: str, name: str = "") -> Path:
        """A virtual function; with a name it is an RDMA NIC of its own."""
        where: dict[str, Any] = {
            "root": physical.parent.name if physical.parent.name.startswith("pci") else "pci0000:3a"
        }
        place = self.rdma(name, bus, **where) if name else self.pci(bus, 0x15B3, 0x101E, 0x020000, **where)
        (place / "physfn").symlink_to(os.path.relpath(physical, place))
        (physical / f"virtfn{number}").symlink_to(os.path.relpath(place, physical))
        return place

    def interface(self, device: Path, name: str, state: str) -> None:
        self.file(f"net/{name}/operstate", state, device)
