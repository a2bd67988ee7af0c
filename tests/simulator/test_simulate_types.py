"""`koordgate simulate` with own device types, CPUs and NICs: requests are met, held and shown."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from builders import device_entry, device_object
from simulator.clusters import ALLOCATED, STATUS, asking, gpus, listed, machine, nic, node, pinned, saved, topology

from allocator.vocabulary.cputopology import parse
from koordgate.cli import main


def _allocated(pod: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What a Pod holds of devices, by type."""
    found: dict[str, list[dict[str, Any]]] = json.loads(pod["metadata"]["annotations"].get(ALLOCATED, "{}"))
    return found


def _cpus(pod: dict[str, Any]) -> int:
    """The CPUs of a Pod's own, as a set."""
    return parse(json.loads(pod["metadata"]["annotations"].get(STATUS, "{}")).get("cpuset", ""))


OWN = """
devices:
  types:
    - {name: dongle, resource: example.com/dongle, unit: devices, environment: DONGLES}
    - {name: queue, resource: example.com/queue, unit: units, pools: [{devices: {fast: 4}}]}
    - {name: disk, resource: example.com/disk}
"""
DONGLES = device_object(
    *({"type": "dongle", "id": f"usb-{minor}", "minor": minor, "health": True} for minor in range(2)),
    {"type": "disk", "id": "disk-0", "minor": 0, "health": True},
)

# A Pod's request for types of the administrator's own -> what it gets, or the refusal.
OWN_TYPES: dict[str, tuple[dict[str, str], dict[str, int] | str]] = {
    "one of two whole ones": ({"example.com/dongle": "1"}, {"dongle": 1}),
    "both": ({"example.com/dongle": "2"}, {"dongle": 2}),
    "one more than there is": ({"example.com/dongle": "3"}, "2 of 2 dongle devices can hold it"),
    "units of one that holds many": ({"example.com/queue": "4"}, {"queue": 1}),
    "more units than it has": ({"example.com/queue": "5"}, "0 of 1 queue devices can hold it"),
    "a part of one": ({"example.com/disk": "30"}, {"disk": 1}),
    "of each": ({"example.com/disk": "30", "example.com/dongle": "1", "nvidia.com/gpu": "1"}, "no GPUs known here"),
}


