"""What is found out once for all Pods of one template is what each of them would get by itself."""

import asyncio
import copy
import json
from typing import Any

import pytest
from simulator.clusters import EXAMPLES, QOS, gpus, held, machine, pinned, topology

from allocator.vocabulary.devicetype import BUILT_IN
from console.simulator.arrivals import read_cluster, standing
from console.simulator.cluster import OfflineCluster, PodFate, Result
from console.simulator.objects import Objects
from console.simulator.running import PodReader
from console.simulator.workloads import created
from webhook import settings
from webhook.view.podinfo import read_pod_info

Raw = dict[str, Any]
INPUTS = {
    "the example cluster": ("cluster.yaml", "workload.yaml"),
    "workloads": ("simulate/cluster.yaml", "simulate/app.yaml"),
    "containers that share": ("seeds/flip-53-fractions.yaml",),
    "CPUs": ("seeds/cpu-example.yaml",),
}


def twin(pod: Raw, number: int) -> Raw:
    """The same Pod with another name, and with what an API server adds to it."""
    metadata = {
        **pod["metadata"],
        "name": f"twin-{number}",
        "resourceVersion": str(number),
        "generateName": f"g{number}",
    }
    metadata.pop("uid", None)
    return {**copy.deepcopy(pod), "metadata": metadata}


def configured() -> settings.WebhookSettings:
    return settings.load(EXAMPLES / "config.yaml")


async def admitted(objects: Objects, *pods: Raw) -> list[Result]:
    cluster = OfflineCluster.in_process(configured())
    await standing(objects, cluster)
    return [await cluster.admit(pod) for pod in pods]


@pytest.mark.parametrize("name", INPUTS)
def test_a_pod_that_is_admitted_after_its_like_is_as_one_that_is_admitted_alone(name: str) -> None:
    objects = read_cluster([str(EXAMPLES / path) for path in INPUTS[name]], {}, settings.types_of(configured()))
    pods = [one.pod for one in created(objects).pods if not one.pod["spec"].get("nodeName")]
    assert pods
    for pod in pods:
        _, second = asyncio.run(admitted(objects, twin(pod, 1), twin(pod, 2)))
        (alone,) = asyncio.run(admitted(objects, twin(pod, 2)))
        assert second == alone


def test_what_is_admitted_alike_shares_nothing_that_a_pod_has_of_its_own() -> None:
    objects = Objects(nodes=machine()[:1], devices=machine()[1:])
    given = [
        {**twin(gpus("x", 50), number), "status": {"phase": "Pending", "message": str(number)}} for number in (1, 2)
    ]
    first, second = asyncio.run(admitted(objects, *given))
    assert (first.state, second.state) == (PodFate.ADMITTED, PodFate.ADMITTED)
    assert first.pod["metadata"]["uid"] != second.pod["metadata"]["uid"]
    assert [one.pod["status"]["message"] for one in (first, second)] == ["1", "2"]
    assert second.given is given[1]


def test_a_label_that_admission_reads_makes_another_template() -> None:
    objects = Objects(nodes=machine()[:1], devices=machine()[1:])
    plain = gpus("a", 50)
    marked = twin(gpus("b", 50), 1)
    marked["metadata"]["annotations"] = {"koordgate.io/device-order": "no such order"}
    first, second = asyncio.run(admitted(objects, plain, marked))
    assert (first.state, second.state) == (PodFate.ADMITTED, PodFate.DENIED)


def test_pods_are_read_as_without_memory() -> None:
    pods = [
        *(gpus(f"half-{number}", 50) for number in range(3)),
        gpus("quarter", 25),
        pinned("own", 4),
        held("there", "node-1", (0, 50)),
        held("there-too", "node-1", (1, 50)),
        held("done", "node-1", (1, 50), phase="Succeeded"),
    ]
    reader = PodReader()
    for number, pod in enumerate(pods):
        pod["metadata"]["uid"] = f"u{number}"
        assert reader(pod, None, BUILT_IN) == read_pod_info(pod)
    for number, pod in enumerate(reversed(pods)):
        again = {**pod, "metadata": {**pod["metadata"], "uid": f"v{number}", "name": f"again-{number}"}}
        assert reader(again, None, BUILT_IN) == read_pod_info(again)


def test_nodes_that_change_are_seen_by_the_next_pod_of_a_template() -> None:
    async def run() -> list[tuple[str, ...]]:
        cluster = OfflineCluster.in_process()
        asks = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory": "90Gi"}
        pod = gpus("a", 10)
        pod["spec"]["containers"][0]["resources"] = {"requests": asks, "limits": asks}
        await cluster.load(machine())
        before = await cluster.admit(twin(pod, 1))
        larger = json.loads(json.dumps(machine("node-2")).replace("80Gi", "160Gi"))
        await cluster.load([*larger, topology("node-2")])
        return [before.warnings, (await cluster.admit(twin(pod, 2))).warnings]

    before, after = asyncio.run(run())
    assert any("no known GPU has the requested memory" in warning for warning in before)
    assert not any("no known GPU has the requested memory" in warning for warning in after)


def named(name: str, uid: str, **fields: Any) -> Raw:
    made = gpus(name, 50, **fields)
    made["metadata"]["uid"] = uid
    return made


@pytest.mark.parametrize(
    "other",
    [
        {"annotations": {"koordgate.io/device-order": "no such order"}},
        {"labels": {QOS: "LSR"}},
        {"nodeSelector": {"node.koordinator.sh/gpu-model": "A100"}},
        {"affinity": {"nodeAffinity": {}}},
        {"schedulerName": "koord-scheduler"},
        {"namespace": "other"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_pods_that_differ_in_more_than_their_names_are_read_one_by_one(other: Raw) -> None:
    reader = PodReader()
    first, second, third = named("a", "u1"), named("b", "u2", **other), named("c", "u3", annotations={"x": "y"})
    assert [reader(pod, None, BUILT_IN) for pod in (first, second, third)] == list(
        map(read_pod_info, (first, second, third))
    )
    read = [reader(pod, None, BUILT_IN) for pod in (first, second, third)]
    assert len({id(one.request) for one in read if one is not None}) == 3
