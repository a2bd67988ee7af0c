"""`koordgate adopt check`: who holds what, what would clash, and the seven steps, from objects of a cluster."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from adopt.objects import GPU, SHADOW, Raw, cluster, devices, found, gpu_pod, node
from builders import container, device_entry, device_object, pod

from allocator.vocabulary.names import Mode
from console.adopt.findings import ClusterFindings, HeldBy, NodeFinding, find
from console.adopt.steps import blockers, steps
from console.adopt.tables import check_tables
from console.cluster import ReadCluster, Reading, cluster_of
from console.simulator.cluster import OfflineCluster
from console.terminal import show
from koordgate.cli import main
from webhook.settings import WebhookSettings, parse

HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}


def reporter(on: str, *, ready: bool = True) -> Raw:
    made = pod(container(), name=f"r-{on}", uid=f"r-{on}", labels={"app.kubernetes.io/name": "koordgate-reporter"})
    made["spec"]["nodeName"] = on
    state = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    return {**made, "kind": "Pod", "status": state}


def namespace(name: str, mode: str) -> Raw:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": {"koordgate.io/mode": mode}}}


async def ours(name: str, on: str, namespace: str = "team") -> Raw:
    """A Pod that koordgate translated and bound."""
    offline = OfflineCluster.in_process()
    await offline.load([node(on), devices(on)])
    result = await offline.submit({**gpu_pod(name, namespace), "apiVersion": "v1"})
    return {**result.pod, "kind": "Pod"}


async def test_node_by_node_it_is_told_who_holds_what_by_which_evidence() -> None:
    held = found(
        node("n1", **{"nvidia.com/gpu": "2"}),
        devices("n1", {1: "uid-plain"}),
        reporter("n1"),
        await ours("mine", "n1"),
        gpu_pod("plain", nodeName="n1"),
    )
    (one,) = held.nodes
    assert (one.ready, one.listed, one.devices) == (True, True, 2)
    assert one.held == (
        HeldBy("GPU-n1-0", "team/mine", "uid-mine", "Koordinator", "scheduling.koordinator.sh/device-allocated"),
        HeldBy("GPU-n1-1", "team/plain", "uid-plain", "device plugin", "kubelet's checkpoint"),
    )
    assert one.offers == {"nvidia.com/gpu": "2"}
    assert held.clashes == []


@pytest.mark.parametrize("mirror", [True, False])
def test_amounts_that_the_reporter_mirrors_are_no_offer_of_another_product(*, mirror: bool) -> None:
    settings = f"{{mirror: [{'volcano' if mirror else 'hami'}], dialects: {{volcano-share: {{enabled: true}}}}}}"
    amounts = {"volcano.sh/gpu-memory": "49152", "volcano.sh/gpu-number": "2", "nvidia.com/gpu": "2"}
    (one,) = found(node("n1", **amounts), devices("n1"), reporter("n1"), settings=parse(settings)).nodes
    assert one.offers == ({"nvidia.com/gpu": "2"} if mirror else amounts)


PRODUCTS: dict[str, tuple[dict[str, Any], str, bool]] = {
    "plain": ({"limits": GPU}, "device plugin", True),
    "HAMi": ({"limits": HAMI}, "HAMi", True),
    "gpushare": ({"limits": {"aliyun.com/gpu-mem": "3"}}, "Alibaba Cloud gpushare", False),
    "Volcano": ({"limits": {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "3000"}}, "Volcano vGPU", False),
    "KAI": ({"limits": {}, "annotations": {"gpu-fraction": "0.5"}}, "KAI Scheduler and Run:ai", False),
    "Koordinator": ({"limits": {"koordinator.sh/gpu": "50"}}, "Koordinator", True),
    "koordgate": ({"limits": GPU, "schedulerName": "koord-scheduler"}, "koordgate", True),
}


@pytest.mark.parametrize(("about", "product", "read"), PRODUCTS.values(), ids=PRODUCTS)
def test_the_product_of_a_pod_is_told_by_its_names(about: dict[str, Any], product: str, read: object) -> None:
    (one,) = found(gpu_pod("p", **about)).pods
    assert (one.product, one.read) == (product, read)


async def clash_of_two() -> list[Raw]:
    return [node("n1"), devices("n1", {0: "uid-plain"}), await ours("mine", "n1"), gpu_pod("plain", nodeName="n1")]


async def test_a_device_that_two_products_gave_clashes() -> None:
    (clash,) = found(*await clash_of_two()).clashes
    assert "GPU-n1-0 is held by team/mine through koordgate, and by team/plain through the device plugin" in clash


def test_a_running_pod_of_which_nothing_states_what_it_holds_clashes() -> None:
    (clash,) = found(node("n1"), devices("n1"), gpu_pod("silent", nodeName="n1")).clashes
    assert "nothing states which devices it holds" in clash


@pytest.mark.parametrize("of", ["koordgate", "koordlet"])
def test_a_running_pod_that_has_cpus_of_its_own_and_asks_for_no_devices_is_no_clash(of: str) -> None:
    said = {"scheduling.koordinator.sh/resource-status": '{"cpuset":"0-3"}'}
    scheduler = "koord-scheduler" if of == "koordgate" else "koord-scheduler-of-koordinator"
    cpus = pod(
        container(limits={"cpu": "4"}, requests={"cpu": "4"}),
        name="pinned",
        namespace="team",
        uid="uid-pinned",
        labels={"koordinator.sh/qosClass": "LSR"},
        annotations=said,
        nodeName="n1",
        schedulerName=scheduler,
    )
    made = cluster(node("n1"), devices("n1"), {**cpus, "kind": "Pod"})
    told = find(made, ReadCluster(made))
    assert (told.clashes, told.pods) == ([], ())
    (kept,) = made.objects("Pod")
    assert kept["metadata"]["annotations"] == said


@pytest.mark.parametrize(
    "key",
    [
        "scheduling.koordinator.sh/device-allocated",
        "visible-devices.koordgate.io/main",
        "rdma.visible-devices.koordgate.io/main",
        "koordgate.io/device-quotas",
        "nvidia-gpu-memory-limit.koordgate.io/main",
        "nvidia.cdi.k8s.io/container.main",
    ],
)
def test_a_running_pod_that_is_said_to_have_devices_of_which_none_is_known_clashes(key: str) -> None:
    plain = {**pod(container(), name="said", uid="u", namespace="team", nodeName="n1", annotations={key: "{}"})}
    (clash,) = found(node("n1"), devices("n1"), {**plain, "kind": "Pod"}).clashes
    assert "Pod team/said" in clash


def stated(card: str = "GPU-n1-0", name: str = "shared") -> Raw:
    """A running Pod of HAMi that states a share of a card."""
    said = {"hami.io/vgpu-devices-allocated": f"{card},NVIDIA,4096,30:;", "hami.io/vgpu-node": "n1"}
    return gpu_pod(name, limits=HAMI, nodeName="n1", schedulerName="hami-scheduler", annotations=said)


COUNTING = parse("{mode: shadow, dialects: {hami: {enabled: true}}, adopt: {peers: [hami]}}")


def test_what_another_product_states_is_held_by_its_evidence() -> None:
    told = found(node("n1"), devices("n1"), stated(), settings=COUNTING)
    (held,) = told.nodes[0].held
    assert held == HeldBy("GPU-n1-0", "team/shared", "uid-shared", "HAMi", "hami.io/vgpu-devices-allocated")
    assert told.clashes == []


def test_replicas_of_cards_that_the_kubelet_gave_to_pods_that_state_their_cards_are_no_devices() -> None:
    given = [{"podUID": "uid-shared", "resourceName": "nvidia.com/gpu", "deviceIDs": ["GPU-n1-0-3"]}]
    other = {"podUID": "uid-mig", "resourceName": "nvidia.com/mig-1g.5gb", "deviceIDs": ["MIG-1"]}
    told = found(node("n1"), devices("n1", json.dumps([*given, other])), stated(), settings=COUNTING)
    assert [(held.device, held.product) for held in told.nodes[0].held] == [
        ("GPU-n1-0", "HAMi"),
        ("MIG-1", "device plugin"),
    ]


def test_what_the_settings_do_not_count_is_shown_and_clashes() -> None:
    told = found(node("n1"), devices("n1"), stated(), stated(name="another"))
    assert len(told.nodes[0].held) == 2
    (clash,) = told.clashes
    assert clash == (
        "n1: Pods of HAMi state what they hold, and koordgate does not count it (2): add hami to adopt.peers"
    )


def test_a_conflict_of_another_products_statements_clashes() -> None:
    (clash,) = found(node("n1"), devices("n1"), stated("GPU-gone"), settings=COUNTING).clashes
    assert "names GPU-gone, which is none of the GPUs of node n1" in clash


def test_a_finished_pod_and_one_without_devices_are_left_out() -> None:
    finished = {**gpu_pod("done", nodeName="n1"), "status": {"phase": "Failed"}}
    plain = {**pod(container(), namespace="team", nodeName="n1"), "kind": "Pod"}
    assert found(node("n1"), devices("n1"), finished, plain).pods == ()


def left(told: ClusterFindings) -> list[int]:
    return [step.number for step in steps(told) if not step.done]


async def test_the_steps_that_are_left_are_told_with_a_command_each() -> None:
    before = [node("n1", **{"nvidia.com/gpu": "2"}), gpu_pod("waits"), gpu_pod("runs", nodeName="n1")]
    told = found(*before)
    assert left(told) == [1, 2, 3, 4, 5, 6, 7]
    assert all(step.command for step in steps(told))
    after = [node("n1"), devices("n1"), reporter("n1"), namespace("team", "enforce"), await ours("mine", "n1")]
    made = cluster(*after)
    assert left(find(made, ReadCluster(made))) == [6]


BLOCKED: dict[str, tuple[Callable[[], list[Raw]], str]] = {
    "a Pod waits": (lambda: [gpu_pod("waits")], "team/waits wait for another scheduler"),
    "a dialect is off": (
        lambda: [gpu_pod("p", limits={"aliyun.com/gpu-mem": "3"}, nodeName="n0")],
        "are not read there: turn on the dialect",
    ),
    "what runs is unknown": (
        lambda: [node("n1"), devices("n1"), gpu_pod("p", nodeName="n1")],
        "nothing states which devices it holds",
    ),
    "another namespace uses the node": (
        lambda: [node("n1"), devices("n1", {0: "uid-b"}), gpu_pod("b", "other", nodeName="n1")],
        "switch other together with these namespaces",
    ),
}


@pytest.mark.parametrize(("objects", "why"), BLOCKED.values(), ids=BLOCKED)
def test_a_switch_to_enforcement_is_held_up(objects: Callable[[], list[Raw]], why: str) -> None:
    (reason,) = blockers(found(*objects()), ["team"], Mode.ENFORCE)
    assert why in reason


def test_namespaces_that_share_nodes_are_switched_together() -> None:
    told = found(node("n1"), devices("n1", {0: "uid-b"}), gpu_pod("b", "other", nodeName="n1"))
    assert list(blockers(told, ["team", "other"], Mode.ENFORCE)) == []
    assert list(blockers(told, ["team"], Mode.SHADOW)) == []


def test_nothing_is_switched_to_enforcement_without_webhooks() -> None:
    made = cluster(node("n1"))
    made.installed = False
    (reason,) = blockers(find(made, ReadCluster(made)), ["team"], Mode.ENFORCE)
    assert "install the chart" in reason


@pytest.mark.parametrize("to", Mode)
def test_nothing_is_switched_by_settings_that_nobody_confirmed(to: Mode) -> None:
    made = cluster(node("n1"), settings=WebhookSettings())
    made.assumed = True
    (reason,) = blockers(find(made, ReadCluster(made)), ["team"], to)
    assert "--installed-in" in reason


@pytest.mark.parametrize("exempt", ["kube-system", "koordgate-system"])
def test_an_exempt_namespace_is_not_said_to_be_switched(exempt: str) -> None:
    (reason,) = blockers(found(node("n1")), ["team", exempt], Mode.ENFORCE)
    assert exempt in reason
    assert "team" not in reason


# The command


def run(*words: str) -> int:
    return main(["adopt", *words])


def file_of(folder: Path, *objects: Raw) -> str:
    path = folder / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": list(objects)}))
    return str(path)


async def objects_of_a_move() -> list[Raw]:
    return [
        node("a-node-with-quite-a-long-name.of.a.domain.example.com", **{"nvidia.com/gpu": "2"}),
        devices("a-node-with-quite-a-long-name.of.a.domain.example.com"),
        *await clash_of_two(),
        gpu_pod("w" * 63, "n" * 63),
        namespace("n" * 63, "shadow"),
    ]


async def test_tables_have_at_most_100_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path, *await objects_of_a_move())
    assert await asyncio.to_thread(run, "check", "-f", path) == 4
    assert await asyncio.to_thread(run, "report", "n" * 63, "-f", path) == 0
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= 100
    assert "WHAT CLASHES" in told


def test_the_exit_status_tells_whether_steps_are_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path, node("n1"), devices("n1"))
    assert run("check", "-f", path, "-o", "json") == 3
    told = json.loads(capsys.readouterr().out)
    assert [step["number"] for step in told["steps"] if not step["done"]] == [1, 6]
    assert told["nodes"][0]["reporter"] == "none"


WRONG: dict[str, tuple[list[str], str]] = {
    "no such file": (["check", "-f", "/no/such/file"], "cannot be read"),
    "a namespace without such Pods": (["report", "nobody", "-f", "FILE"], "no Pod of nobody asks for devices"),
    "settings that are none": (["check", "-f", "FILE", "--config", "/no/such/file"], "/no/such/file"),
}


@pytest.mark.parametrize(("words", "why"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_refused_with_what_to_do(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, node("n1"))
    assert run(*(path if word == "FILE" else word for word in words)) == 2
    assert why in capsys.readouterr().err


def test_an_object_of_a_wrong_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(tmp_path, {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": 7}})
    assert run("check", "-f", path) == 2
    assert "the API server would refuse it" in capsys.readouterr().err


def test_records_that_cannot_be_read_are_told_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"kind": "NodeAllocation", "apiVersion": "koordgate.io/v1alpha1", "spec": 7}
    broken = [{**record, "metadata": {"name": name}} for name in ("n1", "gone")]
    path = file_of(tmp_path, node("n1"), devices("n1"), *broken)
    assert run("check", "-f", path, "-o", "json") == 3
    told = capsys.readouterr()
    assert "gone" in told.err
    (one,) = json.loads(told.out)["nodes"]
    assert one["problems"]
    assert not one["ready"]


def test_without_a_kubeconfig_the_user_is_told_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run("check") == 1
    told = capsys.readouterr().err
    assert "write the kubeconfig there, or name it in $KUBECONFIG; or give objects with -f" in told


def test_files_without_the_installations_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": "mode: shadow"}}
    objects = [node("n1"), devices("n1"), gpu_pod("p", nodeName="n1")]
    told = {}
    for name, more in (("without", []), ("with", [stated])):
        (tmp_path / name).mkdir()
        run("check", "-f", file_of(tmp_path / name, *objects, *more), "-o", "json")
        printed = capsys.readouterr()
        told[name] = (json.loads(printed.out)["namespaces"], "the default settings are assumed" in printed.err)
    assert told == {"without": ({"team": "enforce"}, True), "with": ({"team": "shadow"}, False)}


def test_the_report_frees_what_the_pods_hold_in_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "20000", "nvidia.com/gpucores": "20"}
    settings = tmp_path / "settings.yaml"
    settings.write_text("mode: shadow\ndialects: {hami: {enabled: true}}\n")
    pods = [gpu_pod(name, limits=share, nodeName="n1") for name in ("a", "b")]
    path = file_of(tmp_path, node("n1"), devices("n1", {0: "uid-a", 1: "uid-b"}), *pods, gpu_pod("c", limits=share))
    assert run("report", "-f", path, "-o", "json", "--config", str(settings)) == 0
    (told,) = json.loads(capsys.readouterr().out)["namespaces"]
    assert (told["pods"], told["translated"], told["refused"], told["waiting"]) == (3, 3, {}, {})
    assert (told["sameNode"], told["cardsNow"], told["cardsThen"]) == (2, 2, 1)
    assert {one["devices"][0]["id"] for one in told["placed"].values()} == {"GPU-n1-0"}


async def a_move() -> list[Raw]:
    """A card that two products gave, a Pod that waits, and a namespace that is only observed."""
    stated = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": "mode: shadow"}}
    found = [node("n1", **{"nvidia.com/gpu": "2"}), devices("n1", {0: "uid-plain"}), reporter("n1"), stated]
    pods = [await ours("mine", "n1"), gpu_pod("plain", nodeName="n1"), gpu_pod("waits")]
    return [*found, *pods, namespace("team", "shadow")]


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (
            ("check",),
            4,
            (
                "Koordinator: 1 device, 1 Pod",
                "device plugin: 1 device, 1 Pod",
                "cards by environment",
                "team shadow 2 1 device plugin 2, koordgate 1",
                "1 done koordgate is installed, and a reporter is ready on every node with devices",
                "5 needed every namespace with such Pods is switched - team is in mode shadow",
                "WHAT CLASHES n1: gpu GPU-n1-0 is held by team/mine through koordgate",
            ),
        ),
        (
            ("report",),
            0,
            ("team 2 in mode shadow 1 now waits 1: n1: not enough", "1 would wait team/plain: n1 gpu:1"),
        ),
        (("report", "team"), 0, ("1 placed", "2 translated")),
    ],
    ids=["check", "report", "report of a namespace"],
)
async def test_it_is_written_as_tables(
    words: tuple[str, ...], status: int, told: Iterable[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, *await a_move())
    assert await asyncio.to_thread(run, *words, "-f", path) == status
    printed = capsys.readouterr()
    assert printed.err == ""
    text = " ".join(printed.out.split())
    assert [one for one in told if one not in text] == []


async def test_a_report_is_on_observed_namespaces_unless_others_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spaces = {"a": "enforce", "b": "shadow", "c": "off", "d": "shadow"}
    pods = [gpu_pod(f"p-{name}", name) for name in spaces]
    labels = [namespace(name, mode) for name, mode in spaces.items()]
    path = file_of(tmp_path, *(await a_move())[:4], *pods, *labels)
    for words, told in (((), "bd"), (("c", "a"), "ac")):
        assert await asyncio.to_thread(run, "report", *words, "-f", path, "-o", "json") == 0
        found = json.loads(capsys.readouterr().out)["namespaces"]
        assert "".join(one["namespace"] for one in found) == told
    assert await asyncio.to_thread(run, "report", "x", "a", "y", "-f", path) == 2
    assert capsys.readouterr().err == "koordgate adopt: no Pod of x, y asks for devices; there are a, b, c, d\n"


def test_where_nothing_is_observed_that_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": "mode: shadow"}}
    path = file_of(tmp_path, node("n1"), stated)
    assert run("report", "-f", path) == 0
    nothing = "no namespace in mode shadow has Pods that ask for devices; name the namespaces to report on\n"
    assert capsys.readouterr().out == nothing
    assert run("report", "x", "-f", path) == 2
    assert capsys.readouterr().err == "koordgate adopt: no Pod of x asks for devices; there are none\n"


async def test_when_all_is_done_the_status_is_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stated = {"kind": "ConfigMap", "metadata": {"name": "koordgate"}, "data": {"config.yaml": ""}}
    mine = await ours("mine", "n1")
    card = {"type": "gpu", "id": "GPU-n1-0", "minor": 0, "amounts": {"gpu-core": 100}, "containers": ["main"]}
    held = {"uid": "uid-mine", "namespace": "team", "name": "mine", "since": "2026-01-01T00:00:00Z", "devices": [card]}
    record = {"kind": "NodeAllocation", "apiVersion": "koordgate.io/v1alpha1", "metadata": {"name": "n1"}}
    record["spec"] = {"allocations": [held]}
    path = file_of(tmp_path, node("n1"), devices("n1"), reporter("n1"), mine, record, stated)
    assert await asyncio.to_thread(run, "check", "-f", path) == 0
    assert "WHAT CLASHES" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("switch", "team", "--to", "shadow"), ("switch", "team", "--to", "enforce", "--dry-run")]
)
def test_a_switch_without_a_kubeconfig_is_not_told_of_files(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run(*words) == 1
    assert capsys.readouterr().err.endswith("write the kubeconfig there, or name it in $KUBECONFIG\n")


@pytest.mark.parametrize("scheduler", ["a-scheduler", "default-scheduler", "volcano"])
def test_a_pod_of_any_other_scheduler_is_not_koordgates(scheduler: str) -> None:
    (one,) = found(gpu_pod("p", schedulerName=scheduler)).pods
    assert one.product == "device plugin"


def runtime_class(name: str = "nvidia") -> Raw:
    return {"kind": "RuntimeClass", "metadata": {"name": name}, "handler": name}


def told_of(name: str, runtime: str, **entry: Any) -> Raw:
    listed = [device_entry(at, id=f"GPU-{name}-{at}", domain="kubernetes.io", **entry) for at in range(2)]
    return device_object(*listed, name=name, annotations={"koordgate.io/runtime": runtime})


def test_of_nodes_with_nvidias_cards_it_is_told_how_containers_get_them() -> None:
    runc = '{"handlers":["runc","nvidia"],"showing":["nvidia"],"defaultShows":false}'
    deaf = '{"handlers":["runc"],"showing":[],"defaultShows":false}'
    other = {"labels": {"node.koordinator.sh/gpu-vendor": "other"}}
    made = cluster(node("a"), node("b"), node("c"), told_of("a", runc), told_of("b", deaf), told_of("c", runc, **other))
    made.take("RuntimeClass", runtime_class())
    made.classes = True
    told = find(made, ReadCluster(made))
    assert [(one.name, one.delivery) for one in told.nodes] == [("a", "runtimeClass"), ("b", "none"), ("c", "")]
    (unshown,) = told.unshown
    assert unshown.startswith("Pods get no cards on 1 node (b): each has no runtime handler nvidia")


def test_a_file_that_has_a_runtime_class_has_all_of_them_and_one_without_any_has_the_configured_one() -> None:
    runc = '{"handlers":["runc","nvidia"],"showing":["nvidia"],"defaultShows":false}'
    objects = [node("a"), told_of("a", runc)]
    for more, way in ([], "runtimeClass"), ([runtime_class("kata")], "none"), ([runtime_class()], "runtimeClass"):
        read = [("file", one, one["kind"]) for one in (*objects, *more)]
        made = cluster_of(Reading(read), SHADOW)
        assert [one.delivery for one in find(made, ReadCluster(made)).nodes] == [way]


def test_the_table_says_how_containers_get_their_cards(capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [
        NodeFinding(way or "x", way != "none", True, "ready", 1, delivery=way) for way in ("environment", "none", "")
    ]
    show(*check_tables(ClusterFindings(tuple(nodes), (), {}), []))
    words = " ".join(capsys.readouterr().out.partition("NAMESPACE")[0].replace(" -", "").split())
    assert words == (
        "NODE READY HELD BY STILL OFFERS environment yes 1 device cards by environment none no 1 device no way for "
        "cards x yes 1 device"
    )


def test_devices_are_assumed_for_nodes_without_a_device_object_and_are_no_clash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cards = node("gke", **{"nvidia.com/gpu": "2"})
    cards["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    objects = [cards, node("odd", **{"nvidia.com/gpu": "1"}), gpu_pod("runs", nodeName="gke"), gpu_pod("waits")]
    path = file_of(tmp_path, *objects)
    assert run("check", "-f", path, "-o", "json") == 3
    told = capsys.readouterr()
    assert "GPUs left out on odd: they are of an unknown model" in told.err
    assert "assumed GPUs: 2 on gke, from nvidia.com/gpu and the model L4" in told.err
    nodes = json.loads(told.out)["nodes"]
    assert [(one["node"], one["devices"], one["deviceObject"]) for one in nodes] == [
        ("gke", 2, False),
        ("odd", 0, False),
    ]
    assert run("report", "team", "-f", path, "-o", "json") == 0
    (report,) = json.loads(capsys.readouterr().out)["namespaces"]
    assert {name: one["node"] for name, one in report["placed"].items()} == {"team/runs": "gke", "team/waits": "gke"}


def registered(name: str, *cards: str) -> Raw:
    """A Node that HAMi's device plugin registered, before koordgate has a reporter there."""
    made = node(name, **{"nvidia.com/gpu": str(10 * len(cards))})
    told = [{"id": card, "devmem": 81920, "type": "NVIDIA-A100", "health": True} for card in cards]
    made["metadata"]["annotations"] = {"hami.io/node-nvidia-register": json.dumps(told)}
    return made


