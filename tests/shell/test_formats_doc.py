"""The pages about requests, CPUs and formats name all that is declared, and their tables and examples are true."""

import importlib
import json
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import allocator
import reporter
import webhook
from allocator.quantity import format_bytes
from allocator.request.cpus import read_cpu_ask
from allocator.request.unread import find_misspelt, is_ours
from allocator.vocabulary import names
from allocator.vocabulary.asks import GangSize
from allocator.vocabulary.cpunode import QosClass
from allocator.vocabulary.devicetype import BUILT_IN, Unit, own_type
from allocator.wire.allocatehint import HINT_ANNOTATIONS, PodHints, read_hints
from allocator.wire.classes import read_classes
from allocator.wire.deviceobject import DEVICE_LINKS, GPU_PARTITIONS, read_device_object, read_links, read_partitions
from allocator.wire.gang import gang_of, stated_size
from allocator.wire.nodetopology import read_node_topology
from allocator.wire.podallocated import read_allocation, read_resource_status
from allocator.wire.podannotations import (
    NUMA_TOPOLOGY_SPEC,
    RESOURCE_SPEC,
    read_numa_topology_spec,
    read_resource_spec,
)
from console.doctor.reader import NODE_KEYS
from koordgate.kube.resource import KOORDINATOR_POD_GROUPS, POD_GROUPS
from webhook.admission.translate import TranslationPolicy, canonical, translate

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("use/requests.md", "use/cpus.md", "reference/formats.md")
TEXT = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
KEY = re.compile(r"([a-z.]+\.)?(koordinator\.sh|koordgate\.io|kubernetes\.io|k8s\.io)/[A-Za-z.-]*")


def constants(module: Any) -> Iterator[str]:
    """The text values of a module's public constants."""
    for name, value in vars(module).items():
        if name.isupper() and not name.startswith("_") and name != "API_VERSION":
            yield from (text for text in (value if isinstance(value, tuple) else [value]) if isinstance(text, str))


def declared() -> Iterator[str]:
    """The vocabulary, and every key of an annotation or label that is declared beside the reader of its format."""
    yield from constants(names)
    for package in (allocator, webhook, reporter):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield from filter(KEY.fullmatch, constants(importlib.import_module(found.name)))


DECLARED = set(declared())
QUEUE = own_type("queue", "example.com/queue", Unit.UNITS)


