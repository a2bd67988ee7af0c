"""`koordgate simulate` through the command line: forms, outcomes, output, determinism."""

import contextlib
import io
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from simulator.clusters import ALLOCATED, EXAMPLES, STATUS, asking, device, gpus, held, listed, machine, node, saved

from allocator.quantity import to_int
from allocator.vocabulary.cputopology import parse
from koordgate.cli import main

CONFIG = ("--config", str(EXAMPLES / "config.yaml"))
BOTH = ("-f", str(EXAMPLES / "cluster.yaml"), "-f", str(EXAMPLES / "workload.yaml"), *CONFIG)

# The result for each Pod of the examples: the number of cards, and for each the compute in percent and the memory in
# percent or bytes. The scheduler chooses the node, unless the Pod selects one.
PLACED: dict[str, tuple[int, int, int | str]] = {
    "train-2-cards": (2, 100, 100),
    "half-a-card": (1, 50, 50),
    "core-and-ratio": (1, 30, 60),
    "core-and-memory": (1, 40, "24Gi"),
    "memory-alone": (1, 0, "10Gi"),
    "ratio-alone": (1, 0, 20),
    "two-cards-in-percent": (2, 100, 100),
    "half-of-two-cards": (2, 50, 50),
    "requests-and-limits": (1, 25, 25),
    "koordinator-dialect": (1, 50, 50),
    "init-and-sidecar": (1, 100, 100),
    "one-container-without": (1, 30, 30),
    "sets-visible-devices": (1, 40, 40),
}
# For other types: the number of devices of each, and of CPUs of its own.
GIVEN: dict[str, tuple[dict[str, int], int]] = {
    "train-4-together": ({"gpu": 4}, 0),
    "train-beside-rdma": ({"gpu": 2, "rdma": 1}, 0),
    "own-whole-cores": ({}, 8),
    "own-cpus-beside-a-card": ({"gpu": 1}, 4),
    "bursts-in-one-pool": ({}, 0),
    "whole-encoder": ({"encoder": 1}, 0),
    "places-in-a-queue": ({"gpu": 1, "queue": 1}, 0),
}
LEFT_ALONE = {"no-device", "best-effort", "wrong-node-preset"}
REFUSED = {
    "wrong-250": ("Denied", "ask 200 or 300"),
    "wrong-both-dialects": ("Denied", "2 dialects at once"),
    "wrong-forged-allocation": ("Denied", "is written by koordgate when the Pod is bound"),
    "wrong-core-alone": ("Denied", "gpu-core 50 is asked without memory"),
    "wrong-request-is-not-limit": ("Denied", "the request must equal the limit"),
    "wrong-one-and-a-half-cpus": ("Denied", "1500m is no whole number of CPUs; write 1 or 2"),
    "waits-for-a-larger-card": ("Unschedulable", "0 of 8 GPUs (1 unhealthy) can hold it"),
}


@pytest.fixture(scope="module")
def examples() -> dict[str, Any]:
    """The examples as simulated, once."""
    with contextlib.redirect_stdout(io.StringIO()) as written:
        assert main(["simulate", *BOTH, "-o", "json"]) == 0
    return {item["metadata"]["name"]: item for item in json.loads(written.getvalue())["items"]}


