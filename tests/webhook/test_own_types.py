"""Device types from the administrator's settings: everything works for them as for GPUs, by data alone."""

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from builders import container, device_entry, pod
from fake_kube import FakeKube
from world import SCHEDULER, TENANT, World, annotation_of, asks, binding, binds, plain_pod

from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.vocabulary.names import CLASSES, CORDONED, DEVICE_ALLOCATED
from allocator.wire.allocatehint import DEVICE_ALLOCATE_HINT
from allocator.wire.classes import read_classes
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS
from koordgate.settings import SettingsError
from webhook import patch
from webhook.settings import WebhookSettings, parse

Raw = dict[str, Any]
SETTINGS = parse("""
devices:
  types:
    - {name: npu, resource: example.com/npu, unit: devices, environment: NPU_VISIBLE_DEVICES}
    - {name: disk, resource: example.com/disk}
    - name: queue
      resource: example.com/queue
      unit: units
      environment: QUEUES
      pools:
        - {nodeSelector: {pool: 'yes'}, devices: {fast: 10, slow: 40}}
        - {nodeSelector: {pool: 'yes', more: 'yes'}, devices: {slow: 50}}
    - name: floating
      resource: example.com/floating
      unit: units
      pools: [{devices: {everywhere: 5}}]
""")
NPU_ENV = {
    "name": "NPU_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['npu.visible-devices.koordgate.io/main']"}},
}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def npu(minor: int, **about: Any) -> Raw:
    entry = {"type": "npu", "id": f"npu-{minor}", "minor": minor, "health": True, "resources": {"example.com/npu": "1"}}
    return {**entry, **about}


def disk(minor: int) -> Raw:
    return {"type": "disk", "id": f"disk-{minor}", "minor": minor, "health": True}


def rdma(minor: int, functions: int, **labels: str) -> Raw:
    made = [{"minor": at, "busID": f"0000:{minor}f:00.{at}"} for at in range(functions)]
    entry = {"type": "rdma", "id": f"0000:{minor}f:00", "minor": minor, "health": True}
    return {**entry, "vfGroups": [{"labels": labels, "vfs": made}]}


@pytest.fixture
async def own(fake: FakeKube, kube: KubeClient) -> Any:
    """n1: three NPUs, one of them unhealthy, a disk, a GPU, and the queues of the pool."""
    made = World(fake, kube, SETTINGS)
    entries = [npu(0), npu(1), npu(2, health=False), disk(0), device_entry(0)]
    made.add_node("n1", *entries, labels={"pool": "yes"})
    made.see()
    yield made
    await made.idle()


def mutated(world: World, obj: Raw) -> Raw:
    response = world.parts.pods.mutate(asks(obj))
    assert response.allowed, response.message
    return patch.apply(obj, response.patch)


def asking(world: World, name: str = "p", *, annotations: Raw | None = None, **amounts: Any) -> Raw:
    """A Pod as it is stored that asks, in one container, for these own types."""
    limits = {f"example.com/{kind}": str(amount) for kind, amount in amounts.items()}
    return mutated(world, pod(container(limits=limits), name=name, uid=f"uid-{name}", annotations=annotations))


def fitting(world: World, obj: Raw, *names: str) -> list[str]:
    named: list[str] = world.parts.extender.filter({"Pod": obj, "NodeNames": list(names or ("n1",))})["NodeNames"]
    world.parts.ranking.assumed.drop(obj["metadata"]["uid"])
    return named


def shares_of(world: World, name: str, node: str = "n1") -> list[tuple[str, str, dict[str, int]]]:
    return [(share.type, share.id, dict(share.amounts)) for share in world.holdings(node)[f"uid-{name}"].shares]


# --- from creation to end


