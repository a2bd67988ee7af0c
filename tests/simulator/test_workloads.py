"""The Pods that workloads create: how many, with which names, owners, labels and nodes, and what is told instead."""

from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import gpus, listed, machine, node, saved

from console.simulator import workloads
from console.simulator.documents import InputError
from console.simulator.objects import read
from console.simulator.workloads import Created, created
from koordgate.cli import main

Raw = dict[str, Any]
CONTAINERS = {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"kubernetes.io/gpu": "50"}}}]}
ENDS: Raw = {"restartPolicy": "Never"}


def template(labels: Raw | None = None, **spec: Any) -> Raw:
    return {"metadata": {"labels": labels or {"app": "a"}}, "spec": {**CONTAINERS, **spec}}


def workload(kind: str, name: str = "web", about: Raw | None = None, **spec: Any) -> Raw:
    version = {"Job": "batch/v1", "CronJob": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    given = {} if kind == "CronJob" else {"template": template(**(ENDS if kind == "Job" else {}))}
    given |= {"selector": {"matchLabels": {"app": "a"}}} if version == "apps/v1" else {}
    metadata = {"name": name, "namespace": "team", **(about or {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": {**given, **spec}}


def running(name: str, kind: str, owner: str, phase: str = "Running", on: str = "n1", **labels: str) -> Raw:
    references = [{"apiVersion": "v1", "kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}]
    metadata = {"name": name, "namespace": "team", "labels": labels, "ownerReferences": references}
    return {"kind": "Pod", "metadata": metadata, "spec": {**CONTAINERS, "nodeName": on}, "status": {"phase": phase}}


def made(folder: Path, *objects: Raw) -> Created:
    return created(read([saved(folder, objects)]))


def names(found: Created) -> list[str]:
    return [one.pod["metadata"]["name"] for one in found.pods if one.of]


def test_a_deployment_creates_its_replicas_through_a_replica_set(tmp_path: Path) -> None:
    found = made(tmp_path, workload("Deployment", replicas=3))
    pods = [one.pod for one in found.pods]
    digest = pods[0]["metadata"]["labels"]["pod-template-hash"]
    assert len({pod["metadata"]["name"] for pod in pods}) == 3
    for pod in pods:
        beginning, _, end = pod["metadata"]["name"].rpartition("-")
        assert beginning == f"web-{digest}"
        assert len(end) == 5
        assert pod["metadata"]["namespace"] == "team"
        assert pod["metadata"]["labels"]["app"] == "a"
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("ReplicaSet", beginning, True)
    assert names(made(tmp_path, workload("Deployment", replicas=3))) == names(found)


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "Job"])
def test_a_number_that_is_left_out_is_one(kind: str, tmp_path: Path) -> None:
    assert len(made(tmp_path, workload(kind)).pods) == 1


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        pytest.param(workload("Deployment", replicas=0), "replicas is 0, so it creates no Pod", id="no replicas"),
        pytest.param(workload("StatefulSet", replicas=0), "replicas is 0, so it creates no Pod", id="none of a set"),
        pytest.param(workload("Job", suspend=True), "it is suspended, so it creates no Pod", id="a suspended Job"),
        pytest.param(
            workload("CronJob", suspend=True, jobTemplate={"spec": {"template": template(**ENDS)}}),
            "it is suspended, so it creates no Pod",
            id="a suspended CronJob",
        ),
        pytest.param(workload("DaemonSet"), "no Node of the input is one that it selects", id="no node"),
        pytest.param(
            {**workload("Job"), "status": {"conditions": [{"type": "Complete", "status": "True"}]}},
            "it has ended, so it creates no Pod",
            id="a Job that is over",
        ),
        pytest.param(workload("Job", parallelism=0), "it needs no Pod: parallelism 0", id="a Job without parallelism"),
    ],
)
def test_what_creates_no_pod_is_told_and_is_no_success(
    obj: Raw, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-f", saved(tmp_path, [obj])]) == 2
    errors = capsys.readouterr().err
    assert "the input has no Pod, and nothing in it creates one (found: 1 " in errors
    assert told in errors


def test_pods_that_run_already_are_not_created_again(tmp_path: Path) -> None:
    deployment = workload("Deployment", replicas=4, about={"uid": "uid-d"})
    owned = {"ownerReferences": [{"kind": "Deployment", "name": "web", "uid": "uid-d", "controller": True}]}
    replica_set = workload("ReplicaSet", "web-abc", about={"uid": "uid-web-abc", **owned}, replicas=4)
    pods = [running(f"web-abc-{n}", "ReplicaSet", "web-abc", **{"pod-template-hash": "abc"}) for n in range(2)]
    over = running("web-abc-9", "ReplicaSet", "web-abc", "Failed", **{"pod-template-hash": "abc"})
    for objects in ([deployment, replica_set, *pods, over], [deployment, *pods, over]):
        found = names(made(tmp_path, *objects))
        assert len(found) == 2
        assert all(name.startswith("web-abc-") for name in found)


def test_a_stateful_set_counts_on_and_waits_for_each_pod(tmp_path: Path) -> None:
    found = made(tmp_path, workload("StatefulSet", "db", replicas=3, ordinals={"start": 5}))
    assert names(found) == ["db-5", "db-6", "db-7"]
    assert [one.follows for one in found.pods] == [None, ("team", "db-5"), ("team", "db-6")]
    labels = found.pods[1].pod["metadata"]["labels"]
    assert labels["apps.kubernetes.io/pod-index"] == "6"
    assert labels["statefulset.kubernetes.io/pod-name"] == "db-6"
    parallel = made(tmp_path, workload("StatefulSet", "db", replicas=2, podManagementPolicy="Parallel"))
    assert [one.follows for one in parallel.pods] == [None, None]
    there = made(tmp_path, workload("StatefulSet", "db", replicas=2), running("db-0", "StatefulSet", "db"))
    assert names(there) == ["db-1"]


def test_a_pod_whose_forerunner_waits_is_not_created(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    objects = [*machine(cards=1), workload("StatefulSet", "db", replicas=4)]
    pods = listed(capsys, "-f", saved(tmp_path, objects))
    reasons = [pods[f"db-{at}"].get("status", {}).get("reason") for at in range(4)]
    assert reasons == [None, None, "Unschedulable", "NotCreated"]
    assert pods["db-3"]["status"]["message"] == "StatefulSet team/db creates it once Pod team/db-2 runs"


def test_a_daemon_set_has_a_pod_on_each_node_that_it_tolerates_and_selects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taint = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    nodes = [
        node("n1", labels={"zone": "a"}),
        node("n2", labels={"zone": "a"}, taints=taint),
        node("n3", labels={"zone": "b"}),
        node("n4", labels={"zone": "a"}, unschedulable=True),
    ]
    plain = {"containers": [{"name": "c"}], "nodeSelector": {"zone": "a"}}
    daemons = workload("DaemonSet", "agent", template={"metadata": {"labels": {"app": "a"}}, "spec": plain})
    pods = listed(capsys, "-f", saved(tmp_path, [*nodes, daemons]))
    assert [pod["spec"]["nodeName"] for pod in pods.values()] == ["n1", "n4"]
    daemons["spec"]["template"]["spec"]["tolerations"] = [{"key": "gpu", "operator": "Exists"}]
    there = running("agent-x", "DaemonSet", "agent", on="n1")
    pods = listed(capsys, "-f", saved(tmp_path, [*nodes, daemons, there]))
    assert sorted(pod["spec"]["nodeName"] for pod in pods.values()) == ["n1", "n2", "n4"]


def test_an_indexed_job_gives_the_indexes_that_are_free(tmp_path: Path) -> None:
    job = workload("Job", "train", completions=9, parallelism=4, completionMode="Indexed")
    there = running("train-3-abcde", "Job", "train")
    there["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "3"}
    found = made(tmp_path, {**job, "status": {"completedIndexes": "0-1,4", "succeeded": 3}}, there)
    pods = [one.pod for one in found.pods if one.of]
    indexes = [pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in pods]
    assert indexes == ["4", "5", "6"], "those that have ended and run are taken to be the first"
    assert [pod["metadata"]["name"].rpartition("-")[0] for pod in pods] == [f"train-{index}" for index in indexes]
    assert pods[0]["spec"]["containers"][0]["env"][0]["name"] == "JOB_COMPLETION_INDEX"


@pytest.mark.parametrize(
    ("spec", "status", "there", "created", "notes"),
    [
        ({"completions": 5, "parallelism": 2}, {}, 0, 2, ["2 of 5 Pods run at once; the others follow as these end"]),
        ({"completions": 5, "parallelism": 2}, {}, 1, 1, ["2 of 5 Pods run at once; the others follow as these end"]),
        ({"completions": 2, "parallelism": 2}, {}, 3, 0, []),
        ({"completions": 2}, {"succeeded": 1}, 0, 1, []),
        ({"parallelism": 3}, {}, 0, 3, []),
        ({"completions": 1}, {"succeeded": 3}, 0, 0, ["it needs no Pod: parallelism 1, 0 completions to go"]),
        ({"parallelism": 0}, {}, 0, 0, ["it needs no Pod: parallelism 0, 0 completions to go"]),
        ({"completions": 4, "parallelism": 0}, {}, 0, 0, ["it needs no Pod: parallelism 0, 4 completions to go"]),
        (
            {},
            {"conditions": [{"type": "Complete", "status": "False"}, {"type": "Failed", "status": "Unknown"}]},
            0,
            1,
            [],
        ),
        ({}, {"conditions": [{"type": "Suspended", "status": "True"}]}, 0, 1, []),
        (
            {},
            {"conditions": [{"type": "Suspended", "status": "True"}, {"type": "Failed", "status": "True"}]},
            0,
            0,
            ["it has ended, so it creates no Pod"],
        ),
        ({"suspend": True}, {}, 0, 0, ["it is suspended, so it creates no Pod"]),
        (
            {"parallelism": 250_000, "completions": 0},
            {},
            0,
            0,
            ["it needs no Pod: parallelism 250000, 0 completions to go"],
        ),
    ],
)
def test_a_job_tells_how_many_of_its_pods_run_at_once(
    spec: Raw, status: Raw, there: int, created: int, notes: list[str], tmp_path: Path
) -> None:
    over = running("train-over", "Job", "train", phase="Succeeded")
    pods = [over, *(running(f"train-{at}", "Job", "train") for at in range(there))]
    found = made(tmp_path, {**workload("Job", "train", **spec), "status": status}, *pods)
    assert len(names(found)) == created
    assert len({*names(found)}) == created
    assert found.notes == [f"Job team/train: {note}" for note in notes]


def test_a_number_above_250000_is_refused_and_so_is_the_sum_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"^Job team/web: 250001 Pods; 250000 in all are the most: ask for fewer$"):
        made(tmp_path, workload("Job", parallelism=250_001, completions=0))
    thing = {"apiVersion": "x.com/v1", "kind": "Thing", "metadata": {"name": "t"}}
    with pytest.raises(InputError, match=r"^Thing default/t: 250001 Pods; 250000 in all are the most: ask for fewer$"):
        made(tmp_path, {**thing, "spec": {"pool": {"replicas": 300_000, "template": template()}}})
    monkeypatch.setattr(workloads, "MAX_PODS", 3)
    pods = [gpus("a", 50), gpus("b", 50)]
    assert len(made(tmp_path, *pods, workload("ReplicaSet")).pods) == 3
    with pytest.raises(InputError, match="ReplicaSet team/web: 3 Pods in all are the most: ask for fewer"):
        made(tmp_path, *pods, workload("ReplicaSet", replicas=2))


def test_a_pod_of_the_same_name_is_not_created_again_and_the_others_are(tmp_path: Path) -> None:
    other = gpus("db-1", 50, namespace="team")
    found = made(tmp_path, other, workload("StatefulSet", "db", replicas=3), workload("ReplicaSet", "more"))
    assert [one.pod["metadata"]["name"] for one in found.pods][:3] == ["db-1", "db-0", "db-2"]
    assert len(found.pods) == 4
    assert found.pods[2].follows == ("team", "db-1")
    assert found.notes == ["StatefulSet team/db: Pod team/db-1 is there already, so it is not created again"]
    there = made(tmp_path, running("db-0", "StatefulSet", "db"), workload("StatefulSet", "db", replicas=2))
    assert (names(there), there.notes, there.pods[1].follows) == (["db-1"], [], ("team", "db-0"))
    over = made(tmp_path, running("db-0", "StatefulSet", "db", phase="Failed"), workload("StatefulSet", "db"))
    assert over.notes == ["StatefulSet team/db: Pod team/db-0 is there already, so it is not created again"]


def test_a_replica_set_of_a_deployment_creates_nothing_and_what_follows_it_does(tmp_path: Path) -> None:
    owned = {"ownerReferences": [{"kind": "Deployment", "name": "web", "controller": True}]}
    found = made(
        tmp_path, workload("Deployment"), workload("ReplicaSet", "web-x", about=owned), workload("ReplicaSet", "last")
    )
    assert [one.of for one in found.pods] == ["Deployment team/web", "ReplicaSet team/last"]


def test_pods_that_have_ended_count_neither_as_replicas_nor_for_the_hash(tmp_path: Path) -> None:
    over = running("web-abc-1", "ReplicaSet", "web-abc", "Failed", **{"pod-template-hash": "abc"})
    runs = running("web-def-1", "ReplicaSet", "web-def", **{"pod-template-hash": "def"})
    found = made(tmp_path, workload("Deployment", replicas=2), over)
    assert len(names(found)) == 2
    assert not any(name.startswith("web-abc") for name in names(found))
    found = made(tmp_path, workload("Deployment", replicas=2), over, runs)
    assert [name.startswith("web-def-") for name in names(found)] == [True]
    assert made(tmp_path, workload("ReplicaSet", "web-def", replicas=1), runs).notes == []


def test_a_cron_job_runs_once(tmp_path: Path) -> None:
    found = made(tmp_path, workload("CronJob", "nightly", jobTemplate={"spec": {"template": template(**ENDS)}}))
    (pod,) = [one.pod for one in found.pods]
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["kind"] == "Job"
    assert owner["name"].startswith("nightly-")
    assert f"one run of it, Job {owner['name']}" in found.notes[0]


def test_a_pod_template_becomes_one_pod_and_that_is_told(tmp_path: Path) -> None:
    obj = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "shape"}, "template": template()}
    found = made(tmp_path, obj)
    assert names(found) == ["shape"]
    assert "it creates no Pod by itself; one is made of it" in found.notes[0]


OTHERS: dict[str, tuple[Raw, list[str]]] = {
    "Volcano's Job": (
        {
            "apiVersion": "batch.volcano.sh/v1alpha1",
            "kind": "Job",
            "spec": {
                "minAvailable": 3,
                "tasks": [
                    {"name": "ps", "replicas": 1, "template": template()},
                    {"name": "worker", "replicas": 2, "template": template()},
                ],
            },
        },
        ["x-ps-0", "x-worker-0", "x-worker-1"],
    ),
    "a PyTorchJob": (
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": 2, "template": template()}}},
        },
        ["x-worker-0", "x-worker-1"],
    ),
    "a RayCluster": (
        {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "spec": {
                "headGroupSpec": {"template": template()},
                "workerGroupSpecs": [{"groupName": "gpu", "replicas": 2, "numOfHosts": 2, "template": template()}],
            },
        },
        ["x-headgroupspec-0", "x-gpu-0", "x-gpu-1", "x-gpu-2", "x-gpu-3"],
    ),
    "a JobSet": (
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "spec": {
                "replicatedJobs": [
                    {
                        "name": "w",
                        "replicas": 2,
                        "template": {"spec": {"parallelism": 4, "completions": 2, "template": template()}},
                    }
                ]
            },
        },
        ["x-w-0", "x-w-1", "x-w-2", "x-w-3"],
    ),
    "a LeaderWorkerSet": (
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template()}},
        },
        ["x-workertemplate-0", "x-workertemplate-1", "x-workertemplate-2", "x-workertemplate-3"],
    ),
    "one without a number": (
        {"apiVersion": "example.com/v1", "kind": "Notebook", "spec": {"template": template()}},
        ["x-0"],
    ),
    "one with a size of something else": (
        {"apiVersion": "example.com/v1", "kind": "Thing", "spec": {"disk": {"size": 3, "template": template()}}},
        ["x-disk-0"],
    ),
    "a LeaderWorkerSet with a leader of its own": (
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "spec": {
                "replicas": 2,
                "leaderWorkerTemplate": {"size": 3, "leaderTemplate": template(), "workerTemplate": template()},
            },
        },
        ["x-leadertemplate-0", "x-leadertemplate-1", *(f"x-workertemplate-{at}" for at in range(4))],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_kinds_create_as_many_pods_as_the_numbers_beside_their_templates_say(name: str, tmp_path: Path) -> None:
    obj, expected = OTHERS[name]
    found = made(tmp_path, {**obj, "metadata": {"name": "x"}})
    assert names(found) == expected
    assert found.notes


