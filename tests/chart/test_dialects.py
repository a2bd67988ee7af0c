"""The chart's match conditions follow the table of dialects, and types of one's own."""

import json
import shutil
from pathlib import Path

import cel
import pytest
import yaml
from builders import container, pod
from made_dialects import TYPES
from npus import TEXT
from npus import TYPES as NPU_TYPES

from allocator.request.pod import is_ours
from allocator.request.unread import find_misspelt, find_unread
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import PEERS
from allocator.vocabulary.names import DEVICE_SHARING
from koordgate.settings import device_types
from localplane import chart, dialects
from localplane.__main__ import main
from localplane.admin import JsonObject
from localplane.binaries import Binaries
from localplane.chart import ChartError, find, settings_text
from reporter import settings as reporter
from webhook import settings


def test_the_chart_has_the_table_as_it_is(chart_folder: Path) -> None:
    """If this fails, run `make generate`."""
    assert (chart_folder / dialects.FILE).read_text() == dialects.text()


def test_the_command_writes_the_file_of_the_tree(
    chart_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("localplane.__main__.chart_folder", lambda: tmp_path)
    assert main(["generate"]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written == tmp_path / dialects.FILE
    assert written.read_text() == (chart_folder / dialects.FILE).read_text()


def test_the_file_separates_names_of_device_plugins_from_our_own() -> None:
    known = json.loads(dialects.text(TYPES))
    assert known["plugins"] == [
        "example.com/blocks",
        "example.com/core",
        "nvidia.com/gpu",
        "nvidia.com/gpucores",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
    ]
    assert set(known["resources"]) == {*BUILT_IN.resources, *known["plugins"]}
    assert known["annotations"] == ["gpu-fraction", "gpu-fraction-devices", "gpu-fraction-memory", DEVICE_SHARING]


def sent(objects: list[JsonObject], obj: JsonObject) -> bool:
    """Whether the API server sends a created Pod to be translated."""
    hooks = find(objects, "MutatingWebhookConfiguration", "koordgate")["webhooks"]
    (hook,) = (one for one in hooks if one["name"].startswith("pods."))
    request = {"operation": "CREATE", "userInfo": {"username": "alice"}, "resource": {"resource": "pods"}}
    variables = {"request": request, "object": obj, "oldObject": None}
    return all(cel.compile(one["expression"]).execute(variables) for one in hook["matchConditions"])


@pytest.fixture(scope="module")
def extended(binaries: Binaries, chart_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[JsonObject]:
    """The chart as after `make generate` with more entries in the table; nothing else is changed."""
    folder = tmp_path_factory.mktemp("chart") / "koordgate"
    shutil.copytree(chart_folder, folder)
    dialects.write(folder, TYPES)
    return chart.render(binaries, {"reporter": {"enabled": True}}, chart=folder)


def warned(objects: list[JsonObject], obj: JsonObject, namespace: str) -> bool:
    """Whether the API server sends a created Pod to be warned about."""
    hooks = find(objects, "ValidatingWebhookConfiguration", "koordgate")["webhooks"]
    (hook,) = (one for one in hooks if one["name"].startswith("dialects."))
    return matched(hook, obj, namespace)


def matched(hook: JsonObject, obj: JsonObject, namespace: str) -> bool:
    request = {"operation": "CREATE", "namespace": namespace, "userInfo": {"username": "alice"}}
    variables = {"request": request | {"resource": {"resource": "pods"}}, "object": obj, "oldObject": None}
    return all(cel.compile(one["expression"]).execute(variables) for one in hook["matchConditions"])


CHOSEN = {
    "hami": {"enabled": True},
    "kai": {"enabled": True},
    "gpushare": {"enabled": True, "namespaces": ["team", "batch"]},
    "elastic-gpu": {"enabled": True, "memoryUnit": "1Mi", "namespaces": ["batch"]},
}
NAMESPACES = ["default", "team", "batch"]


@pytest.fixture(scope="module")
def chosen(render) -> list[JsonObject]:
    """The chart with some dialects on, some of them in some namespaces only."""
    rendered: list[JsonObject] = render({"dialects": CHOSEN, "reporter": {"enabled": True}})
    return rendered


def examples() -> dict[str, JsonObject]:
    """A Pod for each name and annotation that koordgate knows, and some for others."""
    known = BUILT_IN.known
    asking = {name: pod(container(limits={name: "1"})) for name in sorted(known.resources)}
    saying = {key: pod(container(), annotations={key: "0.5"}) for key in sorted(known.annotations)}
    forms = [form.key("main") for one in PEERS for form in one.forms]
    saying |= {key: pod(container(), annotations={key: "1Gi"}) for key in forms}
    foreign = ["nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "nvidia.com/gpu-10gb", "huawei.com/Ascend910", "cpu"]
    others = {name: pod(container(), init=[container(requests={name: "1"})]) for name in foreign}
    both = {"both": pod(container(limits={"nvidia.com/gpu": "1", "tencent.com/vcuda-core": "1"}))}
    misspelt = ["kubernetes.io/gpus", "koordinator.sh/gpu-mem", "nvidia.com/gpu-cores", "koordgate.io/gpu"]
    wrong = {name: pod(container(), init=[container(limits={name: "1"})]) for name in misspelt}
    keys = ["koordgate.io/device-odrer", "koordinator.sh/qosClass", "scheduling.koordinator.sh/resource-specs"]
    wrong |= {f"annotation {key}": pod(container(), annotations={key: "x"}) for key in keys}
    wrong |= {f"label {key}": pod(container(), labels={key: "x"}) for key in ("koordinator.sh/qosclass", *LABELLED)}
    right = {f"annotation {key}": pod(container(), annotations={key: "x"}) for key in ("team.example/koordgate", *READ)}
    return asking | saying | others | both | wrong | right


LABELLED = ("koordgate.io/mode", "koordgate.io/limits")
READ = ("gpu-memory-limit.koordgate.io/main", "koordgate.io/limits", "koordgate.io/device-order")


@pytest.mark.parametrize("namespace", NAMESPACES)
@pytest.mark.parametrize("name", examples())
def test_pods_are_sent_where_their_dialect_is_on_and_warned_about_where_it_is_off(
    chosen: list[JsonObject], name: str, namespace: str
) -> None:
    obj = examples()[name]
    types = settings.types_of(settings.parse(settings_text(chosen))).within(namespace)
    hooks = find(chosen, "MutatingWebhookConfiguration", "koordgate")["webhooks"]
    (mutate,) = (one for one in hooks if one["name"].startswith("pods."))
    ours = is_ours(obj, types)
    unread = find_unread(obj, types)
    assert matched(mutate, obj, namespace) is ours
    told = bool(unread.dialects or unread.foreign or find_misspelt(obj, types))
    assert warned(chosen, obj, namespace) is (told and not ours)


def test_nobody_is_warned_if_the_administrator_says_so(render) -> None:
    hooks = find(render({"warnOffDialects": False}), "ValidatingWebhookConfiguration", "koordgate")["webhooks"]
    assert not [one for one in hooks if one["name"].startswith("dialects.")]


def test_what_dialects_name_is_no_business_of_the_reporter(chosen: list[JsonObject]) -> None:
    text = json.dumps(chart.find(chosen, "ValidatingAdmissionPolicy", "koordgate-reporter"))
    assert "nvidia.com/gpumem" not in text
    policy = json.dumps(chart.find(chosen, "ValidatingAdmissionPolicy", "koordgate-preset-node"))
    assert "nvidia.com/gpumem" in policy
    assert "gpu-fraction" in policy


def test_a_dialect_without_a_unit_is_refused(render) -> None:
    with pytest.raises(ChartError, match=r"dialects\.elastic-gpu\.memoryUnit is empty"):
        render({"dialects": {"elastic-gpu": {"enabled": True}}})


def test_a_type_of_ones_own_may_not_have_the_names_of_a_dialect_that_is_on(render) -> None:
    own = {"devices": {"types": [{"name": "radeon", "resource": "amd.com/gpu"}]}}
    render(own)
    for scope in ({}, {"namespaces": ["team"]}):
        with pytest.raises(ChartError, match=r"resource amd\.com/gpu of type radeon is already that"):
            render({**own, "dialects": {"amd": {"enabled": True, **scope}}})


def check(objects: list[JsonObject], types: DeviceTypes, obj: JsonObject) -> None:
    assert sent(objects, obj) is is_ours(obj, types) is True


@pytest.mark.parametrize("name", sorted(TYPES.resources))
def test_each_resource_of_a_further_dialect_is_sent(extended: list[JsonObject], name: str) -> None:
    check(extended, TYPES, pod(container(limits={name: "1"})))
    check(extended, TYPES, pod(container(), init=[container(requests={name: "1"})]))


@pytest.mark.parametrize("key", sorted(TYPES.annotations))
def test_each_annotation_of_a_further_dialect_is_sent(
    extended: list[JsonObject], objects: list[JsonObject], key: str
) -> None:
    obj = pod(container(), annotations={key: "0.5"})
    check(extended, TYPES, obj)
    assert not sent(objects, obj)
    assert not sent(extended, pod(container(), annotations={f"{key}x": "0.5"}))


def test_the_reporter_may_not_write_what_device_plugins_report(extended: list[JsonObject]) -> None:
    text = json.dumps(chart.find(extended, "ValidatingAdmissionPolicy", "koordgate-reporter"))
    assert "'kubernetes.io/gpu-core'" in text
    assert not any(f"'{name}'" in text for name in json.loads(dialects.text(TYPES))["plugins"])


OWN = yaml.safe_load(TEXT)["devices"]["types"]


@pytest.fixture(scope="module")
def own(render) -> list[JsonObject]:
    rendered: list[JsonObject] = render({"devices": {"types": OWN}, "reporter": {"enabled": True}})
    return rendered


@pytest.mark.parametrize("name", sorted(NPU_TYPES.resources.keys() - BUILT_IN.resources.keys()))
def test_each_resource_of_a_type_of_several_amounts_is_sent_and_ignored_by_the_scheduler(
    own: list[JsonObject], name: str
) -> None:
    check(own, NPU_TYPES, pod(container(limits={name: "1"})))
    config = yaml.safe_load(find(own, "ConfigMap", "koord-scheduler")["data"]["config.yaml"])
    ((profile,), args) = config["profiles"], config["profiles"][0]["pluginConfig"][0]["args"]
    assert name in args["ignoredResources"], profile


def test_both_processes_get_the_types_as_the_values_have_them(own: list[JsonObject]) -> None:
    assert device_types(settings.parse(settings_text(own)).devices.types) == NPU_TYPES
    text = find(own, "ConfigMap", "koordgate-reporter")["data"]["config.yaml"]
    assert device_types(reporter.parse(text).devices.types) == NPU_TYPES


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"amounts": [{"name": "m", "resource": "nvidia.com/gpu"}]},
            "resource nvidia.com/gpu of type npu is already that of",
        ),
        (
            {"amounts": [{"name": "m", "resource": "a/x"}], "split": "a/x"},
            "resource a/x of type npu is already that of",
        ),
        ({"amounts": [{"name": "m", "resource": "x.kubernetes.io/m"}]}, "cannot ignore resource x.kubernetes.io/m"),
        ({"amounts": [{"name": "m", "resource": "m"}]}, "pattern"),
        ({"templates": [{"name": "t"}]}, "amounts"),
        ({"boards": [{"models": [], "partitions": []}]}, "minItems"),
    ],
)
def test_types_that_cannot_stand_beside_the_others_are_refused(render, changed: JsonObject, told: str) -> None:
    with pytest.raises(ChartError, match=told):
        render({"devices": {"types": [{"name": "npu", "resource": "a/npu", **changed}]}})
