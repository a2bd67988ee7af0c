"""What a snapshot keeps: nothing that nobody here reads, and all that koordgate reads."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import container, device_entry, device_object, holding, pod

from allocator.vocabulary.devicetype import BUILT_IN
from allocator.vocabulary.names import DEVICE_ALLOCATED, DEVICES_CHECKPOINTS, ORIGINAL_REQUEST
from allocator.wire.deviceobject import read_device_object
from allocator.wire.nodeallocation import read_spec, write_spec
from allocator.wire.nodetopology import read_node_topology
from allocator.wire.podallocated import write_annotations
from allocator.wire.resourceclaim import read_resource_slice
from console.snapshot.fields import shapes
from console.snapshot.keep import object_of
from console.snapshot.names import OPEN, Namer
from webhook.view.podinfo import read_pod_info

Raw = dict[str, Any]
SECRET = "hunter2"
EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPES = shapes(BUILT_IN)

POD = pod(
    container(
        "main",
        limits={"nvidia.com/gpu": "1"},
        image=SECRET,
        command=[SECRET],
        args=[SECRET],
        env=[
            {"name": "PASSWORD", "value": SECRET},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": SECRET}}},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": f"not devices: {SECRET}"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"secretKeyRef": {"name": SECRET}}},
        ],
        volumeMounts=[{"name": SECRET, "mountPath": SECRET}],
        livenessProbe={"exec": {"command": [SECRET]}, "httpGet": {"httpHeaders": [{"name": "x", "value": SECRET}]}},
    ),
    labels={"app": "train"},
    annotations={
        "kubectl.kubernetes.io/last-applied-configuration": json.dumps({"password": SECRET}),
        "vault.example.com/token": SECRET,
        ORIGINAL_REQUEST: "{}",
    },
    init=[container("setup", args=[SECRET])],
    imagePullSecrets=[{"name": SECRET}],
    serviceAccountName=SECRET,
    hostname=SECRET,
    volumes=[{"name": "v", "secret": {"secretName": SECRET}}, {"name": "w", "hostPath": {"path": SECRET}}],
    tolerations=[{"key": "gpu", "operator": "Exists"}],
    affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
    ephemeralContainers=[{"name": "debug", "command": [SECRET]}],
    securityContext={"sysctls": [{"name": "x", "value": SECRET}]},
    dnsConfig={"nameservers": [SECRET]},
    hostAliases=[{"ip": SECRET, "hostnames": [SECRET]}],
) | {
    "status": {
        "phase": "Pending",
        "message": SECRET,
        "podIP": SECRET,
        "conditions": [
            {"type": "example.com/Gate", "status": "False", "message": SECRET},
            {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"},
        ],
        "containerStatuses": [
            {
                "name": "main",
                "image": SECRET,
                "state": {"waiting": {"reason": "x", "message": SECRET}},
                "containerID": SECRET,
            }
        ],
    }
}


def examples() -> Iterator[Raw]:
    for file in ("cluster.yaml", "workload.yaml"):
        yield from (one for one in yaml.safe_load_all((EXAMPLES / file).read_text()) if one["kind"] in SHAPES)


_DATA = {"labels", "annotations", "requests", "limits", "allocatable", "capacity", "resources", "resource", "amounts"}
_DATA |= {"matchLabels", "nodeSelector", "hard", "used", "others", "attributes", "overhead", "consumedCapacity"}


def poisoned(part: Any, key: str = "") -> Any:
    """The object with a foreign field in every object that has fields, and a foreign annotation."""
    if isinstance(part, list):
        return [poisoned(one) for one in part]
    if not isinstance(part, dict):
        return part
    grown = {name: poisoned(value, name) for name, value in part.items()}
    if key == "annotations":
        return {**grown, "example.com/secret": SECRET, "kubectl.kubernetes.io/last-applied-configuration": SECRET}
    if key in _DATA and not {"requests", "limits"} & part.keys():
        return grown
    return {**grown, "foreign": SECRET, "secretData": {"password": SECRET}, "listed": [SECRET, {"deep": [SECRET]}]}


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(POD, id="a Pod"),
        *(pytest.param(one, id=f"{one['kind']} {one['metadata']['name']}") for one in examples()),
        pytest.param(
            {"kind": "NodeAllocation", "metadata": {"name": "n"}, "spec": write_spec([holding("u")])}, id="ledger"
        ),
        pytest.param(
            {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1"}}, "status": {}},
            id="quota",
        ),
        pytest.param(
            {"kind": "LimitRange", "metadata": {"name": "q"}, "spec": {"limits": [{"type": "Pod"}]}}, id="limits"
        ),
        pytest.param(
            {"kind": "PriorityClass", "metadata": {"name": "q"}, "value": 1, "description": SECRET}, id="class"
        ),
        pytest.param(
            {"kind": "Namespace", "metadata": {"name": "q"}, "spec": {"finalizers": [SECRET]}}, id="namespace"
        ),
        pytest.param({"kind": "PodGroup", "metadata": {"name": "q"}, "spec": {"minMember": 2}}, id="gang"),
        pytest.param(
            {"kind": "Event", "metadata": {"name": "q"}, "reason": "x", "involvedObject": {"name": "p"}}, id="event"
        ),
        pytest.param({"kind": "ResourceClaim", "metadata": {"name": "q"}, "spec": {"devices": SECRET}}, id="claim"),
        pytest.param({"kind": "ResourceSlice", "metadata": {"name": "q"}, "spec": {"driver": "d"}}, id="slice"),
    ],
)
def test_nothing_that_a_foreign_field_states_gets_into_a_snapshot(obj: Raw) -> None:
    kept = object_of(SHAPES[obj["kind"]], poisoned(obj), OPEN)
    assert SECRET not in json.dumps(kept)
    assert kept["metadata"]["name"] == obj["metadata"]["name"]
    assert object_of(SHAPES[obj["kind"]], kept, OPEN) == kept


def full_pod() -> Raw:
    made = pod(
        container("main", requests={"nvidia.com/gpu": "1", "cpu": "2"}, limits={"nvidia.com/gpu": "1"}),
        labels={"koordinator.sh/qosClass": "LSR"},
        annotations={
            **write_annotations([], "kubernetes.io", BUILT_IN),
            "scheduling.koordinator.sh/resource-spec": '{"preferredCPUBindPolicy":"FullPCPUs"}',
            "gang.scheduling.koordinator.sh/name": "gang",
        },
        init=[container("early", restartPolicy="Always")],
        nodeName="n1",
        priority=7,
        schedulingGates=[{"name": "koordgate.io/gang"}],
    )
    made["metadata"]["annotations"].pop(DEVICE_ALLOCATED, None)
    return made


def test_what_is_kept_of_a_pod_reads_as_the_pod() -> None:
    made = full_pod()
    assert read_pod_info(object_of(SHAPES["Pod"], made, OPEN)) == read_pod_info(made)


@pytest.mark.parametrize(
    "obj", [pytest.param(one, id=one["metadata"]["name"]) for one in examples() if one["kind"] == "Pod"]
)
def test_what_is_kept_of_an_example_reads_as_the_example(obj: Raw) -> None:
    made = {**obj, "metadata": {"uid": "u", "namespace": "d", **obj["metadata"]}}
    assert read_pod_info(object_of(SHAPES["Pod"], made, OPEN)) == read_pod_info(made)


def test_what_is_kept_of_devices_topologies_and_the_ledger_reads_the_same() -> None:
    for obj in examples():
        kept = object_of(SHAPES[obj["kind"]], obj, OPEN)
        if obj["kind"] == "Device":
            assert read_device_object(kept) == read_device_object(obj)
        elif obj["kind"] == "NodeResourceTopology":
            assert read_node_topology(kept) == read_node_topology(obj)
    checkpoint = {DEVICES_CHECKPOINTS[0]: json.dumps([{"podUID": "u", "deviceIDs": ["GPU-0"]}])}
    device = device_object(device_entry(0), annotations=checkpoint)
    assert read_device_object(object_of(SHAPES["Device"], device, OPEN)) == read_device_object(device)
    record = {"metadata": {"name": "n"}, "spec": write_spec([holding("u", gang="team/gang")])}
    assert read_spec(object_of(SHAPES["NodeAllocation"], record, OPEN)) == read_spec(record)
    listed = {
        "metadata": {"name": "s"},
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "n1",
            "pool": {"name": "n1", "generation": 1},
            "devices": [{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-0"}}}],
        },
    }
    drivers = ["gpu.nvidia.com"]
    assert read_resource_slice(object_of(SHAPES["ResourceSlice"], listed, OPEN), drivers) == read_resource_slice(
        listed, drivers
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "obj", [{}, {"metadata": []}, {"metadata": {"labels": 1}, "spec": [1], "status": "x"}], ids=repr
)
def test_an_object_of_the_wrong_structure_is_kept_without_what_is_wrong(shape: str, obj: Raw) -> None:
    assert set(object_of(SHAPES[shape], obj, OPEN)) <= {"metadata"}


HIDING = Namer(b"key")


def test_a_hidden_name_is_the_same_as_a_name_and_as_the_value_that_selects_it() -> None:
    node = {"metadata": {"name": "gpu-7", "labels": {"kubernetes.io/hostname": "gpu-7", "team.example/owner": "acme"}}}
    wanted = pod(nodeName="gpu-7", nodeSelector={"kubernetes.io/hostname": "gpu-7", "team.example/owner": "acme"})
    kept, asked = object_of(SHAPES["Node"], node, HIDING), object_of(SHAPES["Pod"], wanted, HIDING)
    assert asked["spec"]["nodeName"] == kept["metadata"]["name"] == kept["metadata"]["labels"]["kubernetes.io/hostname"]
    assert asked["spec"]["nodeSelector"] == kept["metadata"]["labels"]
    assert not {"gpu-7", "acme", "owner"} & set(json.dumps([kept, asked]).replace("/", '"').split('"'))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-A100"),
        ("koordgate.io/mode", "shadow"),
        ("koordinator.sh/qosClass", "LSR"),
        ("kubernetes.io/arch", "arm64"),
        ("example.com/count", "12"),
    ],
)
def test_a_value_that_describes_hardware_or_is_a_number_stays(key: str, value: str) -> None:
    assert HIDING.value(key, value) == value


def test_another_key_gives_other_names_and_the_same_key_the_same() -> None:
    assert HIDING.name("team-a") == Namer(b"key").name("team-a") != Namer(b"other").name("team-a")
    assert HIDING.name("kube-system") == "kube-system"


def test_the_label_that_pods_are_spread_over_is_hidden_as_it_is_on_nodes() -> None:
    node = {"metadata": {"name": "n1", "labels": {"acme.example/rack": "r1", "topology.kubernetes.io/zone": "z1"}}}
    spread = {"topologyKey": "acme.example/rack", "matchLabelKeys": ["acme.example/rack"]}
    term = {"topologyKey": "acme.example/rack", "mismatchLabelKeys": ["acme.example/rack", 1]}
    zone = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    asked = object_of(SHAPES["Pod"], pod(topologySpreadConstraints=[spread, zone], affinity=affinity), HIDING)["spec"]
    rack, known = object_of(SHAPES["Node"], node, HIDING)["metadata"]["labels"]
    assert asked["topologySpreadConstraints"] == [
        {"topologyKey": rack, "matchLabelKeys": [rack]},
        {"topologyKey": known, "maxSkew": 1},
    ]
    assert list(asked["affinity"]["podAntiAffinity"].values()) == [[{"topologyKey": rack, "mismatchLabelKeys": [rack]}]]
    assert (known, "acme" in rack) == ("topology.kubernetes.io/zone", False)


def test_the_gang_of_a_pod_is_hidden_as_its_pod_group_is() -> None:
    member = pod(namespace="team", annotations={"gang.scheduling.koordinator.sh/name": "big"})
    group = {"metadata": {"name": "big", "namespace": "team"}, "spec": {"minMember": 2}}
    kept = object_of(SHAPES["Pod"], member, HIDING)["metadata"]["annotations"]
    assert list(kept.values()) == [object_of(SHAPES["PodGroup"], group, HIDING)["metadata"]["name"]]


def test_annotations_that_name_a_container_are_kept_if_they_ask_for_devices_or_limit_them() -> None:
    kept = {
        "nvidia.com/container.main.gpu-memory.request": "4Gi",
        "nvidia.com/container.main.gpus.devices": "GPU-a",
        "gpu-memory-limit.koordgate.io/main": "8Gi",
    }
    made = pod(annotations={**kept, "nvidia.com/container.main.other": SECRET, "nvidia.com/other": SECRET})
    assert object_of(SHAPES["Pod"], made, HIDING)["metadata"]["annotations"] == kept


def test_the_image_of_a_probe_is_hidden_and_what_it_proved_is_kept() -> None:
    proof = '{"time":"2026-11-27T03:50:00Z","way":"runtimeClass","result":"right","image":"registry.acme.example/box"}'
    node = {"metadata": {"name": "n1", "annotations": {"koordgate.io/delivery-proved": proof}}}
    kept = object_of(SHAPES["Node"], node, HIDING)["metadata"]["annotations"]["koordgate.io/delivery-proved"]
    assert json.loads(kept) | {"image": ""} == json.loads(proof) | {"image": ""}
    assert "acme" not in kept


def test_what_a_device_object_says_of_pods_is_left_out_where_names_are_replaced() -> None:
    noted = {"koordgate.io/pod-agreement": '{"u":{"pod":"team/p"}}', "koordgate.io/memory-limits": '{"GPU-1":[]}'}
    obj = {"metadata": {"name": "n1", "annotations": noted}}
    shape = shapes(BUILT_IN)["Device"]
    assert object_of(shape, obj, OPEN)["metadata"]["annotations"] == noted
    assert object_of(shape, obj, Namer(b"key"))["metadata"]["annotations"] == {}