def other(name: str = "x", **spec: Any) -> Raw:
    return {"apiVersion": "x.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": spec}


def counts(**numbers: Any) -> Raw:
    return {**numbers, "template": template()}


COUNTED: dict[str, tuple[Raw, int, str]] = {
    "none": (counts(replicas=0), 0, "0 Pods of spec.pool.template, by spec.pool.replicas"),
    "one": (counts(replicas=1), 1, "1 Pod of spec.pool.template, by spec.pool.replicas"),
    "no number": (counts(), 1, "1 Pod of spec.pool.template, because it states no number"),
    "a negative one": (counts(replicas=-1), 1, "1 Pod of spec.pool.template, because it states no number"),
    "a truth value": (counts(replicas=True), 1, "1 Pod of spec.pool.template, because it states no number"),
    "text": (counts(replicas="3"), 1, "1 Pod of spec.pool.template, because it states no number"),
    "hosts": (
        counts(replicas=2, numOfHosts=3),
        6,
        "6 Pods of spec.pool.template, by spec.pool.replicas and spec.pool.numOfHosts",
    ),
    "in parallel": (counts(parallelism=3), 3, "3 Pods of spec.pool.template, by spec.pool.parallelism"),
    "fewer completions": (
        counts(parallelism=3, completions=2),
        2,
        "2 Pods of spec.pool.template, by spec.pool.parallelism",
    ),
    "more completions": (
        counts(parallelism=3, completions=9),
        3,
        "3 Pods of spec.pool.template, by spec.pool.parallelism",
    ),
}


