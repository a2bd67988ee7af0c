"""What `koordgate explain` explains: Pods, and what creates Pods, once for all that are alike."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import Answer, Koordgate
from explain.scenes import Raw, bound, gpu_pod, node, scheduled, waiting
from fake_kube import FakeKube
from kubeconfigs import write_kubeconfig

from console.explain.target import Named, read_name
from koordgate.kube.resource import DEVICES, NODES, PODS, Resource

Ask = Callable[..., Answer]
DEPLOYMENTS = Resource("apps", "v1", "deployments", namespaced=True)


def deployment(replicas: int = 3, cards: int = 1, **metadata: Any) -> Raw:
    asks = {"nvidia.com/gpu": str(cards)}
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": asks, "requests": asks}}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    about = {"name": "web", "namespace": "team", **metadata}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": about, "spec": spec}


def of_web(pod: Raw) -> Raw:
    """The Pod as one of the Deployment."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-x7k2", "uid": "rs", "controller": True}
    metadata = {**pod["metadata"], "labels": {"app": "web", "pod-template-hash": "x7k2"}, "ownerReferences": [owner]}
    return {**pod, "metadata": metadata}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("web", Named("", "", "web", "team")),
        ("prod/web", Named("", "", "web", "prod")),
        ("pod/web", Named("Pod", "", "web", "team")),
        ("deploy/web", Named("Deployment", "", "web", "team")),
        ("Deployment/web", Named("Deployment", "", "web", "team")),
        ("deployments.apps/web", Named("Deployment", "apps", "web", "team")),
        ("sts/web", Named("StatefulSet", "", "web", "team")),
        ("jobs/web", Named("Job", "", "web", "team")),
        ("rayclusters.ray.io/big", Named("rayclusters", "ray.io", "big", "team")),
    ],
)
def test_kinds_are_named_as_kubectl_takes_them(text: str, named: Named) -> None:
    assert read_name(text, "team") == named


@pytest.mark.parametrize("words", [("deploy/web", "-n", "team"), ("web", "-n", "team"), ()])
def test_equal_replicas_are_explained_once_with_what_would_help(ask: Ask, words: tuple[str, ...]) -> None:
    answer = ask(*node("n1", 2), deployment(cards=9), words=words)
    assert answer.status == 3
    first, second, todo, *_ = answer.out.splitlines()
    assert first == (
        "Each of 3 Pods of Deployment team/web fits on none of 1 node; the nearest is n1: "
        "only 2 of 9 whole GPUs are free."
    )
    assert second.startswith("They are alike, and Pod team/web-")
    assert todo.startswith("To do, for example: main: ask for 2 x ")


def test_of_a_deployment_that_exists_a_pod_that_waits_is_explained_and_the_others_are_counted(ask: Ask) -> None:
    here = node("n1", 1)
    held = of_web(asyncio.run(bound("web-x7k2-a", "n1", *here)))
    waits = [of_web(asyncio.run(waiting(name))) for name in ("web-x7k2-b", "web-x7k2-c")]
    answer = ask(*here, deployment(uid="d"), held, *waits, words=("deploy/web", "-n", "team"))
    assert answer.first.startswith("Each of 2 Pods of Deployment team/web fits on none of 1 node")
    assert "They are alike, and Pod team/web-x7k2-b is explained for all.\n" in answer.out
    assert "1 more Pod of Deployment team/web has a node.\n" in answer.out
    data = ask(*here, deployment(uid="d"), held, *waits, words=("deploy/web", "-n", "team", "-o", "json")).data
    assert (data["of"], data["alike"], data["withNode"]) == ("Deployment team/web", 2, 1)


def test_of_a_deployment_whose_pods_all_have_nodes_one_is_explained(ask: Ask) -> None:
    here = node("n1", 1)
    held = of_web(asyncio.run(bound("web-x7k2-a", "n1", *here)))
    answer = ask(*here, deployment(1, uid="d"), held, words=("deploy/web", "-n", "team"))
    assert answer.status == 0
    assert answer.first.startswith("Pod team/web-x7k2-a is on n1: it holds gpu 0")
    assert "\n1 Pod of Deployment team/web has a node.\n" in answer.out


def test_where_nothing_is_named_all_that_waits_is_explained_pods_of_one_owner_once(ask: Ask) -> None:
    here = node("n1", 1)
    loose = [of_web(asyncio.run(waiting(name))) for name in ("web-x7k2-b", "web-x7k2-c")]
    held = asyncio.run(bound("held", "n1", *here))
    answer = ask(*here, held, *loose, gpu_pod("alone"), deployment(1, name="other"), words=())
    heads = [line.partition(" fits on none")[0] for line in answer.out.splitlines() if "the nearest is" in line]
    assert heads == ["The Pod of Deployment team/other", "Each of 2 Pods of Deployment team/web", "Pod team/alone"]
    data = ask(*here, held, *loose, words=("-o", "json")).data
    assert [one["alike"] for one in data["explained"]] == [2]


