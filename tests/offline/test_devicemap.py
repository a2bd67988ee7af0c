"""The device map: whole and well-formed, safe against any object, and true to who holds what."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from builders import device_entry, device_object, gpu, part
from offline.clusters import gpus, machine, nic, node, pinned, topology

from allocator.vocabulary.device import Device
from allocator.vocabulary.devicetype import GPU_TYPE
from allocator.vocabulary.holdings import Share
from webhook.offline import devicemap
from webhook.offline.account import DeviceUse
from webhook.offline.cluster import OfflineCluster
from webhook.settings import parse

HOSTILE = "<script>alert('\"&')</script>\ud800"
OWN = parse("devices: {types: [{name: queue, resource: example.com/queue, unit: units}]}")
VOID = {"meta", "br", "img", "link"}


class Page(HTMLParser):
    """A page as a browser reads it; every element must be closed in the element where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def titled(self, start: str) -> list[dict[str, str | None]]:
        """The elements whose title begins with this text."""
        return [attributes for _, attributes in self.elements if (attributes.get("title") or "").startswith(start)]

    def classes(self, name: str) -> int:
        """How many elements are of a class."""
        return sum(name in (attributes.get("class") or "").split() for _, attributes in self.elements)


async def drawn(*objects: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> str:
    cluster = OfflineCluster.in_process(OWN)
    results = await cluster.load(objects)
    results += [await cluster.submit(pod) for pod in pods]
    return devicemap.page(results, cluster.account())


def _hue(attributes: dict[str, str | None]) -> str:
    return (attributes["style"] or "").split(";width")[0]


async def test_each_device_is_a_card_and_each_cpu_a_cell() -> None:
    classes = {"koordgate.io/classes": '{"queue":{"fast":4}}'}
    objects = (node(annotations=classes), device_object(*map(device_entry, range(3)), nic(0)), topology(cores=3))
    page = Page(await drawn(*objects))
    assert page.classes("card") == 3 + 1 + 1
    assert page.classes("core") == 6
    assert len(page.titled("CPU ")) == 12


async def test_a_pod_has_one_colour_wherever_it_is_drawn() -> None:
    objects = (node(), device_object(device_entry(0), device_entry(1)), topology())
    pods = (pinned("a", 2, amounts={"kubernetes.io/gpu": "40"}), pinned("b", 4, amounts={"kubernetes.io/gpu": "60"}))
    page = Page(await drawn(*objects, pods=pods))
    hues = {}
    for name, cells in (("a", 2), ("b", 4)):
        own = [one for one in page.titled("CPU ") if (one["title"] or "").endswith(f": default/{name}")]
        assert len(own) == cells
        (segment,) = page.titled(f"default/{name}: ")
        hues[name] = {_hue(segment), *map(_hue, own)}
        assert len(hues[name]) == 1
    assert hues["a"] != hues["b"]


def test_a_thousand_pods_have_a_thousand_colours_and_neighbours_differ_clearly() -> None:
    colours = devicemap._Colours(f"pod-{number:04}" for number in range(1080))
    styles = [colours.style(f"pod-{number:04}") for number in range(1080)]
    assert len(set(styles)) == 1080
    assert styles[:3] == ["--h:0;--s:-1", "--h:47;--s:-1", "--h:94;--s:-1"]
    assert {style.partition(";")[2] for style in styles} == {"--s:-1", "--s:0", "--s:1"}


async def test_a_card_is_filled_by_the_resource_that_is_short() -> None:
    """60 % of the memory and 10 % of the compute fill 60 % of the card; a very small share is still visible."""
    first = gpus("a", 1)
    first["spec"]["containers"][0]["resources"]["requests"] = {
        "kubernetes.io/gpu-core": "10",
        "kubernetes.io/gpu-memory-ratio": "60",
    }
    page = Page(await drawn(*machine(cards=1), pods=(first, gpus("b", 1))))
    widths = [re.search(r"width:(\d+)%", page.titled(f"default/{name}: ")[0]["style"] or "") for name in "ab"]
    assert [match and match[1] for match in widths] == ["60", "3"]


async def test_why_nothing_lands_and_why_a_pod_waits_is_reported() -> None:
    sick = device_object(device_entry(0), annotations={"koordgate.io/cordoned-devices": "GPU-0"})
    page = Page(await drawn(node(), sick, pods=(gpus("waits", 50),)))
    text = "".join(page.text)
    assert "cordoned by an administrator" in text
    assert "no node: node-1: " in text
    assert page.classes("away") == 1


@pytest.mark.parametrize("where", ["model", "id", "why", "queue", "annotation"])
async def test_whatever_objects_say_is_text(where: str) -> None:
    entry: dict[str, Any] = device_entry(0)
    classes = {}
    pods: tuple[dict[str, Any], ...] = ()
    if where == "model":
        entry["labels"] = {"node.koordinator.sh/gpu-model": HOSTILE}
    elif where == "id":
        entry["id"] = HOSTILE
    elif where == "why":
        entry |= {"health": False, "conditions": [{"type": "Healthy", "status": "False", "reason": HOSTILE}]}
    elif where == "queue":
        classes = {"koordgate.io/classes": '{"queue":{"<script>alert(1)</script>":3}}'}
    else:
        broken = gpus("a", 50, nodeName="node-1", annotations={"scheduling.koordinator.sh/device-allocated": HOSTILE})
        pods = (broken,)
    text = await drawn(node(annotations=classes), device_object(entry), *pods)
    text.encode()
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.elements}


