"""A dialect that is off, and devices that only a plugin gives: nobody is stopped, and nothing is silent."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import GIB, container, device_entry, pod
from dialects.rows import ALWAYS, Row
from dialects.test_rows import EVERY
from fake_kube import FakeKube
from world import World, asks, binding, binds

from allocator.request.cpus import QOS_LABEL
from allocator.request.original import read_asks
from allocator.vocabulary.names import DIALECT, KOORD_SCHEDULER, KUBERNETES_DOMAIN, NVIDIA_GPU
from koordgate.cli import main
from koordgate.kube.client import KubeClient
from koordgate.settings import SettingsError
from webhook import patch
from webhook.admission.translate import TranslationPolicy, translate
from webhook.admission.validate import created
from webhook.settings import DialectSettings, WebhookSettings, parse, types_of

OFF = TranslationPolicy(KUBERNETES_DOMAIN)
Raw = dict[str, Any]


def of(limits: Mapping[str, Any], *more: Mapping[str, Any], **fields: Any) -> Raw:
    return pod(
        *(container(name, limits=one, requests=one) for name, one in zip("abc", (limits, *more), strict=False)),
        **fields,
    )


PLAIN = {"nvidia.com/gpu", "cpu"}
LEFT = [
    (name, row)
    for name, row in EVERY
    if name not in ALWAYS
    and not row.refused
    and any(amount not in {0, "0"} for of in row.limits for one, amount in of.items() if one not in PLAIN)
]


@pytest.mark.parametrize(("dialect", "row"), LEFT, ids=[f"{name}: {row.name}" for name, row in LEFT])
def test_a_pod_of_a_product_that_is_off_is_neither_changed_nor_refused(dialect: str, row: Row) -> None:
    obj = row.pod()
    made = translate(obj, OFF, None)
    assert (made.problems, made.operations) == ((), ())
    assert created(asks(obj), KOORD_SCHEDULER) == []
    assert f"of the dialect {dialect} (" in "; ".join(made.warnings)


@pytest.mark.parametrize("amount", [0, "0"])
def test_an_amount_of_0_in_a_dialect_that_is_off_takes_no_pod_out_of_our_hands(amount: Any) -> None:
    made = translate(of({"nvidia.com/gpu": 1, "nvidia.com/gpumem": amount}), OFF, None)
    assert made.operations
    assert made.problems == ()


@pytest.mark.parametrize(("limits", "refused"), [({"nvidia.com/gpu": 1}, True), ({}, False)], ids=str)
def test_a_pod_of_another_product_may_not_name_the_node_whose_cards_the_kubelet_would_give_it(
    limits: Raw, *, refused: bool
) -> None:
    problems = created(asks(of({**limits, "nvidia.com/gpumem": 10}, nodeName="n1")), KOORD_SCHEDULER)
    assert [problem.path for problem in problems] == ["spec.nodeName"] * refused


def test_a_name_that_nobody_knows_beside_devices_of_ours_is_told_with_what_to_write() -> None:
    amd = TranslationPolicy(KUBERNETES_DOMAIN, types_of(parse("dialects: {amd: {enabled: true}}")))
    made = translate(of({"amd.com/gpu": 1, "amd.com/gpumem": 8192}), amd, None)
    (told,) = made.warnings
    assert told.startswith("spec.containers[0]: amd.com/gpumem is not read: koordgate gives nothing for it")
    assert "Of amd.com koordgate reads amd.com/gpu; for a part of a card, write kubernetes.io/gpu-memory" in told
    assert made.operations
    assert translate(of({"amd.com/gpumem": 8192}), amd, None).warnings == ()  # it is none of ours


OFF_HERE = "which is off here: koordgate gives nothing for it. If it were on, the Pod would ask for"
ON = "An administrator turns it on with dialects"
FOREIGN = "which koordgate does not give; the vendor's device plugin and the kubelet choose them"
UNIT = "If it were on, memory would be read in units of dialects.elastic-gpu.memoryUnit"
TOLD = {
    "HAMi": (
        {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4096},
        f"spec.containers[0]: nvidia.com/gpumem is of the dialect hami (HAMi), {OFF_HERE} a 2 x (memory 4 GiB). {ON}",
    ),
    "Volcano": ({"volcano.sh/vgpu-number": 1}, f"{OFF_HERE} a 1 x (memory 100 %). {ON}.volcano.enabled"),
    "gpushare": ({"aliyun.com/gpu-mem": 3}, f"{ON}.gpushare.enabled"),
    "Tencent": (
        {"tencent.com/vcuda-core": 50},
        "If it were on, the Pod would be refused: spec.containers[0].resources.requests",
    ),
    "elastic-gpu": ({"elasticgpu.io/gpu-memory": 3}, UNIT),
    "AMD": ({"amd.com/gpu": 3}, f"{OFF_HERE} a 3 x (core 100 %, memory 100 %). {ON}.amd.enabled"),
    "MIG": ({"nvidia.com/mig-1g.5gb": 1}, f"spec.containers[0]: nvidia.com/mig-1g.5gb counts MIG devices, {FOREIGN}"),
    "replicas": ({"nvidia.com/gpu.shared": 1}, "counts replicas of a card, whose size only the node knows"),
    "nos": ({"nvidia.com/gpu-10gb": 1}, "counts slices of a card"),
    "Ascend": ({"huawei.com/Ascend910": 1}, "declare a type with these names in devices.types"),
}


@pytest.mark.parametrize(("limits", "told"), TOLD.values(), ids=TOLD)
async def test_the_author_is_told_what_koordgate_would_make_of_it(world: World, limits: Raw, told: str) -> None:
    answer = world.parts.pods.warn(asks(of(limits)))
    assert answer.allowed
    assert not answer.patch
    (warning,) = answer.warnings
    assert told in warning


GPUS = "kubernetes.io/gpus is no resource that koordgate reads; did you mean kubernetes.io/gpu?"
ORDER = "metadata.annotations[koordgate.io/device-odrer]: nobody reads it; did you mean koordgate.io/device-order?"


async def test_a_name_that_nobody_reads_is_told_whether_or_not_the_pod_is_ours(world: World) -> None:
    annotations = {"koordgate.io/device-odrer": "leastUsed"}
    strange = world.parts.pods.warn(asks(of({"kubernetes.io/gpus": 1}, annotations=annotations)))
    assert strange.allowed
    assert list(strange.warnings) == [f"spec.containers[0].resources: {GPUS}", ORDER]
    ours = world.parts.pods.mutate(
        asks(of({"kubernetes.io/gpu": 50}, {"kubernetes.io/gpus": 1}, annotations=annotations))
    )
    assert ours.patch
    assert list(ours.warnings) == [f"spec.containers[1].resources: {GPUS}", ORDER]


@pytest.mark.parametrize("command", [["translate"], ["simulate"], ["explain", "typo"]])
def test_every_command_says_it_in_the_same_words(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pod.json"
    typo = pod(container(limits={"kubernetes.io/gpus": "1"}), name="typo", namespace="default")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1"}}}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node, {**typo, "kind": "Pod"}]}))
    main([*command, "-f", str(path)])
    said = capsys.readouterr()
    assert f"spec.containers[0].resources: {GPUS}" in said.out + said.err


async def test_annotations_and_their_container_are_told_too(world: World) -> None:
    answer = world.parts.pods.warn(asks(of({}, annotations={"gpu-fraction": "0.5"})))
    (warning,) = answer.warnings
    assert warning.startswith("metadata.annotations[gpu-fraction] is of the dialect kai (KAI Scheduler and Run:ai)")
    assert "a 1 x (core 50 %, memory 50 %)" in warning


@pytest.mark.parametrize(
    "limits",
    [{}, {"cpu": 1}, {"nvidia.com/mig-1g.5gb": 0}, {"aliyun.com/gpu-mem": "0"}, {"example.com/gpumem": 1}],
    ids=str,
)
async def test_nothing_is_told_of_other_pods(world: World, limits: Raw) -> None:
    assert not world.parts.pods.warn(asks(of(limits))).warnings


async def test_a_pod_of_a_product_that_is_off_passes_both_webhooks_untouched(world: World) -> None:
    obj = of({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000})
    answer = world.parts.pods.mutate(asks(obj))
    assert answer.allowed
    assert not answer.patch
    assert "hami (HAMi), which is off here" in answer.warnings[0]
    assert world.parts.pods.validate(asks(obj)).allowed


def test_a_pod_with_cpus_of_its_own_remains_ours() -> None:
    obj = of({"nvidia.com/gpumem": 1000, "cpu": 2}, labels={QOS_LABEL: "LSR"})
    made = translate(obj, OFF, None)
    done = patch.apply(obj, made.operations)
    assert done["spec"]["schedulerName"] == KOORD_SCHEDULER
    assert "hami" in "; ".join(made.warnings)


HALF, MIG = {"koordinator.sh/gpu": 50}, {"nvidia.com/mig-1g.5gb": 1}
ANOTHER = "is of the dialect hami (HAMi), which is off here, and the Pod also asks in another; use one"
APART = "koordgate decides what every container of this Pod sees; ask for them in a Pod of their own"
BESIDE = {
    "koordgate's own and HAMi's": (HALF, {"nvidia.com/gpumem": 10}, ANOTHER),
    "koordgate's own and MIG": (HALF, MIG, APART),
    "whole cards and MIG": ({"nvidia.com/gpu": 1}, MIG, APART),
    "an RDMA device and HAMi's": ({"koordinator.sh/rdma": 50}, {"nvidia.com/gpumem": 10}, ANOTHER),
}


@pytest.mark.parametrize(("one", "other", "told"), BESIDE.values(), ids=BESIDE)
def test_what_cannot_work_beside_devices_of_ours_is_refused(one: Raw, other: Raw, told: str) -> None:
    assert told in "; ".join(map(str, translate(of(one, other), OFF, None).problems))


def test_an_annotation_that_others_use_does_not_stop_a_pod_of_ours() -> None:
    made = translate(of({"nvidia.com/gpu": 1}, annotations={"gpu-memory": "16"}), OFF, None)
    assert made.problems == ()
    assert made.operations
    assert "metadata.annotations[gpu-memory] is of the dialect kai" in "; ".join(made.warnings)


async def test_a_pod_that_is_left_alone_gets_no_card_of_ours_either(world: World) -> None:
    """The kubelet would choose a card that another Pod may hold."""
    world.add_node("n1")
    world.add_pod(
        of({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}, name="p", uid="uid-p", schedulerName="hami-scheduler")
    )
    world.see()
    answer = await world.validate(binds(binding("p", "n1"), username="hami"))
    assert not answer.allowed
    assert "asks for nvidia.com/gpumem, which koordgate does not read" in answer.message
    assert "set dialects.hami.enabled, count the product's Pods (adopt.peers) or keep them off" in answer.message


TAKING = {
    "Volcano share": {"volcano.sh/gpu-memory": 1000},
    "Volcano share: whole cards": {"volcano.sh/gpu-number": 1},
    "Volcano vGPU": {"volcano.sh/vgpu-number": 1},
    "gpushare": {"aliyun.com/gpu-mem": 4},
    "Tencent": {"tencent.com/vcuda-core": 10},
    "elastic-gpu": {"elasticgpu.io/gpu-core": 10},
    "nano-gpu": {"nano-gpu/gpu-percent": 10},
    "HAMi without a number": {"nvidia.com/gpumem": 1000},
    "replicas of a card": {"nvidia.com/gpu.shared": 1},
    "slices of a card": {"nvidia.com/gpu-10gb": 1},
}
NOT_TAKING = {
    "cards of another vendor": {"amd.com/gpu": 1},
    "MIG devices, which no card of koordgate's has": {"nvidia.com/mig-1g.5gb": 1},
    "a name that Nodes alone state": {"aliyun.com/gpu-count": 1},
    "0 of it": {"aliyun.com/gpu-mem": 0},
    "a name of nobody's": {"example.com/gpu": 1},
}


def theirs(limits: Raw, scheduler: str = "theirs") -> Raw:
    return of(limits, name="p", uid="uid-p", schedulerName=scheduler)


@pytest.mark.parametrize("seen", [True, False], ids=["by the watch", "by a live read"])
@pytest.mark.parametrize("limits", TAKING.values(), ids=TAKING)
async def test_what_takes_a_card_of_ours_by_another_product_is_kept_off_it(
    limits: Raw, *, seen: bool, world: World
) -> None:
    world.add_node("n1")
    world.add_bare_node("bare")
    world.see()
    world.add_pod(theirs(limits))
    if seen:
        world.see()
    told = [await world.validate(binds(binding("p", node), username="theirs")) for node in ("n1", "bare")]
    assert [one.allowed for one in told] == [False, True]
    assert "which koordgate does not read, and koordgate gives the devices of node n1" in told[0].message


@pytest.mark.parametrize("limits", NOT_TAKING.values(), ids=NOT_TAKING)
async def test_what_takes_no_card_of_ours_is_not_ours_to_stop(limits: Raw, world: World) -> None:
    world.add_node("n1")
    world.show(theirs(limits))
    assert (await world.validate(binds(binding("p", "n1"), username="theirs"))).allowed


async def test_a_card_of_another_vendor_that_koordgate_gives_is_guarded_as_well(world: World) -> None:
    world.add_node("n1", device_entry(0, labels={"node.koordinator.sh/gpu-vendor": "amd"}))
    for name, limits in (("p", {"amd.com/gpu": 1}), ("q", {"volcano.sh/gpu-memory": 1})):
        world.add_pod(of(limits, name=name, uid=f"uid-{name}", schedulerName="theirs"))
    world.see()
    answers = [(await world.validate(binds(binding(name, "n1"), username="theirs"))).allowed for name in "pq"]
    assert answers == [False, True]


COUNTED = {
    "by its scheduler": ("volcano", {"volcano.sh/gpu-memory": 1}, True),
    "by another scheduler, so that it does not count": ("mine", {"volcano.sh/gpu-memory": 1}, False),
    "gpushare by any scheduler": ("any", {"aliyun.com/gpu-mem": 1}, True),
    "a product that does not count": ("hami-scheduler", {"nvidia.com/gpumem": 1}, False),
    "a product that cannot count": ("any", {"tencent.com/vcuda-core": 1}, False),
    "one that counts beside one that does not": (
        "volcano",
        {"volcano.sh/gpu-memory": 1, "nvidia.com/gpumem": 1},
        False,
    ),
}


@pytest.mark.parametrize(("scheduler", "limits", "passes"), COUNTED.values(), ids=COUNTED)
async def test_a_product_whose_pods_count_gives_devices_of_our_nodes(
    scheduler: str, limits: Raw, *, passes: bool, fake: FakeKube, kube: KubeClient
) -> None:
    world = World(fake, kube, parse("adopt: {peers: [volcano, gpushare]}"))
    world.add_node("n1")
    world.show(theirs(limits, scheduler))
    assert (await world.validate(binds(binding("p", "n1"), username="theirs"))).allowed is passes


async def test_where_plain_pods_pass_with_a_warning_so_do_those_of_other_products(
    fake: FakeKube, kube: KubeClient
) -> None:
    world = World(fake, kube, parse("guard: {plainPods: warn}"))
    world.add_node("n1")
    world.show(theirs({"aliyun.com/gpu-mem": 4}))
    answer = await world.validate(binds(binding("p", "n1"), username="theirs"))
    assert answer.allowed
    assert "another product would choose a device for it that another Pod may hold" in answer.warnings[0]


def scoped(**more: Any) -> WebhookSettings:
    hami = DialectSettings(enabled=True, namespaces=("team", "other"), memory_unit="1Gi")
    return WebhookSettings(dialects={"hami": hami, **more})


def test_a_dialect_is_on_in_its_namespaces_only() -> None:
    table = types_of(scoped(gpushare=DialectSettings(enabled=True)))
    assert table.within("team").resources["nvidia.com/gpumem"].term.factor == GIB
    assert "nvidia.com/gpumem" not in table.resources
    assert table.within("elsewhere") is table
    for namespace, operations in (("team", True), ("other", True), ("elsewhere", False)):
        policy = TranslationPolicy(KUBERNETES_DOMAIN, table).within(namespace)
        made = translate(of({"nvidia.com/gpumem": 10}), policy, None)
        assert bool(made.operations) is operations
        assert bool(made.warnings) is not operations
        assert translate(of({"aliyun.com/gpu-mem": 10}), policy, None).operations


ELASTIC = "dialects.elastic-gpu.memoryUnit is missing: elastic-gpu and nano-gpu has no default"
RADEON = "devices: {types: [{name: radeon, resource: amd.com/gpu}]}"
REFUSED = {
    "an unknown dialect": ("{run: {enabled: true}}", "dialects.run: there is no such dialect; there are hami, volcano"),
    "a missing unit": ("{elastic-gpu: {enabled: true}}", ELASTIC),
    "a unit of nothing": ("{tencent: {memoryUnit: 1Mi}}", "counts no memory in units of an installation"),
    "no unit": ("{hami: {memoryUnit: GiB}}", "dialects.hami.memoryUnit: 'GiB' is not a Kubernetes quantity"),
    "0": ("{hami: {memoryUnit: '0'}}", "one unit is from 1 byte to 1Ti"),
    "more than a tebibyte": ("{hami: {memoryUnit: '1099511627777'}}", "one unit is from 1 byte to 1Ti"),
    "less than no cores": ("{hami: {defaultCores: -1}}", "must be a whole number >= 0, and is -1"),
    "two unknown dialects": ("{run: {}, another: {}}", "dialects.another: there is no such dialect"),
    "two defaults of a product without": ("{volcano: {defaultCores: 3, defaultMemory: 1Gi}}", "volcano.defaultMemory"),
    "a fraction": ("{hami: {memoryUnit: 100m}}", "is not a whole number"),
    "defaults of a product without": (
        "{volcano: {defaultCores: 30}}",
        "dialects.volcano.defaultCores: Volcano vGPU has no such setting; remove it",
    ),
    "a default of nothing": ("{hami: {defaultMemory: '0'}}", "defaultMemory is 0: the memory of a card is from 1 byte"),
    "no default memory": ("{hami: {defaultMemory: all}}", "hami.defaultMemory: 'all' is not a Kubernetes quantity"),
    "more than all cores": (
        "{hami: {defaultCores: 101}}",
        "dialects.hami.defaultCores: must be a whole number <= 100, and is 101",
    ),
    "names of a type": (
        f"{{amd: {{enabled: true}}}}\n{RADEON}",
        "resource amd.com/gpu of device type radeon is already",
    ),
    "a wrong namespace": ("{hami: {enabled: true, namespaces: [A_B]}}", "namespaces"),
    "an unknown key": (
        "{hami: {active: true}}",
        "dialects.hami.active: there is no such key; the keys there are enabled,",
    ),
}


@pytest.mark.parametrize(
    "text", ["memoryUnit: '1'", "memoryUnit: 1Ti", "defaultMemory: 1Ti", "defaultCores: 0", "defaultCores: 100"]
)
def test_settings_at_their_bounds_are_accepted(text: str) -> None:
    assert parse(f"dialects: {{hami: {{enabled: true, {text}}}}}").dialects["hami"].enabled


@pytest.mark.parametrize(("text", "told"), REFUSED.values(), ids=REFUSED)
def test_settings_that_cannot_work_are_refused(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        parse(f"dialects: {text}")
    assert told in str(refused.value)


DEFAULTS = ("", "defaultCores: 30", "defaultMemory: 4Gi", "defaultMemory: 8Gi, defaultCores: 10")


@pytest.mark.parametrize("later", [*DEFAULTS, "off"])
@pytest.mark.parametrize("before", DEFAULTS)
@pytest.mark.parametrize("limits", [{"nvidia.com/gpucores": 50}, {"nvidia.com/gpumem": 1024}, {NVIDIA_GPU: 2}], ids=str)
def test_a_translated_pod_asks_for_the_same_when_the_defaults_change(limits: Raw, before: str, later: str) -> None:
    def policy(keys: str) -> TranslationPolicy:
        text = "" if keys == "off" else f"dialects: {{hami: {{enabled: true, {keys}}}}}"
        return TranslationPolicy(KUBERNETES_DOMAIN, types_of(parse(text)))

    for memory in (None, 80 * GIB):
        done = patch.apply(of(limits), translate(of(limits), policy(before), memory).operations)
        wanted, now = (read_asks(done, policy(keys).types) for keys in (before, later))
        assert now.problems == ()
        assert now.request == wanted.request == read_asks(of(limits), policy(before).types).request
        assert translate(done, policy(later), memory).operations == ()


def test_the_defaults_that_were_used_stand_on_the_pod() -> None:
    keys = "memoryUnit: 2Mi, defaultMemory: 5000Mi, defaultCores: 30"
    table = types_of(parse(f"dialects: {{hami: {{enabled: true, {keys}}}}}"))
    made = of({"nvidia.com/gpucores": 50})
    policy = TranslationPolicy(KUBERNETES_DOMAIN, table)
    done = patch.apply(made, translate(made, policy, None).operations)
    assert done["metadata"]["annotations"][DIALECT] == (
        "hami; memory unit 2Mi; default memory 5000Mi; default cores 30"
    )


def test_a_type_of_ones_own_may_have_the_names_of_a_dialect_that_is_off() -> None:
    table = types_of(parse("devices: {types: [{name: radeon, resource: amd.com/gpu, unit: devices}]}"))
    assert table.resources["amd.com/gpu"].type.name == "radeon"
    assert "amd" not in {one.name for one in table.off}
    assert translate(of({"amd.com/gpu": 1}), TranslationPolicy(KUBERNETES_DOMAIN, table), None).operations