@pytest.mark.parametrize("name", OWN_TYPES)
def test_types_of_the_settings_are_given_though_no_node_states_them(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, expected = OWN_TYPES[name]
    config = tmp_path / "config.yaml"
    config.write_text(OWN)
    limits = {"limits": asked, "requests": asked}
    pod = asking("pod", asked)
    pod["spec"]["containers"][0]["resources"] = limits
    has = node()
    has["status"]["allocatable"]["nvidia.com/gpu"] = has["status"]["allocatable"]["kubernetes.io/gpu-core"] = "800"
    has["status"]["allocatable"]["kubernetes.io/gpu-memory-ratio"] = "800"
    told = listed(capsys, "-f", saved(tmp_path, [has, DONGLES, pod]), "--config", str(config))["pod"]
    if isinstance(expected, str):
        assert told["status"]["reason"] == "Unschedulable"
        assert expected in told["status"]["message"]
    else:
        assert {kind: len(shares) for kind, shares in _allocated(told).items()} == expected


def test_what_a_node_states_of_an_own_type_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(OWN)
    has = node()
    has["status"]["allocatable"]["example.com/queue"] = "2"
    pod = asking("pod", {"example.com/queue": "3"})
    pod["spec"]["containers"][0]["resources"]["limits"] = {"example.com/queue": "3"}
    told = listed(capsys, "-f", saved(tmp_path, [has, pod]), "--config", str(config))["pod"]
    assert told["status"]["message"] == "node-1: not enough example.com/queue: 3 requested, 2 of 2 free"


def test_without_the_settings_an_own_type_is_nobodys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = listed(capsys, "-f", saved(tmp_path, [node(), DONGLES, asking("pod", {"example.com/dongle": "1"})]))["pod"]
    assert "the node states none in status.allocatable" in told["status"]["message"]
    assert told["spec"]["schedulerName"] == "default-scheduler"


# Pods with CPUs of their own on one node of two NUMA nodes with four cores of two threads each -> CPUs each, in order;
# a text is the refusal.
PINNED: dict[str, tuple[list[dict[str, Any]], list[int | str]]] = {
    "whole cores": ([pinned("pod-0", 4), pinned("pod-1", 4, "LSE")], [4, 4]),
    "all there are": ([pinned("pod-0", 16), pinned("pod-1", 1)], [16, "1 CPUs are requested, 0 are free"]),
    "more than there are": ([pinned("pod-0", 17)], ["17 CPUs are requested, 16 are free"]),
    "beside a card": ([pinned("pod-0", 2, amounts={"nvidia.com/gpu": "1"})], [2]),
    "no whole CPU": ([asking("pod-0", {"cpu": "1500m"}, labels={"koordinator.sh/qosClass": "LSR"})], ["1500m is no"]),
    "no class at all": ([asking("pod-0", {}, labels={"koordinator.sh/qosClass": "XXL"})], ["'XXL' is no QoS class"]),
}


@pytest.mark.parametrize("name", PINNED)
def test_pods_get_cpus_of_their_own(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods, expected = PINNED[name]
    told = listed(capsys, "-f", saved(tmp_path, [*machine(cpu="99"), topology(), *pods]))
    given = 0
    for number, right in enumerate(expected):
        pod = told[f"pod-{number}"]
        if isinstance(right, str):
            assert right in pod["status"]["message"]
        else:
            assert _cpus(pod).bit_count() == right
            assert not given & _cpus(pod)
            given |= _cpus(pod)


def test_cpus_are_only_given_where_they_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine("node-1"), *machine("node-2"), topology("node-2"), pinned("pod", 2)]
    assert listed(capsys, "-f", saved(tmp_path, objects))["pod"]["spec"]["nodeName"] == "node-2"
    told = listed(capsys, "-f", saved(tmp_path, objects), "--node", "node-1")["pod"]["status"]["message"]
    assert "its CPUs are unknown (no NodeResourceTopology object" in told


def test_a_pod_that_asks_for_cpus_and_holds_none_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    around = pinned("around", 2, nodeName="node-1", schedulerName="koord-scheduler")
    assert main(["simulate", "-f", saved(tmp_path, [*machine(), topology(), around]), "-o", "json"]) == 0
    assert "Pod default/around: asks for CPUs and carries no allocation" in capsys.readouterr().err


def test_what_a_pod_holds_of_cpus_and_nics_stays_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the output as input, nothing is given again: neither CPUs nor a virtual function."""
    hint = {"scheduling.koordinator.sh/device-allocate-hint": '{"rdma":{"vfSelector":{}}}'}
    cluster = [node(), device_object(device_entry(0), nic(0)), topology()]
    pods = [
        pinned(f"pod-{number}", 8, amounts={"kubernetes.io/rdma": "10"}, annotations=hint, uid=f"uid-{number}")
        for number in range(3)
    ]
    first = listed(capsys, "-f", saved(tmp_path, [*cluster, pods[0]]))["pod-0"]
    told = listed(capsys, "-f", saved(tmp_path, [*cluster, first, *pods[1:]]))
    assert _cpus(told["pod-0"]) | _cpus(told["pod-1"]) == 2**16 - 1
    functions = [_allocated(told[f"pod-{number}"])["rdma"][0]["extension"]["vfs"] for number in range(2)]
    assert functions[0] != functions[1]
    assert told["pod-2"]["status"]["reason"] == "Unschedulable"


def test_what_cannot_be_read_of_nodes_is_reported_with_its_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = node(annotations={"koordgate.io/classes": '{"queue":{"fast":1}}'})
    broken = topology()
    broken["metadata"]["annotations"]["node.koordinator.sh/cpu-topology"] = "{"
    assert main(["simulate", "-f", saved(tmp_path, [told, broken, topology("node-2"), gpus("pod", 50)])]) == 0
    errors = capsys.readouterr().err
    assert "Node node-1: annotation koordgate.io/classes: 'queue' is no configured type" in errors
    assert "NodeResourceTopology node-1: annotation node.koordinator.sh/cpu-topology: " in errors
    assert "NodeResourceTopology node-2: there is no Node with this name" in errors


def test_the_map_is_written_beside_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "map.html"
    assert main(["simulate", "-f", saved(tmp_path, [*machine(), gpus("pod", 50)]), "--map", str(path)]) == 0
    assert "default/pod" in capsys.readouterr().out
    (holder,) = re.findall(r'"holders":\[(\{[^}]*\})', path.read_text())
    assert '"namespace":"default"' in holder
    assert '"name":"pod"' in holder
