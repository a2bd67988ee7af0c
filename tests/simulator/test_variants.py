"""What is set side by side: the input with other nodes, other settings, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from simulator.clusters import device, gpus, held, machine, node, saved, topology

from console.simulator.compare import Variant, variants
from console.simulator.documents import InputError
from console.simulator.objects import Objects, read
from koordgate.cli import parser_of
from webhook.settings import WebhookSettings, parse

Raw = dict[str, Any]


def ways(*words: str, settings: WebhookSettings | None = None) -> dict[str, Variant]:
    parser = parser_of("replay")
    return variants(parser.parse_args(["-f", "x", *words]), settings or WebhookSettings())


def names(objects: list[Raw]) -> list[str]:
    return [one["metadata"]["name"] for one in objects]


def slices(name: str) -> Raw:
    spec = {"driver": "d", "nodeName": name, "pool": {"name": name, "generation": 1}, "devices": []}
    return {"kind": "ResourceSlice", "metadata": {"name": f"slice-{name}"}, "spec": spec}


def given(folder: Path) -> Objects:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}},
        },
    }
    claim = {"kind": "ResourceClaim", "metadata": {"name": "claim"}}
    pods = [held("on-1", "n1", (0, 50)), gpus("waits", 50), held("on-2", "n2", (0, 50))]
    pods[1]["spec"]["nodeName"] = ""
    objects = [*machine("n1"), topology("n1"), *machine("n2"), slices("n1"), claim, pods[0], deployment, *pods[1:]]
    made = read([saved(folder, objects)])
    made.notes = ["of the input"]
    return made


def test_other_nodes_take_the_place_of_all_that_describes_nodes_and_of_the_pods_on_those_that_are_gone(
    tmp_path: Path,
) -> None:
    before = given(tmp_path)
    nodes = Objects(
        nodes=[node("n2"), node("n3")], devices=[device("n3")], topologies=[topology("n3")], claims=[slices("n3")]
    )
    nodes.notes = ["of the nodes"]
    made = Variant(WebhookSettings(), nodes).objects(before)
    assert names(made.nodes) == ["n2", "n3"]
    assert (names(made.devices), names(made.topologies)) == (["n3"], ["n3"])
    assert names(made.claims) == ["claim", "slice-n3"]
    assert names(made.pods) == ["waits", "on-2"]
    assert [one.object["metadata"]["name"] for one in made.sources] == ["web", "waits", "on-2"]
    assert made.notes == ["of the input", "of the nodes"]
    assert (before.notes, len(before.pods), len(before.sources)) == (["of the input"], 3, 4)


def test_a_file_is_of_nodes_if_one_of_its_objects_has_a_kind_and_of_settings_otherwise(tmp_path: Path) -> None:
    settings, nodes = tmp_path / "settings.yaml", tmp_path / "nodes.yaml"
    settings.write_text("---\n---\nscheduler: {preference: packing}\n")
    nodes.write_text("---\n" + "---\n".join(json.dumps(one) + "\n" for one in machine("n9")))
    configured = parse("adopt: {peers: [kai]}")
    found = ways("--compare", f"a={nodes}", "--preference", "mostBalanced", settings=configured)
    assert list(found) == ["mostBalanced", "a"]
    assert found["mostBalanced"].nodes is None
    assert str(found["mostBalanced"].settings.scheduler.preference) == "mostBalanced"
    of_nodes = found["a"].nodes
    assert of_nodes is not None
    assert names(of_nodes.nodes) == ["n9"]
    assert found["a"].settings is configured


@pytest.mark.parametrize(
    ("text", "peers"),
    [("scheduler: {preference: packing}", ("kai",)), ("adopt: {peers: [hami]}", ("hami",))],
)
def test_settings_that_count_no_product_count_those_of_the_others(
    text: str, peers: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    found = ways("--compare", f"b={file}", settings=parse("adopt: {peers: [kai]}"))["b"]
    assert found.nodes is None
    assert tuple(map(str, found.settings.adopt.peers)) == peers


def test_what_cannot_be_read_is_told_with_the_option(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("scheduler: 3")
    with pytest.raises(InputError, match=r"^--compare .*settings.yaml"):
        ways("--compare", f"b={file}")
    with pytest.raises(
        InputError, match=r"^--compare 'as given=x': as given is another way's name already; take another$"
    ):
        ways("--compare", "as given=x")