def section(heading: str) -> str:
    """The text under a heading."""
    (found,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return str(found)


def examples(heading: str, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)\n```", section(heading), re.DOTALL)
    assert found, heading
    return found


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    table = section(heading).split("\n|", 1)[1].split("\n\n")[0]
    lines = f"|{table}".splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def amounts(cell: str, domain: str) -> dict[str, str]:
    """The resources in a cell: `gpu: 50`, `nvidia.com/gpu: 1`."""
    found = re.findall(r"`([\w./-]+): ([^`]+)`", cell)
    return {name if "/" in name else f"{domain}/{name}": amount for name, amount in found}


def translated(resources: dict[str, str], domain: str) -> Any:
    pod = {"metadata": {}, "spec": {"containers": [{"name": "main", "resources": {"limits": resources}}]}}
    return translate(pod, TranslationPolicy(domain), None)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_each_declared_name_stands_there(name: str) -> None:
    assert f"`{name}" in TEXT, name


def test_each_annotation_and_label_of_a_pod_is_one_that_admission_knows() -> None:
    """One that is missing in allocator.request.unread would be called misspelt."""
    tables = section("Annotations and labels of a Pod").split("\n|")
    keys = {key for line in tables for key in re.findall(r"`([^`]+)`", line.split("|")[0])}
    assert {"koordgate.io/limits", "koordinator.sh/qosClass"} <= keys
    for key in sorted(keys):
        told = [find_misspelt({"metadata": {of: {key: "x"}}}, BUILT_IN) for of in ("annotations", "labels")]
        assert [] in told, key


def test_each_annotation_and_label_of_a_node_is_one_that_the_doctor_knows() -> None:
    text = section("Annotations and labels of a Node") + section("Labels of a Node")
    keys = {key for key in re.findall(r"`([^`]+)`", text) if is_ours(key) and "/" in key}
    assert {"koordgate.io/classes", "koordgate.io/gpu-memory-mib", "node.koordinator.sh/gpu-model"} <= keys
    assert keys == {key for of in NODE_KEYS.values() for key in of}


def test_each_device_resource_is_in_the_table_of_names() -> None:
    told = {name for row in rows("Resource names") for name in re.findall(r"`([^`]+)`", row[0])}
    assert told == set(BUILT_IN.resources)


@pytest.mark.parametrize("domain", names.DOMAINS)
@pytest.mark.parametrize("row", rows("What a request becomes"), ids=lambda row: row[0].replace("`", ""))
def test_each_request_becomes_what_the_page_says(row: list[str], domain: str) -> None:
    asked, becomes, devices, _ = row
    asks = translated(amounts(asked, domain), domain).reading.containers[0].requests
    assert sum(ask.count for ask in asks) == int(devices)
    if not asks:
        return
    wanted = amounts(asked if becomes == "the same" else becomes, domain)
    if domain == names.KUBERNETES_DOMAIN:
        wanted.pop(f"{domain}/{names.GPU_SHARED}", None)
    assert canonical(asks[0], domain, None) == wanted


def test_the_examples_of_device_allocated_are_of_the_format() -> None:
    gpu, rdma = examples(names.DEVICE_ALLOCATED.join("``"), "json")
    (share,) = read_allocation({names.DEVICE_ALLOCATED: gpu}).shares
    assert (share.minor, share.amounts[names.GPU_CORE]) == (1, 50)
    assert format_bytes(share.amounts[names.GPU_MEMORY]) == "40Gi"
    (share,) = read_allocation({names.DEVICE_ALLOCATED: rdma}).shares
    assert (share.type, share.amounts, len(share.functions)) == (names.TYPE_RDMA, {names.RDMA: 100}, 1)


@pytest.mark.parametrize("key", HINT_ANNOTATIONS)
def test_each_example_of_a_hint_is_read(key: str) -> None:
    for example in examples(f"`{key}`", "json"):
        hints = read_hints({key: example}, BUILT_IN.by_name)
        assert isinstance(hints, PodHints), hints
        assert hints != PodHints()


@pytest.mark.parametrize(
    ("key", "read"), [(RESOURCE_SPEC, read_resource_spec), (NUMA_TOPOLOGY_SPEC, read_numa_topology_spec)]
)
def test_each_example_of_wishes_for_cpus_is_read(key: str, read: Callable[..., Any]) -> None:
    problems: list[Any] = []
    for example in examples(f"`{key}`", "json"):
        assert read({key: example}, problems)
    assert problems == []


def test_the_examples_of_resource_status_are_read() -> None:
    own, pooled = (
        read_resource_status({names.RESOURCE_STATUS: example})
        for example in examples(f"`{names.RESOURCE_STATUS}`", "json")
    )
    assert own is not None
    assert pooled is not None
    assert (own.cpus, own.numa[0].amounts["cpu"], own.pools) == (0b1111, 4000, ())
    assert (pooled.cpus, pooled.numa[0].node, pooled.pools[0].node) == (0, 1, 1)


def test_the_example_of_a_pod_with_cpus_of_its_own_is_right() -> None:
    (pod,) = map(yaml.safe_load, examples("CPUs of a Pod's own", "yaml"))
    reading = read_cpu_ask(pod)
    assert reading.problems == ()
    assert reading.ask is not None
    assert (reading.ask.qos, reading.ask.count) == (QosClass.LSR, 4)
    table = section("Classes").split("| label")[1]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(QosClass)


def test_the_examples_of_nodes_are_read_whole() -> None:
    (device,) = map(yaml.safe_load, examples("The Device object", "yaml"))
    devices = read_device_object(device)
    assert devices.problems == ()
    assert ([one.type for one in devices.devices], len(devices.cordoned)) == (["gpu", "gpu", "rdma"], 1)
    assert devices.links.ids
    (topology,) = map(yaml.safe_load, examples("The NodeResourceTopology", "yaml"))
    node = read_node_topology(topology)
    assert node.problems == ()
    assert node.cpu is not None
    assert node.reserved == 0b1101


def test_the_examples_of_annotations_of_nodes_and_devices_are_read() -> None:
    (links,) = examples(f"`{DEVICE_LINKS}`", "json")
    lanes, wrong = read_links(links, ["GPU-a", "GPU-b", "GPU-c"])
    assert (lanes, wrong) == ({("GPU-a", "GPU-b"): 2, ("GPU-a", "GPU-c"): 1}, ())
    (table,) = examples(f"`{GPU_PARTITIONS}`", "json")
    partitions, wrong = read_partitions(table)
    assert ([len(of) for of in partitions.sizes.values()], wrong) == ([2, 1], ())
    (classes,) = examples(f"`{names.CLASSES}`", "json")
    devices, wrong = read_classes(classes, BUILT_IN.with_types([QUEUE]))
    assert ([device.capacity["queue"] for device in devices], wrong) == ([10, 40], ())


def test_the_example_of_a_gang_names_one() -> None:
    (example,) = examples("Gangs", "")
    key, _, value = example.partition(": ")
    assert gang_of({"metadata": {"namespace": "team", "annotations": {key: value}}}) == f"team/{value}"
    (stated,) = (json.loads(text) for text in examples("Gangs", "json"))
    assert stated_size(stated) == (GangSize(4, 4), ())
    versions = ", ".join(sorted(f"`{one.version}`" for one in POD_GROUPS))
    assert f"PodGroup `{POD_GROUPS[0].group}` ({versions})" in section("Gangs")
    assert f"`{KOORDINATOR_POD_GROUPS.api_version}`" in section("Gangs")
