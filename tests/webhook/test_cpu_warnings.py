"""The admission warning about a resource-spec that has no effect."""

import json

import pytest
from builders import container, pod

from allocator.request.cpus import QOS_LABEL, not_aligned, without_effect
from allocator.wire.resourcespec import RESOURCE_SPEC

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