def _allocated(pod: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What a Pod holds of devices, by type."""
    found: dict[str, list[dict[str, Any]]] = json.loads(pod["metadata"]["annotations"].get(ALLOCATED, "{}"))
    return found


def _shares(pod: dict[str, Any], kind: str = "gpu") -> list[dict[str, Any]]:
    return _allocated(pod)[kind]


def _cpus(pod: dict[str, Any]) -> int:
    """The CPUs of a Pod's own, as a set."""
    annotations = pod["metadata"].get("annotations") or {}
    return parse(json.loads(annotations.get(STATUS, "{}")).get("cpuset", ""))


def _given() -> list[dict[str, Any]]:
    """The objects of the example cluster."""
    return list(yaml.safe_load_all((EXAMPLES / "cluster.yaml").read_text()))


def _places(kind: str) -> dict[str, dict[str, Any]]:
    """The places of a type's devices on h200-1, by id."""
    entries = next(obj for obj in _given() if (obj["kind"], obj["metadata"]["name"]) == ("Device", "h200-1"))
    return {entry["id"]: entry["topology"] for entry in entries["spec"]["devices"] if entry["type"] == kind}


@pytest.mark.parametrize("name", PLACED)
def test_each_form_of_asking_gets_its_cards(examples: dict[str, Any], name: str) -> None:
    cards, core, memory = PLACED[name]
    assert examples[name]["spec"]["nodeName"]
    shares = _shares(examples[name])
    assert len({share["id"] for share in shares}) == cards
    for share in shares:
        resources = share["resources"]
        assert resources["kubernetes.io/gpu-core"] == str(core)
        which = "gpu-memory" if isinstance(memory, str) else "gpu-memory-ratio"
        assert resources[f"kubernetes.io/{which}"] == str(memory)


@pytest.mark.parametrize("name", GIVEN)
def test_each_pod_gets_all_that_it_asks(examples: dict[str, Any], name: str) -> None:
    devices, cpus = GIVEN[name]
    pod = examples[name]
    assert pod["spec"]["nodeName"]
    assert {kind: len({one["id"] for one in shares}) for kind, shares in _allocated(pod).items()} == devices
    assert _cpus(pod).bit_count() == cpus


def test_whole_cards_are_those_that_sit_closest_together(examples: dict[str, Any]) -> None:
    places = _places("gpu")
    at = [places[share["id"]] for share in _shares(examples["train-4-together"])]
    assert len({place["nodeID"] for place in at}) == 1


def test_a_nic_comes_from_the_pcie_root_of_the_cards_with_a_function_of_its_own(examples: dict[str, Any]) -> None:
    pod = examples["train-beside-rdma"]
    roots = {_places("gpu")[share["id"]]["pcieID"] for share in _shares(pod)}
    nics = _shares(pod, "rdma")
    assert roots == {_places("rdma")[share["id"]]["pcieID"] for share in nics}
    function = nics[0]["extension"]["vfs"][0]["busID"]
    assert function.rpartition(".")[0] == nics[0]["id"].rpartition(".")[0]


def test_cpus_of_ones_own_are_whole_cores_and_never_reserved(examples: dict[str, Any]) -> None:
    cpus = _cpus(examples["own-whole-cores"])
    low, high = cpus & (2**32 - 1), cpus >> 32
    assert low == high, "CPU k and CPU k+32 are the threads of core k"
    assert not low & 1, "core 0 is reserved"


def test_cpus_and_card_stand_in_one_numa_node(examples: dict[str, Any]) -> None:
    pod = examples["own-cpus-beside-a-card"]
    nodes = {_places("gpu")[share["id"]]["nodeID"] for share in _shares(pod)}
    assert nodes == {one["node"] for one in json.loads(pod["metadata"]["annotations"][STATUS])["numaNodeResources"]}
    half = 2**16 - 1  # 16 cores a socket, of which one thread is numbered below 32 and one above
    inside = {0: half | half << 32, 1: (half << 16) | (half << 48)}[nodes.pop()]
    assert not _cpus(pod) & ~inside


def test_a_pod_that_bursts_gets_its_pool(examples: dict[str, Any]) -> None:
    status = json.loads(examples["bursts-in-one-pool"]["metadata"]["annotations"][STATUS])
    assert [set(pool) for pool in status["cpuSharedPools"]] == [{"socket", "node"}]
    assert "cpuset" not in status


def test_a_container_finds_the_devices_of_an_own_type_in_its_variable(examples: dict[str, Any]) -> None:
    pod = examples["whole-encoder"]
    env = next(entry for entry in pod["spec"]["containers"][0]["env"] if entry["name"] == "ENCODER_IDS")
    key = env["valueFrom"]["fieldRef"]["fieldPath"].split("'")[1]
    assert pod["metadata"]["annotations"][key] == _shares(pod, "encoder")[0]["id"]


@pytest.mark.parametrize("name", REFUSED)
def test_each_wrong_form_is_refused_with_its_reason(examples: dict[str, Any], name: str) -> None:
    reason, message = REFUSED[name]
    status = examples[name]["status"]
    assert (status["phase"], status["reason"]) == ("Pending", reason)
    assert message in status["message"]


def test_the_examples_are_all_reported_in_order(examples: dict[str, Any]) -> None:
    given = [pod["metadata"]["name"] for pod in yaml.safe_load_all((EXAMPLES / "workload.yaml").read_text())]
    assert list(examples) == given
    assert set(given) == {*PLACED, *GIVEN, *REFUSED, *LEFT_ALONE}


def test_a_bound_pod_stands_as_in_the_cluster(examples: dict[str, Any]) -> None:
    pod = examples["one-container-without"]
    assert pod["spec"]["schedulerName"] == "koord-scheduler"
    assert pod["metadata"]["namespace"] == "default"
    share = _shares(pod)[0]
    assert pod["metadata"]["annotations"]["visible-devices.koordgate.io/serve"] == share["id"]
    serve, proxy = pod["spec"]["containers"]
    assert serve["resources"]["requests"]["kubernetes.io/gpu-core"] == "30"
    assert serve["env"][0]["valueFrom"]["fieldRef"]["fieldPath"].endswith("['visible-devices.koordgate.io/serve']")
    assert proxy["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def test_memory_is_stated_of_the_smallest_card_that_the_pod_can_reach(examples: dict[str, Any]) -> None:
    def requests(name: str) -> dict[str, str]:
        found: dict[str, str] = examples[name]["spec"]["containers"][0]["resources"]["requests"]
        return found

    assert requests("train-2-cards")["kubernetes.io/gpu-memory"] == "163118Mi"  # its nodeSelector names the H100
    assert requests("half-a-card")["kubernetes.io/gpu-memory"] == "41758208Ki"  # half of the smallest card in reach


def test_nothing_is_given_twice_by_the_annotations_alone(examples: dict[str, Any]) -> None:
    """Counted from the input's objects and the output's annotations, with only the quantities of our code."""
    capacity: dict[tuple[str, str], dict[str, int]] = {}
    for obj in _given():
        name = obj["metadata"]["name"]
        for entry in obj["spec"]["devices"] if obj["kind"] == "Device" else ():
            capacity[name, entry["id"]] = {what: to_int(amount) for what, amount in entry["resources"].items()}
            capacity[name, entry["id"]] |= {"example.com/encoder": 100}  # of a whole one, as the annotation counts
        for queue, places in json.loads(
            (obj["metadata"].get("annotations") or {}).get("koordgate.io/classes", '{"queue":{}}')
        )["queue"].items():
            capacity[name, queue] = {"example.com/queue": places}
        capacity.setdefault((name, "shared"), {"example.com/queue": 5})  # by config.yaml
    used: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    functions, cpus = [], 0
    for pod in examples.values():
        if "annotations" not in pod["metadata"] or not pod["spec"].get("nodeName"):
            continue
        assert not cpus & _cpus(pod), "all Pods with CPUs of their own are on one node"
        cpus |= _cpus(pod)
        for share in (share for shares in _allocated(pod).values() for share in shares):
            functions += [one["busID"] for one in share.get("extension", {}).get("vfs", ())]
            for name, amount in share["resources"].items():
                used[pod["spec"]["nodeName"], share["id"]][name] += to_int(amount)
    assert used
    assert cpus
    assert len(functions) == len(set(functions)) > 0
    for which, amounts in used.items():
        for name, amount in amounts.items():
            assert amount <= capacity[which][name], (which, name)


@pytest.mark.parametrize("output", ["table", "yaml", "json"])
def test_the_same_input_gives_the_same_bytes(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> tuple[str, str]:
        assert main(["simulate", *BOTH, "-o", output]) == 0
        written = capsys.readouterr()
        return written.out, written.err

    assert run() == run()


def test_yaml_and_json_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *BOTH, "-o", "yaml"]) == 0
    as_yaml = yaml.safe_load(capsys.readouterr().out)
    assert main(["simulate", *BOTH, "-o", "json"]) == 0
    assert as_yaml == json.loads(capsys.readouterr().out)
    assert (as_yaml["apiVersion"], as_yaml["kind"]) == ("v1", "List")


def test_the_output_fed_back_is_what_is_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = listed(capsys, *BOTH)
    again = listed(capsys, "-f", str(EXAMPLES / "cluster.yaml"), "-f", saved(tmp_path, first.values()), *CONFIG)
    assert again == first


def test_a_reader_that_goes_away_is_no_trouble() -> None:
    command = "import sys; from koordgate.cli import main; sys.exit(main(sys.argv[1:]))"
    argv = (sys.executable, "-c", command, "simulate", *BOTH)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


def test_what_the_objects_do_not_report_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *BOTH, "-o", "json"]) == 0
    errors = capsys.readouterr().err
    assert "Pod default/sets-visible-devices: warning: spec.containers[0].env" in errors
    assert "Pod default/wrong-node-preset: asks for devices and carries no allocation" in errors