@pytest.mark.parametrize(("part", "pods", "told"), COUNTED.values(), ids=COUNTED)
def test_how_many_pods_a_template_of_another_kind_makes_and_why_is_told(
    part: Raw, pods: int, told: str, tmp_path: Path
) -> None:
    found = made(tmp_path, {**other(pool=part), "replicas": 7, "size": 7, "name": "no"})
    assert names(found) == [f"x-pool-{at}" for at in range(pods)]
    assert found.notes == [f"Thing default/x: {told}"]


@pytest.mark.parametrize(
    ("part", "pods", "by"),
    [
        ({"size": 3, "workerTemplate": template()}, 3, ["size"]),
        ({"size": 3, "leaderTemplate": {}, "workerTemplate": template()}, 3, ["size"]),
        ({"size": 3, "leaderTemplate": {"x": 1}, "workerTemplate": template()}, 2, ["size"]),
        ({"size": "3", "workerTemplate": template()}, 1, []),
    ],
)
def test_the_leader_of_a_group_is_one_of_its_size(part: Raw, pods: int, by: list[str], tmp_path: Path) -> None:
    found = made(tmp_path, other(pool=part))
    assert len(names(found)) == pods
    why = "by spec.pool.size" if by else "because it states no number"
    assert found.notes == [f"Thing default/x: {pods} Pod{'s' * (pods > 1)} of spec.pool.workerTemplate, {why}"]


