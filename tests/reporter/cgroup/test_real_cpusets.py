"""On this machine's kernel: a real process is moved to fewer, more and other CPUs; refusals are explained."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from allocator.vocabulary.cputopology import format_cpuset
from reporter.cgroup.cpusets import CpusetKeeper, apply
from reporter.cgroup.layout import CgroupLayout, Driver, KubernetesQos, Version
from reporter.cgroup.plan import File, KubeletRules, Pod, SharedCpus, Write

pytestmark = pytest.mark.node

OFF = KubeletRules()


@contextlib.contextmanager
def process_in(folder) -> Iterator[int]:
    """A process that only waits, in a cgroup."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            (folder / "cgroup.procs").write_text(str(process.pid))
            yield process.pid
        finally:
            process.kill()


def allowed(pid) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith("Cpus_allowed_list"))


def two_cpus() -> tuple[int, int]:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    return 1 << first, 1 << second


def test_a_real_process_follows_what_was_decided_and_is_moved_back(real) -> None:
    first, second = two_cpus()
    pinned, shared = f"{KubernetesQos.BURSTABLE.value.lower()}/podlsr", "podls"
    layout = CgroupLayout(Driver.CGROUPFS, f"/{real.name}")
    containers = [real.make(f"kubepods/{pinned}/main"), real.make(f"kubepods/{shared}/main")]
    sandbox = real.make(f"kubepods/{pinned}/sandbox")
    real.make("kubepods/besteffort")
    pods = [
        Pod("lsr", "ns/lsr", KubernetesQos.BURSTABLE, qos="LSR", cpus=second),
        Pod("ls", "ns/ls", KubernetesQos.GUARANTEED, qos="LS"),
    ]
    keeper = CpusetKeeper(real.hierarchy, layout)
    with process_in(containers[0]) as one, process_in(containers[1]) as two:
        findings = keeper.round(pods, SharedCpus(first, first | second), OFF)
        assert findings.failures == ()
        assert (allowed(one), allowed(two)) == (format_cpuset(second), format_cpuset(first))
        assert (sandbox / "cpuset.cpus").read_text().strip() == format_cpuset(second)

        # both exchange their CPUs at once: wide, across, narrow
        swapped = [Pod("lsr", "ns/lsr", KubernetesQos.BURSTABLE, qos="LSR", cpus=first), pods[1]]
        assert keeper.round(swapped, SharedCpus(second, first | second), OFF).failures == ()
        assert (allowed(one), allowed(two)) == (format_cpuset(first), format_cpuset(second))

        # another program widens one
        (containers[1].parent / "cpuset.cpus").write_text(format_cpuset(first | second))
        (containers[1] / "cpuset.cpus").write_text(format_cpuset(first | second))
        findings = keeper.round(swapped, SharedCpus(second, first | second), OFF)
        assert findings.reapplied == (f"{real.name}/kubepods/{shared}", f"{real.name}/kubepods/{shared}/main")
        assert allowed(two) == format_cpuset(second)

        # the pinned Pod is gone, and the pool grows
        findings = keeper.round([pods[1]], SharedCpus(first | second, first | second), OFF)
        assert allowed(two) == format_cpuset(first | second)


def test_a_container_that_left_a_pods_own_cpus_runs_in_the_shared_pool_on_a_real_kernel(real) -> None:
    first, second = two_cpus()
    proxy = "e" * 64
    main, sidecar = (real.make(f"kubepods/podlsr/{name}") for name in ("main", proxy))
    plain = Pod("lsr", "ns/lsr", KubernetesQos.GUARANTEED, qos="LSR", cpus=first)
    mixed = replace(plain, shared={proxy: "istio-proxy"})
    keeper = CpusetKeeper(real.hierarchy, CgroupLayout(Driver.CGROUPFS, f"/{real.name}"))
    with process_in(main) as one, process_in(sidecar) as two:
        # before its status names it, it has what its sandbox has; both exchange their CPUs; the pool is gone
        for pod, shared, has, sidecars in (
            (plain, second, first, first),
            (mixed, second, first, second),
            (replace(mixed, cpus=second), first, second, first),
            (replace(mixed, cpus=second), 0, second, second),
            (mixed, second, first, second),
        ):
            assert keeper.round([pod], SharedCpus(shared, first | second), OFF).failures == ()
            assert (allowed(one), allowed(two)) == (format_cpuset(has), format_cpuset(sidecars))
            assert (main.parent / "cpuset.cpus").read_text().strip() == format_cpuset(has | sidecars)


def test_a_container_that_made_cgroups_of_its_own_is_shrunk_with_them(real) -> None:
    first, second = two_cpus()
    inner = real.make("kubepods/podlsr/main/inner") if real.hierarchy.version is Version.V1 else None
    main = inner or real.make("kubepods/podlsr/main")
    pod = Pod("lsr", "ns/lsr", KubernetesQos.GUARANTEED, qos="LSR", cpus=first)
    with process_in(main) as pid:
        findings = CpusetKeeper(real.hierarchy, CgroupLayout(Driver.CGROUPFS, f"/{real.name}")).round(
            [pod], SharedCpus(second, second), OFF
        )
        assert findings.failures == ()
        assert allowed(pid) == format_cpuset(first)


def test_a_cpu_that_the_machine_lacks_is_refused_and_explained(real) -> None:
    real.make("kubepods")
    _, failures = apply(real.hierarchy, [Write(f"{real.name}/kubepods", File.CPUS, 1 << 4000)])
    assert "no such CPU" in failures[0].message or "such a high number" in failures[0].message


def test_the_wrong_order_is_refused_by_v1_with_what_to_do_and_taken_by_v2(real) -> None:
    first, second = two_cpus()
    real.make("kubepods/podlsr/main")
    pod = f"{real.name}/kubepods/podlsr"
    parent_first = [Write(pod, File.CPUS, first), Write(f"{pod}/main", File.CPUS, first), Write(pod, File.CPUS, first)]
    child_outside = Write(f"{pod}/main", File.CPUS, second)
    _, failures = apply(real.hierarchy, [*parent_first, child_outside])
    if real.hierarchy.version is Version.V2:
        assert failures == ()
    else:
        shrunk, widened = failures
        assert "a cgroup below has other CPUs" in shrunk.message
        assert "widen the cgroup above" in widened.message
