"""Which object of the input created which: by UID, by name, through others, and how far up."""

from typing import Any

import pytest

from console.simulator.objects import InputObject
from console.simulator.workloads import Owners


def source(kind: str, name: str, owner: tuple[str, str] | None = None, **metadata: Any) -> InputObject:
    """An object that another one controls, which is named by kind and name."""
    references = [{"kind": "Node", "name": "n"}, {"kind": "Job", "name": "web", "controller": False}]
    if owner is not None:
        references.append({"kind": owner[0], "name": owner[1], "controller": True})
    versions = {"Deployment": "apps/v1", "ReplicaSet": "apps/v1", "Pod": "v1"}
    about = {"name": name, "namespace": "team", "ownerReferences": references, **metadata}
    made = {"apiVersion": versions.get(kind, "example.com/v1"), "kind": kind, "metadata": about, "spec": {}}
    return InputObject("here", kind, made)


def pods(found: Owners, of: InputObject) -> list[str]:
    return [one.name for one in found.pods_of(of)]


def test_a_pod_is_its_owners_and_those_above_up_to_the_eighth() -> None:
    chain = [source(f"Kind{at}", "x", (f"Kind{at + 1}", "x")) for at in range(10)]
    first, other = source("Pod", "first", ("Kind0", "x")), source("Pod", "other", ("Kind1", "x"))
    found = Owners([first, *chain, source("Pod", "alone"), other])
    assert [pods(found, one) for one in chain] == [
        ["first"],
        *([["first", "other"]] * 7),
        ["other"],
        [],
    ]


def test_owners_that_own_each_other_end_somewhere() -> None:
    one, two = source("Kind1", "x", ("Kind2", "x")), source("Kind2", "x", ("Kind1", "x"))
    found = Owners([one, two, source("Pod", "p", ("Kind1", "x"))])
    assert (pods(found, one), pods(found, two)) == (["p"] * 4, ["p"] * 4)
    assert found.left_to_others(one)


def test_an_owner_is_found_by_its_uid_whatever_its_name() -> None:
    renamed, same = source("Zoo", "new", uid="uid-1"), source("Ant", "old")
    owners = {"kind": "Ant", "name": "old", "controller": True}
    by_uid = source("Pod", "by-uid", ownerReferences=[{**owners, "uid": "uid-1"}])
    by_name = source("Pod", "by-name", ownerReferences=[{**owners, "uid": "uid-2"}])
    elsewhere = source("Pod", "elsewhere", ("Ant", "old"), namespace="other")
    found = Owners([by_uid, renamed, same, by_name, elsewhere])
    assert (pods(found, renamed), pods(found, same)) == (["by-uid"], ["by-name"])


def test_without_a_namespace_it_is_the_default_one() -> None:
    owner = source("Zoo", "z", namespace="default")
    pod = source("Pod", "p", ("Zoo", "z"))
    del pod.object["metadata"]["namespace"]
    assert pods(Owners([owner, pod]), owner) == ["p"]


@pytest.mark.parametrize(
    ("kind", "found"), [("ReplicaSet", ["p"]), ("Job", []), ("StatefulSet", []), ("ReplicaSets", [])]
)
def test_a_replica_set_that_is_not_there_is_looked_through(kind: str, found: list[str]) -> None:
    deployment = source("Deployment", "web")
    pod = source("Pod", "p", (kind, "web-abc"), labels={"pod-template-hash": "abc"})
    bare = source("Pod", "bare", (kind, "web-abc"))
    assert pods(Owners([deployment, pod, bare]), deployment) == found


@pytest.mark.parametrize(
    ("owner", "left"), [("Deployment", True), ("Rollout", False), ("AppSet", False), ("Missing", False)]
)
def test_the_pods_of_a_replica_set_are_those_of_its_deployment_alone(owner: str, *, left: bool) -> None:
    above = [source(kind, "web") for kind in ("Deployment", "Rollout", "AppSet")]
    own, alone = source("ReplicaSet", "web-1", (owner, "web")), source("ReplicaSet", "web-2")
    found = Owners([*above, own, alone])
    assert (found.left_to_others(own), found.left_to_others(alone)) == (left, False)
    assert [found.left_to_others(one) for one in above[1:]] == [owner == "Rollout", owner == "AppSet"]