@pytest.mark.parametrize(
    ("name", "spec", "pod"),
    [
        ("x", {"template": template()}, "x-0"),
        ("x", {"pool": {"name": "", "groupName": "Big One", "template": template()}}, "x-big-one-0"),
        ("x", {"pool": {"name": 3, "template": template()}}, "x-pool-0"),
        ("x", {"pools": [{"template": template()}]}, "x-pools-0"),
        ("x", {"pools": [{"name": "a"}, {"name": "b", "template": template()}]}, "x-b-0"),
        ("x", {"outer": {"name": "o", "inner": {"template": template()}}}, "x-inner-0"),
        ("x" * 199, {"p_": {"template": template()}}, "x" * 199 + "--0"),
        ("x" * 201, {"template": template()}, "x" * 200 + "-0"),
        ("x", {"_p_": {"template": template()}}, "x-p-0"),
    ],
)
def test_pods_of_another_kind_are_named_by_the_nearest_name(name: str, spec: Raw, pod: str, tmp_path: Path) -> None:
    assert names(made(tmp_path, other(name, **spec))) == [pod]


def test_a_template_that_is_none_is_left_out_and_the_next_one_is_used(tmp_path: Path) -> None:
    wrong: Raw = {"template": {"spec": {"containers": []}}}
    found = made(tmp_path, other(a=wrong, b={"template": template()}))
    assert names(found) == ["x-b-0"]
    assert [note.partition(": spec.con")[0] for note in found.notes] == [
        "Thing default/x: spec.a.template is not used",
        "Thing default/x: 1 Pod of spec.b.template, because it states no number",
    ]
    whole = {"apiVersion": "x.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": CONTAINERS}
    assert made(tmp_path, whole).notes == ["Thing default/x: 1 Pod of the object itself, because it states no number"]