def test_before_koordgate_is_installed_what_hami_states_of_registered_cards_is_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("{mode: shadow, dialects: {hami: {enabled: true}}, adopt: {peers: [hami]}}")
    path = file_of(tmp_path, registered("n1", "GPU-n1-0", "GPU-n1-1"), stated(), stated("GPU-gone", "strange"))
    assert run("check", "-f", path, "--config", str(settings), "-o", "json") == 3
    told = json.loads(capsys.readouterr().out)
    (one,) = told["nodes"]
    assert (one["ready"], one["deviceObject"], one["devices"]) == (False, False, 2)
    assert [(held["device"], held["holder"]) for held in one["held"]] == [("GPU-n1-0", "team/shared")]
    assert told["clashes"] == []
    assert run("report", "team", "-f", path, "--config", str(settings), "-o", "json") == 0
    (report,) = json.loads(capsys.readouterr().out)["namespaces"]
    assert (report["cardsNow"], report["cardsThen"]) == (1, 1)


def test_before_koordgate_is_installed_a_product_that_the_settings_do_not_count_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", "-f", file_of(tmp_path, registered("n1", "GPU-n1-0"), stated()), "-o", "json") == 4
    (clash,) = json.loads(capsys.readouterr().out)["clashes"]
    assert clash == (
        "n1: Pods of HAMi state what they hold, and koordgate does not count it (1): add hami to adopt.peers"
    )