def test_a_pod_is_translated_and_finds_its_devices_in_the_types_own_variable(own: World) -> None:
    done = asking(own, npu=2)
    (main,) = done["spec"]["containers"]
    assert done["spec"]["schedulerName"] == "koord-scheduler"
    stated = {"example.com/npu": "2"}
    assert main["resources"] == {"limits": stated, "requests": stated}
    assert NPU_ENV in main["env"]
    assert VOID in main["env"]  # no GPU is shown, whatever the image requests
    assert len(main["env"]) == 2
    assert own.parts.pods.validate(asks(done)).allowed
    assert own.parts.pods.mutate(asks(done)).patch == ()


def test_a_container_without_the_type_has_no_variable_of_it(own: World) -> None:
    obj = pod(container("main", limits={"example.com/npu": "1"}), container("beside"))
    main, beside = mutated(own, obj)["spec"]["containers"]
    assert {entry["name"] for entry in main["env"]} == {"NPU_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}
    assert beside["env"] == [VOID]


def test_a_type_without_a_variable_has_none(own: World) -> None:
    (main,) = asking(own, disk=30)["spec"]["containers"]
    assert main["env"] == [VOID]


def test_a_pod_whose_variable_was_taken_away_is_refused(own: World) -> None:
    done = asking(own, npu=1)
    done["spec"]["containers"][0]["env"] = [VOID]
    assert "NPU_VISIBLE_DEVICES" in own.parts.pods.validate(asks(done)).message


@pytest.mark.parametrize(
    ("amounts", "told"),
    [
        ({"npu": "1.5"}, "example.com/npu"),
        ({"npu": 129}, "128"),
        ({"disk": 150}, "100"),
        ({"queue": -1}, "example.com/queue"),
        ({"queue": 0}, "greater than zero"),
    ],
)
def test_what_can_never_work_is_denied(own: World, amounts: Raw, told: str) -> None:
    limits = {f"example.com/{kind}": str(amount) for kind, amount in amounts.items()}
    response = own.parts.pods.mutate(asks(pod(container(limits=limits))))
    assert (response.allowed, response.code) == (False, 422)
    assert "spec.containers[0]" in response.message
    assert told in response.message


async def test_whole_devices_are_given_recorded_shown_and_given_back(own: World) -> None:
    first, second = asking(own, "a", npu=2), asking(own, "b", npu=1)
    assert fitting(own, first) == ["n1"]
    (response,) = await own.start(first)
    told = annotation_of(response.patch)
    assert told["npu.visible-devices.koordgate.io/main"] == "npu-0,npu-1"
    assert json.loads(told[DEVICE_ALLOCATED]) == {
        "npu": [{"minor": at, "resources": {"example.com/npu": "100"}, "id": f"npu-{at}"} for at in (0, 1)]
    }
    assert own.pod("a")["metadata"]["annotations"].items() >= told.items()
    assert shares_of(own, "a") == [("npu", "npu-0", {"npu": 100}), ("npu", "npu-1", {"npu": 100})]
    assert fitting(own, second) == []
    (refused,) = await own.start(second)
    assert refused.code == 409
    assert "0 of 3 npu devices (1 unhealthy)" in refused.message
    task = asyncio.create_task(own.parts.reconciler.run_releases())
    own.remove_pod("a")
    own.see(PODS)
    await own.fake.until(lambda: own.holders() == [])
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert fitting(own, second) == ["n1"]
    assert (await own.bind("b")).allowed
    own.audit()


async def test_parts_of_a_device_are_counted_in_percent(own: World) -> None:
    pods = [asking(own, f"p{percent}", disk=percent) for percent in (60, 50, 40)]
    assert [response.allowed for response in await own.start(*pods)] == [True, False, True]
    assert shares_of(own, "p40") == [("disk", "disk-0", {"disk": 40})]


async def test_several_types_and_gpus_come_together(own: World) -> None:
    limits = {"kubernetes.io/gpu": "50", "example.com/npu": "1", "example.com/queue": "7"}
    obj = mutated(own, pod(container(limits=limits), name="p", uid="uid-p"))
    (response,) = await own.start(obj)
    assert response.allowed, response.message
    held = {kind: (device, amounts) for kind, device, amounts in shares_of(own, "p")}
    assert held["npu"] == ("npu-0", {"npu": 100})
    assert held["queue"] == ("fast", {"queue": 7})
    assert held["gpu"][1]["gpu-core"] == 50
    told = own.pod("p")["metadata"]["annotations"]
    assert json.loads(told[DEVICE_ALLOCATED]).keys() == {"gpu", "npu", "queue"}
    assert told["visible-devices.koordgate.io/main"] == "GPU-n1-0"
    assert told["queue.visible-devices.koordgate.io/main"] == "fast"


async def test_another_binder_is_refused_and_a_lost_ledger_is_made_again(own: World, kube: KubeClient) -> None:
    own.add_pod(asking(own, npu=1))
    own.see(PODS)
    refused = await own.validate(binds(binding("p", "n1"), username=TENANT))
    assert refused.code == 403
    await own.bind("p")
    before = own.holdings()["uid-p"].shares
    own.fake.remove(NODE_ALLOCATIONS.path("n1"))
    other = World(own.fake, kube, SETTINGS)
    other.see()
    await other.parts.reconciler.reconcile()
    assert other.holdings()["uid-p"].shares == before
    await other.idle()


@pytest.mark.parametrize("by", [TENANT, "system:node:n1"])
def test_nobody_but_the_bind_writes_what_a_container_sees(own: World, by: str) -> None:
    key = "npu.visible-devices.koordgate.io/main"
    forged = plain_pod("p", annotations={key: "npu-0"})
    born = own.parts.pods.validate(asks(forged, username=by))
    changed = own.parts.pods.validate(asks(forged, old=plain_pod("p"), operation="UPDATE", username=by))
    for response in (born, changed):
        assert not response.allowed
        assert f"metadata.annotations[{key}]" in response.message
    assert own.parts.pods.validate(asks(forged, old=plain_pod("p"), operation="UPDATE", username=SCHEDULER)).allowed


def test_an_installation_without_the_type_knows_nothing_of_it(world: World) -> None:
    obj = pod(container(limits={"example.com/npu": "1"}))
    assert world.parts.pods.mutate(asks(obj)).patch == ()
    assert fitting(world, obj, "n1", "n2") == ["n1", "n2"]


# --- software classes


def classes(**types: Any) -> dict[str, str]:
    return {CLASSES: json.dumps(types)}


async def test_a_nodes_annotation_states_its_classes(own: World) -> None:
    own.add_bare_node("n2", annotations=classes(queue={"only": 3, "wide": "8"}))
    own.see(NODES)
    assert own.complaints["nodes", "n2"] == ()
    names = ("n1", "n2", "n3")
    assert fitting(own, asking(own, queue=4), *names) == ["n2"]  # the node with less left over
    assert fitting(own, asking(own, queue=9), *names) == ["n1"]
    (response,) = await own.start(asking(own, queue=8), node="n2")
    assert annotation_of(response.patch)["queue.visible-devices.koordgate.io/main"] == "wide"
    assert shares_of(own, "p", "n2") == [("queue", "wide", {"queue": 8})]
    (refused,) = await own.start(asking(own, "q", queue=4), node="n2")
    assert "the most free is queue 0 with queue 3" in refused.message
    own.audit()


async def test_places_in_a_queue_are_all_from_one(own: World) -> None:
    pods = [asking(own, f"p{places}", queue=places) for places in (9, 2, 38, 1)]
    assert [response.allowed for response in await own.start(*pods)] == [True, True, True, True]
    assert [shares_of(own, f"p{places}")[0][1] for places in (9, 2, 38, 1)] == ["fast", "slow", "slow", "fast"]
    (refused,) = await own.start(asking(own, "more", queue=1))
    assert refused.code == 409
    own.audit()


async def test_pools_of_the_settings_hold_on_the_nodes_that_they_select(own: World) -> None:
    own.add_bare_node("n2", labels={"pool": "yes", "more": "yes"})
    own.add_bare_node("n3", labels={"pool": "no"})
    own.see(NODES)

    def has(node: str) -> dict[str, int]:
        return {
            one.id: next(iter(one.capacity.values()))
            for one in own.parts.cluster.snapshot(node).devices
            if one.type in {"queue", "floating"}
        }

    assert has("n1") == {"fast": 10, "slow": 40, "everywhere": 5}
    assert has("n2") == {"fast": 10, "slow": 50, "everywhere": 5}  # a later pool counts
    assert has("n3") == {"everywhere": 5}
    assert sorted(fitting(own, asking(own, floating=5), "n3", "n4")) == ["n3"]


async def test_what_a_node_states_about_a_type_counts_before_pools(own: World) -> None:
    own.add_bare_node("n1", labels={"pool": "yes"}, annotations=classes(queue={"own": 4}))
    own.see(NODES)
    found = own.parts.cluster.snapshot("n1").devices
    assert [one.id for one in found if one.type in {"queue", "floating"}] == ["everywhere", "own"]
    own.add_bare_node("n1", labels={"pool": "yes"})
    own.see(NODES)
    assert fitting(own, asking(own, queue=40)) == ["n1"]


MALFORMED: dict[str, tuple[str, list[str], str]] = {
    # the annotation, the devices that count, the complaints
    "no JSON": ("{", [], "not JSON"),
    "no object": ("[]", [], "not an object"),
    "too deep": ("[" * 100_000, [], "not JSON"),
    "a type that is not there": ('{"lane":{"a":1},"queue":{"b":2}}', ["b"], "'lane' is no configured type"),
    "a type of several amounts": ('{"gpu":{"a":1},"queue":{"b":2}}', ["b"], "'gpu'"),
    "no object of ids": ('{"queue":5,"npu":{"a":1}}', ["a"], "queue is no object"),
    "an amount that is none": ('{"queue":{"a":"many","b":2}}', ["b"], "queue 'a'"),
    "half a unit": ('{"queue":{"a":0.5,"b":2}}', ["b"], "queue 'a'"),
    "below nothing": ('{"queue":{"a":-1,"b":2}}', ["b"], "queue 'a'"),
    "nothing": ('{"queue":{"a":0,"b":2}}', ["b"], "holds nothing"),
    "no id": ('{"queue":{"":1,"b":2}}', ["b"], "must not be empty"),
    "an id with a comma": ('{"queue":{"a,c":1,"b":2}}', ["b"], "comma"),
    "an id that no object can hold": ('{"queue":{"\\ud800":1,"b":2}}', ["b"], "surrogates"),
    "one id for two": ('{"disk":{"a":50},"queue":{"a":1,"b":2}}', ["a", "b"], "a disk has this id"),
    "more than whole": ('{"disk":{"a":101,"b":100}}', ["b"], "more than a whole device"),
    "too many": (json.dumps({"queue": {str(at): 1 for at in range(129)}, "npu": {"a": 1}}), ["a"], "at most 128 ids"),
}


@pytest.mark.parametrize(("text", "ids", "told"), MALFORMED.values(), ids=MALFORMED)
def test_what_is_wrong_in_the_annotation_is_complained_of_and_the_rest_counts(
    own: World, text: str, ids: list[str], told: str
) -> None:
    own.add_bare_node("n2", annotations={CLASSES: text})
    own.see(NODES)
    found = [one.id for one in own.parts.cluster.snapshot("n2").devices if one.type != "floating"]
    assert sorted(found) == ids
    assert told in " ".join(own.complaints["nodes", "n2"])
    own.add_bare_node("n2")
    own.see(NODES)
    assert own.complaints["nodes", "n2"] == ()  # mended


@pytest.mark.parametrize(
    "said", ["{}", "5", '{"fast":-1}', '{"a,b":3}', "null"], ids=["nothing", "no object", "below", "a comma", "null"]
)
def test_what_an_annotation_names_comes_before_the_pool_though_it_is_of_no_use(own: World, said: str) -> None:
    own.add_bare_node("n2", labels={"pool": "yes"}, annotations={CLASSES: f'{{"queue":{said}}}'})
    own.see(NODES)
    assert [one.type for one in own.parts.cluster.snapshot("n2").devices] == ["floating"]
    assert bool(own.complaints["nodes", "n2"]) is (said != "{}")


@pytest.mark.parametrize("cordoned", ["slow", " slow , everywhere"])
async def test_on_a_cordoned_device_of_a_software_class_nothing_new_lands(own: World, cordoned: str) -> None:
    obj = asking(own, "before", queue=35)
    assert (await own.start(obj))[0].allowed  # only the slow one has room for so many
    own.add_bare_node("n1", labels={"pool": "yes", "more": "yes"}, annotations={CORDONED: cordoned})
    own.see(NODES)
    again = asking(own, "after", queue=5)
    assert fitting(own, again) == ["n1"]
    assert [share[1] for share in shares_of(own, "before")] == ["slow"]
    assert (await own.start(again))[0].allowed
    assert [share[1] for share in shares_of(own, "after")] == ["fast"]


def test_the_complaint_ends_with_the_node(own: World) -> None:
    own.add_bare_node("n2", annotations={CLASSES: "{"})
    own.see(NODES)
    assert own.complaints["nodes", "n2"]
    own.fake.remove(NODES.path("n2"))
    own.see(NODES)
    assert own.complaints["nodes", "n2"] == ()


async def test_whole_devices_reported_by_annotation_are_whole(own: World) -> None:
    own.add_bare_node("n2", annotations=classes(npu={"soft-a": 1, "soft-b": 1}))
    own.see(NODES)
    (response,) = await own.start(asking(own, npu=2), node="n2")
    assert annotation_of(response.patch)["npu.visible-devices.koordgate.io/main"] == "soft-a,soft-b"


async def test_an_id_that_the_device_object_has_already_is_that_device(own: World) -> None:
    own.add_bare_node("n1", annotations=classes(npu={"npu-0": 1, "npu-9": 1}))
    own.see(NODES)
    own.parts.cluster.snapshot("n1").check_invariants()
    assert sorted(one.id for one in own.parts.cluster.snapshot("n1").devices if one.type == "npu") == [
        "npu-0",
        "npu-1",
        "npu-2",
        "npu-9",
    ]


# --- virtual functions


def hint(**fields: Any) -> dict[str, str]:
    return {DEVICE_ALLOCATE_HINT: json.dumps({"rdma": fields})}


async def test_a_nic_comes_with_a_virtual_function_that_the_hint_selects(own: World) -> None:
    own.add_node("n2", rdma(0, 0), rdma(1, 2, net="fast"), rdma(2, 2, net="slow"))
    own.see(DEVICES, NODES)
    annotations = hint(vfSelector={"matchLabels": {"net": "fast"}})
    names = ["a", "b", "c"]
    pods = [
        mutated(
            own,
            pod(container(limits={"koordinator.sh/rdma": "1"}), name=name, uid=f"uid-{name}", annotations=annotations),
        )
        for name in names
    ]
    responses = await own.start(*pods, node="n2")
    assert [response.allowed for response in responses] == [True, True, False]
    given = []
    for name in "ab":
        (share,) = own.holdings("n2")[f"uid-{name}"].shares
        assert (share.type, share.id) == ("rdma", "0000:1f:00")
        (entry,) = json.loads(own.pod(name)["metadata"]["annotations"][DEVICE_ALLOCATED])["rdma"]
        given += [vf["busID"] for vf in entry["extension"]["vfs"]]
        assert given[-1] == share.functions[0].bus_id
    assert sorted(given) == ["0000:1f:00.0", "0000:1f:00.1"]
    own.audit()


async def test_a_virtual_function_that_koordinator_names_and_another_pod_holds_is_not_given_again(own: World) -> None:
    own.add_node("n2", rdma(1, 2, net="fast"))
    own.see(DEVICES, NODES)
    annotations = hint(vfSelector={})
    obj = pod(container(limits={"koordinator.sh/rdma": "1"}), name="a", uid="uid-a", annotations=annotations)
    assert (await own.start(mutated(own, obj), node="n2"))[0].allowed
    told = own.pod("a")["metadata"]["annotations"][DEVICE_ALLOCATED]
    second = mutated(own, {**obj, "metadata": {**obj["metadata"], "name": "b", "uid": "uid-b"}})
    second["metadata"]["annotations"] = {**second["metadata"]["annotations"], DEVICE_ALLOCATED: told}
    (refused,) = await own.start(second, node="n2")
    assert "cannot be adopted" in refused.message
    own.audit()


async def test_a_device_that_koordinator_names_beyond_what_is_needed_must_be_free_too(own: World) -> None:
    (held,) = await own.start(asking(own, "holder", npu=1))
    assert held.allowed
    entries = [{"minor": at, "resources": {"example.com/npu": "100"}, "id": f"npu-{at}"} for at in (0, 1)]
    obj = asking(own, npu=1)
    obj["metadata"]["annotations"] = {
        **obj["metadata"].get("annotations", {}),
        DEVICE_ALLOCATED: json.dumps({"npu": entries}),
    }
    (refused,) = await own.start(obj)
    assert "cannot be adopted" in refused.message
    assert "npu 0 (npu-0) does not have the stated amounts free" in refused.message
    own.audit()


# --- the settings


@pytest.mark.parametrize(
    ("types", "told"),
    [
        ("[{name: gpu, resource: example.com/x}]", "device type gpu exists already"),
        ("[{name: a, resource: nvidia.com/gpu}]", "resource nvidia.com/gpu"),
        ("[{name: a, resource: koordinator.sh/rdma}]", "resource koordinator.sh/rdma"),
        ("[{name: a, resource: example.com/x}, {name: b, resource: example.com/x}]", "resource example.com/x"),
        ("[{name: a, resource: x}]", "devices.types[0].resource"),
        ("[{name: A, resource: example.com/x}]", "devices.types[0].name"),
        ("[{name: a, resource: example.com/x, unit: pieces}]", "devices.types[0].unit"),
        ("[{name: a, resource: example.com/x, environment: 1A}]", "devices.types[0].environment"),
        ("[{name: a, resource: example.com/x, environment: NVIDIA_VISIBLE_DEVICES}]", "is already that of gpu"),
        ("[{name: z, resource: example.com/x, environment: NVIDIA_VISIBLE_DEVICES}]", "is already that of gpu"),
        ("[{name: a, resource: example.com/x, pools: [{devices: {q: 0}}]}]", "devices.types[0].pools[0].devices"),
        ("[{resource: example.com/x}]", "name"),
    ],
)
def test_a_type_that_cannot_stand_beside_the_others_is_reported(types: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(f"devices: {{types: {types}}}")
    assert told in str(caught.value)


def test_without_settings_there_are_the_built_in_types_alone(world: World) -> None:
    assert world.parts.settings == WebhookSettings()
    assert world.parts.types == BUILT_IN


def test_a_node_has_at_most_128_devices_of_a_class() -> None:
    queue, disk = (own_type(name, f"example.com/{name}", Unit.UNITS) for name in ("queue", "disk"))
    types = BUILT_IN.with_types([queue, disk])
    text = json.dumps({"queue": {f"q{n}": 1 for n in range(128)}, "disk": {f"d{n}": 1 for n in range(129)}})
    devices, (problem,) = read_classes(text, types)
    assert len(devices) == 128
    assert {one.type for one in devices} == {"queue"}
    assert "disk is no object of at most 128 ids" in problem