def test_of_many_that_wait_five_are_explained_unless_all_are_wanted(ask: Ask) -> None:
    pods = [gpu_pod(f"p{at}") for at in range(7)]
    told = ask(*node("n1", 1), *pods, words=())
    assert told.out.count(" fits on 1 of 1 node now") == 5
    assert "2 more wait: name one, or write --all" in told.err
    assert ask(*node("n1", 1), *pods, words=("--all",)).out.count(" fits on 1 of 1 node now") == 7


def test_each_problem_of_a_pod_that_admission_refuses_has_a_line(ask: Ask) -> None:
    wrong = gpu_pod(limits={"kubernetes.io/gpu": "150"}, labels={"koordinator.sh/qosClass": "LSX"})
    lines = ask(*node("n1"), wrong).out.splitlines()
    assert lines[0] == "Pod team/mine is on no node: admission refuses it for 2 problems."
    assert lines[1].startswith("  - spec.containers[0].resources.")
    assert lines[2].startswith("  - metadata.labels[koordinator.sh/qosClass]: 'LSX' is no QoS class")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sts/web", "-n", "team"), "there is no StatefulSet/web in namespace team; there are Deployment team/web"),
        (("deploy/web", "-n", "a"), "there is no Deployment/web in namespace a; there are Deployment team/web"),
        (("pod/web", "-n", "team"), "there is no Pod web in namespace team; 0 Pods read"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(ask: Ask, words: tuple[str, ...], told: str) -> None:
    answer = ask(*node("n1"), deployment(), words=words)
    assert (answer.status, answer.err.splitlines()[-1]) == (2, f"koordgate explain: {told}")


def test_the_owner_of_pods_is_proposed_by_its_name(ask: Ask) -> None:
    waits = of_web(asyncio.run(waiting("web-x7k2-b")))
    answer = ask(*node("n1"), waits, words=("web", "-n", "team"))
    assert answer.err.splitlines()[-1].endswith("; did you mean deploy/web, web-x7k2-b?")


def test_where_every_pod_has_a_node_one_must_be_named(ask: Ask) -> None:
    here = node("n1", 1)
    answer = ask(*here, asyncio.run(bound("held", "n1", *here)), words=())
    assert answer.err.splitlines()[-1] == (
        "koordgate explain: no Pod of the input waits for a node; name the Pod that is to be explained"
    )


def test_a_deployment_that_wants_no_pod_is_told(ask: Ask) -> None:
    assert ask(*node("n1"), deployment(0), words=("deploy/web", "-n", "team")).status == 2


# On a cluster


@pytest.fixture
def live(koordgate: Koordgate, fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Koordgate:
    """Run `koordgate` against the fake cluster with one node of two cards; the context's namespace is `team`."""
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, fake.url, namespace="team")))
    made, devices = node("n1", 2)
    fake.put(NODES.path(), made)
    fake.put(DEVICES.path(), devices)
    return koordgate


async def test_a_deployment_of_the_cluster_is_explained(live: Koordgate, fake: FakeKube) -> None:
    fake.put(DEPLOYMENTS.path(namespace="team"), deployment(cards=9))
    said = await live("explain", "deploy/web")
    assert said.out.startswith("Each of 3 Pods of Deployment team/web fits on none of 1 node; the nearest is n1")
    assert said.status == 3
    gone = await live("explain", "deploy/other")
    assert "there is no Deployment/other in namespace team" in gone.err
    assert gone.status == 2


async def test_files_without_a_node_are_explained_on_the_cluster(
    live: Koordgate, fake: FakeKube, tmp_path: Path
) -> None:
    fake.put(PODS.path(namespace="team"), scheduled(gpu_pod("other"), nodeName="n1"))
    fake.put(PODS.path(namespace="team"), gpu_pod("waits"))
    made = deployment(cards=9)
    del made["metadata"]["namespace"]
    file = tmp_path / "app.json"
    file.write_text(json.dumps(made))
    said = await live("explain", "-f", str(file))
    heads = [line for line in said.out.splitlines() if "the nearest is" in line]
    assert [line.partition(" fits")[0] for line in heads] == ["Each of 3 Pods of Deployment team/web"]


async def test_other_kinds_are_found_by_their_group(live: Koordgate, fake: FakeKube) -> None:
    version = {"version": "v1", "groupVersion": "ray.io/v1"}
    fake.discovery["/apis/ray.io"] = {"versions": [version], "preferredVersion": version}
    about = {"name": "rayclusters", "singularName": "raycluster", "kind": "RayCluster", "namespaced": True}
    fake.discovery["/apis/ray.io/v1"] = {"resources": [about, {**about, "name": "rayclusters/status"}]}
    template = deployment(cards=9)["spec"]["template"]
    spec = {"workerGroupSpecs": [{"replicas": 2, "groupName": "big", "template": template}]}
    made = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": "ray", "namespace": "team"}}
    fake.put("/apis/ray.io/v1/namespaces/team/rayclusters", {**made, "spec": spec})
    said = await live("explain", "raycluster.ray.io/ray")
    assert said.out.startswith("Each of 2 Pods of RayCluster team/ray fits on none of 1 node")
    wrong = await live("explain", "rayjob.ray.io/ray")
    assert "group ray.io has no such resource; it has rayclusters" in wrong.err