async def test_nothing_comes_from_outside_and_both_schemes_are_styled() -> None:
    text = await drawn(*machine(), topology(), pods=(gpus("a", 50),))
    page = Page(text)
    assert not {tag for tag, _ in page.elements} & {"script", "link", "img", "iframe"}
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.elements)
    assert "url(" not in text
    assert "@import" not in text
    policy = next(a for tag, a in page.elements if tag == "meta" and "http-equiv" in a)
    assert (policy["content"] or "").startswith("default-src 'none'")
    assert "prefers-color-scheme: dark" in text


async def test_the_same_cluster_gives_the_same_page() -> None:
    assert await drawn(*machine(), pods=(gpus("a", 50),)) == await drawn(*machine(), pods=(gpus("a", 50),))


async def test_an_empty_cluster_is_a_page_too() -> None:
    assert "0 Pods: none; no devices" in "".join(Page(await drawn()).text)


def drawn_card(device: Device | None, *held: tuple[str, Share]) -> str:
    use = DeviceUse("n", GPU_TYPE, 3, "GPU-0123456789", device, by_kubelet=False, held=held)
    return devicemap._card(use, devicemap._Colours(pod for pod, _ in held))


def test_a_card_shows_its_model_who_holds_how_much_and_what_is_used() -> None:
    card = gpu(3, device_id="GPU-0123456789", model="A<100>")
    assert drawn_card(card, ("default/a", part(card, 30)), ("ns/b", part(card, 1))) == (
        '<div class="card"><b>gpu 3</b><span class="soft">A&lt;100&gt; GPU-01234567</span><div class="bar">'
        '<i class="pod" style="--h:0;--s:-1;width:30%" title="default/a: core 30 %, memory 24 GiB (30 %)"></i>'
        '<i class="pod" style="--h:47;--s:-1;width:3%" title="ns/b: core 1 %, memory 0.8 GiB (1 %)"></i></div>'
        "core 31 %, 24.8 of 80 GiB<ul>"
        '<li><span class="key pod" style="--h:0;--s:-1"></span>a: 30 %</li>'
        '<li><span class="key pod" style="--h:47;--s:-1"></span>ns/b: 1 %</li></ul></div>'
    )


def test_a_card_that_is_gone_is_drawn_full_and_away() -> None:
    text = drawn_card(None, ("default/a", part(gpu(3), 30)))
    assert text.startswith('<div class="card away"><b>gpu 3</b><span class="soft">GPU-01234567</span>')
    assert "width:100%" in text
    assert '<div class="why">' in text
