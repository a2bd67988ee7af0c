"""Milliseconds in which the enforcer answers a container runtime, on a node with 250 Pods; and starts of containers.

The enforcer is a process of its own, and a runtime of ours calls it. A quarter of the Pods have CPUs of their own, a
quarter half of a card, the others neither; each creation that gives CPUs lets others make room. In every round a Pod
comes and goes: its containers are created, started, changed, stopped and removed. The reference is the goal for the
99th percentile, 5 ms.

With `--containerd`, as root: sandboxes and containers of a real containerd are started one after another, with the
enforcer and without it.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from result import close

from localplane.binaries import find_or_build
from localplane.process import Process
from localplane.replicas import this_koordgate
from localplane.waiting import until
from reporter import exchange
from reporter.enforced import EnforcerFiles
from reporter.exchange import CardPlace, Cpus, Facts
from reporter.settings import Enforcement

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from node import images, machine
from node.containerd import PROGRAMS, Containerd
from node.cri import Cri
from nri_runtime import CREATE, REMOVE, REMOVE_SANDBOX, START, STOP, UPDATE, Registered, Runtime, container, pod

PODS = 250
GOAL_MS = 5.0
CPUS = "0-191"
CARDS = {
    f"GPU-{number:08x}-0000-4000-8000-000000000000": CardPlace(f"0000:{number:02x}:00.0", 80 * 2**30)
    for number in range(8)
}
FACTS = Facts(cpus=Cpus(shared=CPUS, best_effort=CPUS), cards=CARDS, kinds={"gpu": "nvidia.com/gpu"}, provider="none")
ENVIRONMENT = [f"SERVICE_{number}_PORT=tcp://10.0.0.{number}:80" for number in range(100)]


def sandbox(number: int) -> dict[str, Any]:
    """A Pod: with CPUs of its own, with half a card, or with neither."""
    annotations = {f"team.example/note-{one}": "x" * 100 for one in range(10)}
    if number % 4 == 0:
        cpu = number % 192
        annotations["scheduling.koordinator.sh/resource-status"] = json.dumps({"cpuset": str(cpu)})
    if number % 4 == 1:
        annotations["nri.koordgate.io/main"] = list(CARDS)[number % len(CARDS)]
        annotations["visible-devices.koordgate.io/main"] = "void"
    uid = f"{number:08d}-0000-4000-8000-000000000000"
    labels = {"koordinator.sh/qosClass": "LSR" if number % 4 == 0 else "LS"}
    group = {"cgroup_parent": f"/kubepods/burstable/pod{uid}"}
    return pod(f"p{number}", uid=uid, annotations=annotations, labels=labels, linux=group)


def containers(number: int, **fields: Any) -> list[dict[str, Any]]:
    """Its two containers."""
    return [container(name, f"p{number}", env=ENVIRONMENT, **fields) for name in ("main", "side")]


async def come_and_go(runtime: Registered, number: int) -> list[float]:
    """A Pod comes and goes; returns the milliseconds of each answer."""
    taken = []

    async def ask(call: tuple[str, str, str], **fields: Any) -> None:
        began = time.perf_counter()
        await runtime.call(call, pod=sandbox(number), **fields)
        taken.append((time.perf_counter() - began) * 1000)

    for one in containers(number):
        await ask(CREATE, container=one)
        await ask(START, container={**one, "pid": 7})
        await ask(UPDATE, container=one, linux_resources={"cpu": {"cpus": CPUS}})
    for one in containers(number):
        await ask(STOP, container=one)
        await ask(REMOVE, container=one)
    await ask(REMOVE_SANDBOX)
    return taken


@asynccontextmanager
async def enforcer(folder: Path, socket: Path, facts: Facts = FACTS) -> AsyncIterator[Process]:
    """The enforcer, started; it need not be registered yet."""
    config = folder / "enforcer.yaml"
    settings = {"roots": {"state": str(folder)}, "enforcement": {"enabled": True, "socket": str(socket)}}
    config.write_text(json.dumps(settings))
    assert EnforcerFiles(exchange.folder(str(folder)), Enforcement()).tell(facts) == ""
    argv = (*this_koordgate(), "serve", "enforcer", "--config", str(config))
    process = Process("enforcer", argv, folder / "enforcer.log", env=os.environ)
    process.start()
    try:
        yield process
    finally:
        await process.stop()


def cpu_ms(pid: int) -> float:
    """The CPU time that a process has had, in milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def percentile(taken: list[float], of: float) -> float:
    return sorted(taken)[min(int(len(taken) * of), len(taken) - 1)]