def test_what_is_said_of_many_pods_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asks = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000"}}
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main", "resources": asks}]}}
    spec = {"replicas": 5, "selector": {"matchLabels": {"app": "a"}}, "template": template}
    wide = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "wide"}, "spec": spec}
    file = saved(tmp_path, [*machine(cards=2), wide])

    off = tmp_path / "settings.yaml"
    off.write_text("mode: enforce")

    def told(*words: str) -> list[str]:
        main(["simulate", "-f", file, "-o", "json", "--config", str(off), *words])
        return [line for line in capsys.readouterr().err.splitlines() if "of the dialect hami" in line]

    (once,) = told()
    assert once.count("default/wide-") == 3
    assert " and 2 more: warning: spec.containers[0]: nvidia.com/gpumem is of the dialect hami" in once
    assert [line.count("default/wide-") for line in told("--all")] == [1] * 5


def test_what_runs_already_is_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(cards=2), gpus("new", 50), held("old", "node-1", (0, 60), (1, 80))]
    new = listed(capsys, "-f", saved(tmp_path, objects))["new"]
    assert new["status"]["reason"] == "Unschedulable"
    assert "the most free is gpu 0 with core 40 percent, memory 32 GiB (40 percent)" in new["status"]["message"]
    new = listed(capsys, "-f", saved(tmp_path, [*machine(cards=2), gpus("new", 40), objects[-1]]))["new"]
    assert [share["minor"] for share in _shares(new)] == [0]


