"""A large node for the reporter's benchmarks: 8 GPUs by the stand-in library, 256 CPUs, 8 NICs, 110 Pods."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from reporter.gpu.guarded import DriverRoots, GuardedNvml, Patience
from reporter.settings import ReporterSettings, parse

_TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(_TESTS))
from fake_kube import FakeKube
from sysfs_tree import Machine

NODE = "bench"
PODS = 110
_GPU_TESTS = _TESTS / "reporter" / "gpu"


def build_machine(folder: Path) -> None:
    """Write the machine's files: /sys, /proc, cgroups with three containers per Pod, and the kubelet's folder."""
    machine = Machine(folder)
    machine.cpus(sockets=2, nodes=8, cores=64, threads=2)
    for node in range(8):
        machine.memory(node, kib=128 * 2**20, pages_2m=512)
    for number in range(8):
        bus = f"0000:{0x10 + number:02x}"
        nic = machine.rdma(f"mlx5_{number}", f"{bus}:00.0", root=f"pci0000:{0x10 + number:02x}", numa=number)
        for function in range(8):
            machine.virtual(nic, function, f"{bus}:01.{function}")
        machine.pci(f"0000:{0x40 + number:02x}:00.0", 0x10DE, 0x20B2, 0x030200, numa=number)
    for group in ("", "kubepods", "kubepods/burstable", "kubepods/besteffort"):
        _cgroup(folder, group)
    for number in range(PODS):
        for name in ("", "/" + "f" * 64, "/" + _container(number)):
            _cgroup(folder, f"kubepods/burstable/pod{_uid(number)}{name}")
        machine.file(f"{1000 + number}/environ", "PATH=/bin\0NVIDIA_VISIBLE_DEVICES=\0", machine.proc)
        procs = folder / "cgroup/cpuset/kubepods/burstable" / f"pod{_uid(number)}" / _container(number) / "cgroup.procs"
        procs.write_text(f"{1000 + number}\n")


def _cgroup(folder: Path, path: str) -> None:
    group = folder / "cgroup" / "cpuset" / path
    group.mkdir(parents=True)
    for file, value in (("cpuset.cpus", "0-255"), ("cpuset.mems", "0-7"), ("cgroup.procs", "")):
        (group / file).write_text(f"{value}\n")


def _uid(number: int) -> str:
    return f"{number:08d}-0000-4000-8000-000000000000"


def _container(number: int) -> str:
    return f"{number:064x}"


def fill(fake: FakeKube) -> None:
    """Put the Node and its Pods into the API server: a quarter is pinned, the others share CPUs."""
    fake.put("/api/v1/nodes", {"metadata": {"name": NODE, "uid": "bench-uid"}, "status": {"capacity": {"cpu": "256"}}})
    for number in range(PODS):
        pinned = number % 4 == 0
        decided = {"scheduling.koordinator.sh/resource-status": json.dumps({"cpuset": f"{number}-{number + 1}"})}
        pod = {
            "metadata": {
                "name": f"pod-{number}",
                "namespace": "bench",
                "uid": _uid(number),
                "labels": {"koordinator.sh/qosClass": "LSR" if pinned else "LS"},
                "annotations": decided if pinned else {},
            },
            "spec": {"nodeName": NODE},
            "status": {
                "qosClass": "Burstable",
                "phase": "Running",
                "containerStatuses": [{"name": "main", "containerID": f"containerd://{_container(number)}"}],
            },
        }
        fake.put("/api/v1/namespaces/bench/pods", pod)


def settings(folder: Path, *, every: float) -> ReporterSettings:
    """Settings of a reporter on this machine."""
    return parse(
        f"""
node: {NODE}
roundSeconds: {every}
logLevel: error
roots:
  sysfs: {folder}/sys
  proc: {folder}/proc
  cgroup: {folder}/cgroup
  kubelet: {folder}/kubelet
  state: {folder}/state
serve: {{port: 0}}
kubelet: {{configuration: {folder}/kubelet/config.yaml, deviceCheckpoint: {folder}/kubelet/checkpoint}}
"""
    )


def build_nvml(folder: Path) -> dict[str, str]:
    """Build the stand-in library with 8 A100 cards; returns the environment of the NVML process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("no C compiler (cc): install gcc")
    library = folder / "nvml"
    library.mkdir()
    target = library / "libnvidia-ml.so.1"
    source = _GPU_TESTS / "standin" / "nvml.c"
    subprocess.run(
        [compiler, "-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-fPIC", "-shared", "-o", target, source], check=True
    )
    shutil.copy(_GPU_TESTS / "nodes" / "a100x8.nvml", library / "node.nvml")
    (library / "events").touch()
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "NVML_STANDIN_NODE": str(library / "node.nvml"),
        "NVML_STANDIN_EVENTS": str(library / "events"),
    }


def open_nvml(folder: Path, environment: dict[str, str]) -> GuardedNvml:
    """NVML behind its guard, on this machine."""
    return GuardedNvml(Patience(), DriverRoots(folder / "sys", folder / "proc"), env=environment)


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
