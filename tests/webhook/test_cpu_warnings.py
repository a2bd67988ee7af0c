"""The admission warnings about what a Pod states of its CPUs, or of its memory beside CPUs of its own."""

import json

import pytest
from builders import container, pod

from allocator.request.cpus import QOS_LABEL, not_aligned, not_guaranteed, without_effect
from allocator.wire.podannotations import RESOURCE_SPEC

CASES = {
    "no label": ("", {"preferredCPUBindPolicy": "FullPCPUs"}, "preferredCPUBindPolicy"),
    "LS": ("LS", {"preferredCPUBindPolicy": "SpreadByPCPUs"}, "preferredCPUBindPolicy"),
    "exclusive": ("", {"preferredCPUExclusivePolicy": "PCPULevel"}, "preferredCPUExclusivePolicy"),
    "LSR": ("LSR", {"preferredCPUBindPolicy": "FullPCPUs"}, ""),
    "LSE": ("LSE", {"preferredCPUExclusivePolicy": "PCPULevel"}, ""),
    "a burst needs no label": ("", {"preferredCPUBindPolicy": "ConstrainedBurst"}, ""),
    "nothing stated": ("", {}, ""),
}


@pytest.mark.parametrize(("qos", "spec", "named"), CASES.values(), ids=CASES)
def test_a_resource_spec_without_effect_is_warned_about(qos: str, spec: dict[str, str], named: str) -> None:
    labels = {QOS_LABEL: qos} if qos else None
    notice = without_effect(pod(container(), labels=labels, annotations={RESOURCE_SPEC: json.dumps(spec)}))
    assert bool(notice) == bool(named)
    assert named in notice
    assert not named or f"{QOS_LABEL}: LSE or LSR" in notice


@pytest.mark.parametrize("made", [{}, pod(), pod(annotations={RESOURCE_SPEC: "{"}), {"metadata": 3}])
def test_other_pods_are_not_warned_about(made: dict[str, object]) -> None:
    assert without_effect(made) == ""


@pytest.mark.parametrize(("qos", "count"), [("BE", 1), ("SYSTEM", 1), ("LS", 0), ("LSR", 0), ("", 0)])
def test_a_numa_policy_that_aligns_devices_only_is_warned_about(qos: str, count: int) -> None:
    annotations = {"scheduling.koordinator.sh/numa-topology-spec": '{"numaTopologyPolicy":"SingleNUMANode"}'}
    notice = not_aligned(pod(container("a"), container("b"), labels={QOS_LABEL: qos}, annotations=annotations))
    assert notice.count(f"class {qos} only") == count == bool(notice)
    assert not_aligned(pod(container(), labels={QOS_LABEL: qos})) == ""


ONE, TWO = {"cpu": 2, "memory": "1Gi"}, {"cpu": 2, "memory": "2Gi"}
MEMORY = {
    "equal": ("LSR", {"requests": ONE, "limits": ONE}, ""),
    "the limit alone": ("LSR", {"limits": ONE}, ""),
    "none": ("LSE", {"requests": {"cpu": 2}, "limits": {"cpu": 2}}, ""),
    "a larger limit": ("LSE", {"requests": ONE, "limits": TWO}, "differs from the request"),
    "no limit": ("LSR", {"requests": ONE, "limits": {"cpu": 2}}, "missing"),
    "no CPUs of its own": ("LS", {"requests": ONE, "limits": TWO}, ""),
}


@pytest.mark.parametrize(("qos", "amounts", "found"), MEMORY.values(), ids=MEMORY)
def test_memory_by_which_a_pod_with_cpus_of_its_own_is_not_guaranteed_is_warned_about(
    qos: str, amounts: dict[str, dict[str, object]], found: str
) -> None:
    both = {"requests": TWO, "limits": TWO}
    notice = not_guaranteed(pod(container("b", **amounts), init=[container("a", **both)], labels={QOS_LABEL: qos}))
    told = f"spec.containers[b].resources.limits[memory]: {found}; the Pod is not Guaranteed then, "
    assert notice.startswith(told) == bool(found) == bool(notice)
    assert not found or notice.endswith("write 1Gi in both")