def test_two_pods_that_say_they_hold_the_same_card_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = [*machine(cards=1), held("one", "node-1", (0, 100)), held("two", "node-1", (0, 100))]
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    assert "node-1: 200 gpu-core of GPU-node-1-0 given, it has 100" in capsys.readouterr().err


def test_a_full_cluster_refuses_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine("node-1", cards=1), *machine("node-2", cards=1), *(gpus(f"pod-{n}", 60) for n in range(4))]
    pods = listed(capsys, "-f", saved(tmp_path, objects))
    assert [pods[f"pod-{n}"]["spec"].get("nodeName") for n in range(4)] == ["node-1", "node-2", None, None]
    # Each node has too little in sum: kube-scheduler refuses it before it calls the extender.
    assert pods["pod-3"]["status"] == {
        "phase": "Pending",
        "reason": "Unschedulable",
        "message": "node-1, node-2: not enough kubernetes.io/gpu-core: 60 requested, 40 of 100 free",
    }


def test_only_the_named_node_is_tried(capsys: pytest.CaptureFixture[str]) -> None:
    pods = listed(capsys, *BOTH, "--node", "a100-2")
    assert pods["half-a-card"]["spec"]["nodeName"] == "a100-2"
    assert pods["train-2-cards"]["status"]["message"] == (
        "a100-2: the Pod's nodeSelector or required node affinity does not match the node's labels"
    )


def test_settings_are_those_of_the_webhook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("domain: koordinator.sh\nscheduler: {name: my-scheduler, username: me}\n")
    file = saved(tmp_path, [*machine(), gpus("pod", 50)])
    pod = listed(capsys, "-f", file, "--config", str(config))["pod"]
    assert pod["spec"]["schedulerName"] == "my-scheduler"
    assert "koordinator.sh/gpu-core" in pod["spec"]["containers"][0]["resources"]["requests"]
    assert "koordinator.sh/gpu-core" in _shares(pod)[0]["resources"]


def test_pods_without_devices_take_cpu_from_those_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(cpu="4"), asking("web", {"cpu": "3"}), asking("gpu", {"cpu": "2", "kubernetes.io/gpu": "50"})]
    pods = listed(capsys, "-f", saved(tmp_path, objects))
    assert pods["web"]["spec"]["nodeName"] == "node-1"
    assert "metadata" in pods["web"]
    assert "annotations" not in pods["web"]["metadata"]
    assert pods["gpu"]["status"]["message"] == "node-1: not enough cpu: 2 requested, 1 of 4 free"


def test_a_namespace_that_the_chart_exempts_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(), asking("plugin", {"nvidia.com/gpu": "1"}, namespace="kube-system")]
    plugin = listed(capsys, "-f", saved(tmp_path, objects))["plugin"]
    assert plugin["spec"]["nodeName"] == "node-1"
    assert plugin["spec"]["schedulerName"] == "default-scheduler"
    assert "annotations" not in plugin["metadata"]


