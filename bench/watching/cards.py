"""A node with eight cards: a real reporter whose NVML is the tests' stand-in, and Pods that use what they were given.

What the cards are made to do follows from the Pods alone: each Pod is a process on its cards. Every fifth Pod that is
created starts nothing, as people's Pods do.
"""

import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import yaml
from nvml_standin import Played
from sysfs_tree import Machine

from localplane import chart
from localplane.admin import JsonObject
from localplane.plane import ControlPlane
from localplane.process import Process, free_port
from localplane.replicas import this_koordgate

ACCOUNT: Final = "koordgate-reporter"
CARDS: Final = 8
XID_OFF_THE_BUS: Final = 79
_MEMORY: Final = 80 * 2**30
_DRIVERS_OWN: Final = 500 * 2**20
_BUSES: Final = ("07", "0f", "47", "4e", "87", "90", "b7", "bd")
_PLACES: Final = "scheduling.koordinator.sh/device-allocated"
_IDLE_OF: Final = 5
IDLE: Final = "notebook-"  # how the names of Pods begin that use nothing
HOST: Final = "kubernetes.io/hostname"


class ReportedNode:
    """One node.

    Args:
        name: of the Node.
        number: its number, which makes its cards' UUIDs its own.
        library: folder with the stand-in for NVML.
        folder: for its files.
        stack: closes what is opened.
    """

    def __init__(self, name: str, number: int, library: Path, folder: Path, stack: AsyncExitStack) -> None:
        self.name = name
        self.port = free_port()
        self._machine = Machine(folder)
        self._machine.cpus(sockets=2, nodes=2, cores=32, threads=2)
        self._machine.memory(0, kib=2**29)
        self._machine.memory(1, kib=2**29)
        self._played = Played(library, folder, stack)
        self._played.play("a100x8")
        for card, bus in enumerate(_BUSES):
            self._machine.pci(
                f"0000:{bus}:00.0", 0x10DE, 0x20B0, 0x030200, root=f"pci0000:{card // 2:02x}", numa=card // 4
            )
        self.uuids = [f"GPU-a10000{number:02x}-0000-4000-8000-{card:012d}" for card in range(CARDS)]
        named = {f"gpu.{card}.uuid": uuid for card, uuid in enumerate(self.uuids)}
        near = {f"gpu.{card}.memory_affinity": str(1 + card // 4) for card in range(CARDS)}
        self._played.change({**named, **near})
        self.use((), 0.0)

    async def start(self, plane: ControlPlane) -> Process:
        """Start the reporter, with the rights that the chart gives it on this node."""
        kubeconfig = await plane.service_account_kubeconfig(chart.NAMESPACE, ACCOUNT, node=self.name)
        folder = self._machine.folder
        settings = {
            "node": self.name,
            "roundSeconds": 5,
            "roots": {
                "sysfs": str(self._machine.sysfs),
                "proc": str(self._machine.proc),
                "cgroup": str(folder),
                "kubelet": str(folder),
                "state": str(folder / "state"),
            },
            "serve": {"port": self.port},
            "kubelet": {"deviceCheckpoint": str(folder / "kubelet_internal_checkpoint"), "podResources": ""},
            "cpus": {"enforce": False},
            "metrics": {"pods": True},
        }
        path = folder / "reporter.yaml"
        path.write_text(yaml.safe_dump(settings))
        argv = (*this_koordgate(), "reporter", "--config", str(path))
        env = {**os.environ, **self._played.env, "KUBECONFIG": str(kubeconfig)}
        process = Process(f"reporter-{self.name}", argv, folder / "reporter.log", env=env)
        process.start()
        return process

    def fail(self, card: int) -> None:
        """Let a card fall off the bus."""
        self._played.happen(card, XID_OFF_THE_BUS)

    def use(self, pods: Iterable[JsonObject], at: float) -> None:
        """Let the Pods of this node use their cards as they do at a time, in seconds."""
        busy, memory = [0.0] * CARDS, [float(_DRIVERS_OWN)] * CARDS
        processes: list[list[str]] = [[] for _ in range(CARDS)]
        for pod in pods:
            about = pod["metadata"]
            seed = zlib.crc32(about["name"].encode())
            if seed % _IDLE_OF == 0 or about["name"].startswith(IDLE):
                continue
            pid = 1000 + seed % 2**20
            path = f"0::/kubepods/burstable/pod{about['uid']}/{'0' * 64}"
            self._machine.file(f"{pid}/cgroup", path, self._machine.proc)
            for card, share in _given(about.get("annotations") or {}, self.uuids).items():
                hunger = 0.3 + 0.6 * (seed % 97) / 97
                used = share * _MEMORY * hunger
                busy[card] += 100 * share * (0.6 + 0.35 * math.sin(at / 40 + seed % 7))
                memory[card] += used
                processes[card].append(f"{pid}:{int(used)}")
        told: dict[str, str | None] = {}
        for card in range(CARDS):
            told[f"gpu.{card}.busy"] = str(min(100, int(busy[card])))
            told[f"gpu.{card}.memory_used"] = str(int(memory[card]))
            told[f"gpu.{card}.processes"] = " ".join(processes[card]) or None
        self._played.change(told)


def _given(annotations: Mapping[str, str], uuids: list[str]) -> dict[int, float]:
    """The part of each card that a Pod holds."""
    shares = json.loads(annotations.get(_PLACES, "{}")).get("gpu", ())
    return {
        uuids.index(one["id"]): int(one["resources"]["kubernetes.io/gpu-core"]) / 100
        for one in shares
        if one["id"] in uuids
    }