def test_another_kind_whose_pods_or_workloads_are_in_the_input_creates_none(tmp_path: Path) -> None:
    ray = {**OTHERS["a RayCluster"][0], "metadata": {"name": "ray", "namespace": "team"}}
    found = made(tmp_path, ray, running("ray-head", "RayCluster", "ray"))
    assert names(found) == []
    assert "1 of its Pods are in the input" in found.notes[0]
    owned = {"ownerReferences": [{"kind": "RayCluster", "name": "ray", "controller": True}]}
    found = made(tmp_path, ray, workload("Deployment", "web", about=owned))
    assert [one.of for one in found.pods] == ["Deployment team/web"]


def test_a_template_that_is_none_of_a_pod_is_left_out_in_other_kinds_and_refused_in_kubernetes_own(
    tmp_path: Path,
) -> None:
    policy = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"pattern": {"spec": {"containers": [{"image": "?*"}]}}},
    }
    found = made(tmp_path, policy, gpus("a", 50))
    assert "spec.pattern is not used" in found.notes[0]
    broken = workload("Deployment", template=template(containers=[]))
    with pytest.raises(InputError, match=r"Deployment web: spec.template.spec.containers: a Pod has at least one"):
        made(tmp_path, broken)


@pytest.mark.parametrize(
    ("obj", "told"),
    [
        pytest.param(workload("Deployment", replicas=-1), "-1 Pods cannot be", id="a negative number"),
        pytest.param(
            workload("Deployment", replicas="3"), "spec.replicas: text where a whole number must be", id="text"
        ),
        pytest.param(
            workload("Deployment", replicas=10**9), "1000000000 Pods; 250000 in all are the most", id="far too many"
        ),
        pytest.param({**workload("Deployment"), "spec": {"replicas": 1}}, "has no Pod spec", id="no template"),
        pytest.param(
            workload("CronJob", jobTemplate=[{"template": template()}]), "a list where an object must be", id="a list"
        ),
    ],
)
def test_a_workload_that_the_api_server_would_refuse_is_unusable(
    obj: Raw, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-f", saved(tmp_path, [obj])]) == 2
    assert told in capsys.readouterr().err


def test_a_pod_with_a_generated_name_gets_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods = [gpus("", 50), gpus("", 50)]
    for pod in pods:
        pod["metadata"] = {"generateName": "run-"}
    found = listed(capsys, "-f", saved(tmp_path, [*machine(), *pods]))
    assert len(found) == 2
    assert all(name.startswith("run-") and len(name) == 9 for name in found)


def test_pods_of_daemon_sets_for_other_nodes_are_left_out_where_one_node_is_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents, big = workload("DaemonSet", "agent"), gpus("big", 300)
    cluster = [*machine("n1"), *machine("n2"), *machine("n3")]
    file = saved(tmp_path, [*cluster, agents])
    assert main(["simulate", "-f", file, "--node", "n2", "--require-bound"]) == 0
    out, err = capsys.readouterr()
    assert out.count("team/agent-") == 2, "in the table of Pods, and on its node"
    assert "1 Pod: 1 bound" in out
    assert "Pods of DaemonSets for other nodes than n2 are left out: 2" in err
    assert main(["simulate", "-f", file, "--require-bound"]) == 0
    out, err = capsys.readouterr()
    assert "3 Pods: 3 bound" in out
    assert "left out" not in err
    assert main(["simulate", "-f", saved(tmp_path, [*cluster, agents, big]), "--node", "n2", "--require-bound"]) == 1
    assert "1 of 2 checks passed" in capsys.readouterr().err, "a Pod that may go anywhere is asked about"