def test_a_device_that_cannot_be_read_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = device(cards=2)
    del broken["spec"]["devices"][0]["id"]
    file = saved(tmp_path, [node(), broken, device("node-2"), asking("web")])
    assert main(["simulate", "-f", file]) == 0
    errors = capsys.readouterr().err
    assert "Device node-1: spec.devices[0]: no id" in errors
    assert "Device node-2: there is no Node with this name" in errors


def test_cards_that_nobody_can_have_are_shown_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sick = device(cards=2)
    sick["spec"]["devices"][1]["health"] = False
    sick["metadata"]["annotations"] = {
        "node.koordinator.sh/devices-checkpoints": json.dumps([{"deviceIDs": ["GPU-node-1-0"]}])
    }
    objects = [node(), sick, held("old", "node-1", (5, 50)), gpus("new", 50)]
    assert main(["simulate", "-f", saved(tmp_path, objects)]) == 0
    table = capsys.readouterr().out
    assert "allocated by the kubelet's device plugin" in table
    assert "takes no new Pods: unhealthy" in table
    assert "takes no new Pods: the node has no such device" in table
    assert "0 of 2 GPUs (1 unhealthy, 1 held by the kubelet's device plugin) can hold it" in table


@pytest.mark.parametrize(
    ("version", "minimum", "nodes"),
    [
        ("scheduling.x-k8s.io/v1alpha1", 0, {"small", "wide"}),
        ("scheduling.x-k8s.io/v1alpha1", 4, {"wide"}),
        ("scheduling.sigs.k8s.io/v1alpha1", 4, {"wide"}),
        ("scheduling.volcano.sh/v1beta1", 4, {"small", "wide"}),
    ],
)
def test_a_pod_group_in_the_input_states_the_size_of_a_gang(
    version: str, minimum: int, nodes: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = {"apiVersion": version, "kind": "PodGroup", "metadata": {"name": "train"}}
    label = {"scheduling.x-k8s.io/pod-group": "train"}
    groups = [{**group, "spec": {"minMember": minimum}}] if minimum else []
    groups.append({**group, "metadata": {"name": "train", "namespace": "elsewhere"}, "spec": {"minMember": 9}})
    pods = [gpus(f"worker-{at}", 200, labels=label) for at in range(4)]
    objects = [*machine("small", 2), *machine("wide", 8), *groups, *pods]
    found = listed(capsys, "-f", saved(tmp_path, objects))
    assert {pod["spec"]["nodeName"] for pod in found.values()} == nodes


@pytest.mark.parametrize(("cards", "landed"), [(4, {""}), (8, {"wide"})])
def test_a_gang_that_asks_for_all_or_nothing_gets_all_or_nothing(
    cards: int, landed: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = {"kind": "PodGroup", "metadata": {"name": "train"}, "spec": {"minMember": 4}}
    about = {
        "labels": {"scheduling.x-k8s.io/pod-group": "train"},
        "annotations": {"koordgate.io/gang-all-or-nothing": "true"},
    }
    pods = [gpus(f"worker-{at}", 200, **about) for at in range(4)]
    config = tmp_path / "config.yaml"
    config.write_text("gangs: {allOrNothing: true}")
    objects = [*machine("wide", cards), group, *pods]
    found = listed(capsys, "-f", saved(tmp_path, objects), "--config", str(config))
    assert {pod["spec"].get("nodeName", "") for pod in found.values()} == landed
    gated = [pod["metadata"]["name"] for pod in found.values() if pod["spec"].get("schedulingGates")]
    assert len(gated) == (4 if landed == {""} else 0)


def test_what_resource_claims_hold_is_not_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = [{"name": f"gpu-{minor}", "attributes": {"uuid": {"string": f"GPU-n1-{minor}"}}} for minor in range(2)]
    slices = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1", "generation": 1}, "devices": cards}
    results = [{"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "request": "gpu"}]
    allocation = {"devices": {"results": results}}
    objects = [
        *machine("n1"),
        {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": slices},
        {"kind": "ResourceClaim", "metadata": {"name": "c"}, "status": {"allocation": allocation}},
        gpus("first", 100),
        gpus("second", 100),
    ]
    path = saved(tmp_path, objects)
    pods = listed(capsys, "-f", path)
    assert [one["id"] for one in json.loads(pods["first"]["metadata"]["annotations"][ALLOCATED])["gpu"]] == ["GPU-n1-1"]
    assert ALLOCATED not in pods["second"]["metadata"].get("annotations", {})
    assert main(["simulate", "-f", path]) == 0
    said = capsys.readouterr()
    assert "held by ResourceClaims" in said.out
    assert "is not used" not in said.out + said.err