async def answers(rounds: int) -> list[float]:
    """Milliseconds of all answers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with Runtime(folder / "nri.sock") as runtime, enforcer(folder, runtime.socket) as process:
            state = {
                "pods": [sandbox(number) for number in range(PODS)],
                "containers": [one for number in range(PODS) for one in containers(number, pid=7)],
            }
            there = await runtime.registered(**state)
            before = cpu_ms(process.pid)
            taken = [ms for number in range(rounds) for ms in await come_and_go(there, PODS + number)]
            spent = (cpu_ms(process.pid) - before) / len(taken)
            print(
                f"{len(taken)} answers at {PODS} Pods: median {statistics.median(taken):.2f} ms,"
                f" p99 {percentile(taken, 0.99):.2f} ms, longest {max(taken):.2f} ms; {spent:.2f} ms of CPU each;"
                f" {memory_mb(process.pid):.0f} MB",
                file=sys.stderr,
            )
            return taken


async def starts(count: int) -> None:
    """Start containers of a real containerd, with the enforcer and without it, in turns."""
    trouble = machine.problem()
    if trouble:
        sys.exit(trouble)
    folder = Path(tempfile.mkdtemp(prefix="kg-bench-"))
    online = Path("/sys/devices/system/cpu/online").read_text().strip()  # noqa: ASYNC240 nobody else runs
    facts = Facts(cpus=Cpus(shared=online, best_effort=online))
    binaries = find_or_build(PROGRAMS)
    try:
        async with Containerd(folder, binaries) as containerd, Cri(containerd.socket) as cri:
            for turn in range(4):
                if turn % 2 == 0:
                    await timed(cri, count, f"{turn}", "without the enforcer")
                    continue
                own = folder / f"enforcer-{turn}"
                own.mkdir()
                async with enforcer(own, containerd.nri_socket, facts) as process:

                    async def registered(process: Process = process) -> bool:
                        return "registered with the container runtime" in process.log.read_text()

                    await until(registered, "the enforcer is registered")
                    await timed(cri, count, f"{turn}", "with it")
    finally:
        machine.remove(folder)


async def timed(cri: Cri, count: int, name: str, how: str) -> None:
    """Start containers one after another, and say how long creation and start took."""
    create, start = [], []
    for number in range(count):
        there = await cri.run_sandbox(f"{name}-{number}")
        began = time.perf_counter()
        one = await cri.create(there, "main", images.BUSYBOX, "/bin/sleep", "1000")
        created = time.perf_counter()
        await cri.start(one)
        start.append((time.perf_counter() - created) * 1000)
        create.append((created - began) * 1000)
        await cri.remove_sandbox(there)
    print(
        f"{count} starts {how}: creation median {statistics.median(create):.1f} ms, p99 {percentile(create, 0.99):.1f};"
        f" start median {statistics.median(start):.1f}, p99 {percentile(start, 0.99):.1f}",
        file=sys.stderr,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--containerd", action="store_true", help="start containers of a real containerd too")
    parser.add_argument("--starts", type=int, default=30, help="how many in each turn")
    arguments = parser.parse_args()
    taken = asyncio.run(answers(arguments.rounds))
    if arguments.containerd:
        asyncio.run(starts(arguments.starts))
    close(
        name="nri",
        value=percentile(taken, 0.99),
        unit="ms",
        reference=GOAL_MS,
        goal=1.0,
        higher_is_better=False,
    )


if __name__ == "__main__":
    main()
