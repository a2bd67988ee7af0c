"""The page in a real browser: what is drawn, keyboard, search, live changes, signing in, and what axe says."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from devicemap.chromium import Browser, browser
from fake_kube import FakeKube
from simulator.clusters import EXAMPLES, gpus, machine, node, pinned, topology
from world import World, gpu_pod

from console.simulator import devicemap
from console.simulator.cluster import OfflineCluster
from koordgate.cli import main
from koordgate.kube.client import KubeClient
from webhook.devicemap.access import TokenGuard
from webhook.devicemap.feed import MapFeed
from webhook.devicemap.server import MapServer, single

HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"
MANY = 1000
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(autouse=True)
def nothing_is_complained_of(chromium: Browser) -> Iterator[None]:
    chromium.complaints()
    yield
    complaints = [one for one in chromium.complaints() if "status of 401" not in one and "status of 503" not in one]
    assert complaints == []


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The demo's cluster and workload, as one file."""
    path = tmp_path_factory.mktemp("map") / "map.html"
    files = [str(EXAMPLES / name) for name in ("cluster.yaml", "workload.yaml")]
    arguments = ["-f", files[0], "-f", files[1], "--config", str(EXAMPLES / "config.yaml"), "--map", str(path)]
    assert main(["simulate", *arguments]) == 0
    return path.as_uri()


def written(folder: Path, document: dict[str, Any]) -> str:
    path = folder / "map.html"
    path.write_text(single(document), encoding="utf-8")
    return path.as_uri()


def drawn(folder: Path, *objects: dict[str, Any], pods: tuple[dict[str, Any], ...] = ()) -> str:
    """A cluster of these objects as one file."""

    async def simulated() -> dict[str, Any]:
        cluster = OfflineCluster.in_process()
        results = await cluster.load(objects)
        results += [await cluster.submit(one) for one in pods]
        return devicemap.document(results, cluster.account())

    return written(folder, asyncio.run(simulated()))


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_window(
    chromium: Browser, example: str, width: int, *, dark: bool
) -> None:
    chromium.open(example, width=width, dark=dark)
    chromium.until("$$('.card').length > 8")
    assert chromium.violations() == []
    assert chromium.ask("document.documentElement.scrollWidth") <= width
    used = chromium.ask("Math.max(...$$('.card').map((one) => one.getBoundingClientRect().right))")
    assert used > 0.7 * width if width == 1280 else used > 0.9 * width
    chromium.ask("$$('.holder')[0].click()")
    chromium.until("$('#picked')")
    assert chromium.violations() == []


def test_core_and_memory_are_two_bars_with_their_own_figures(chromium: Browser, tmp_path: Path) -> None:
    uneven = gpus("uneven", 1)
    amounts = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory-ratio": "60"}
    uneven["spec"]["containers"][0]["resources"]["requests"] = amounts
    chromium.open(drawn(tmp_path, *machine(cards=1), pods=(uneven, gpus("other", 20))))
    meters = chromium.until(
        "$$('.card [role=meter]').map((one) => [one.ariaLabel, one.ariaValueNow, one.ariaValueText,"
        " [...one.children].map((each) => each.style.width)])"
    )
    assert meters == [
        ["gpu 0 core", "30", "30 % of 100 % held", ["20%", "10%"]],
        ["gpu 0 memory", "80", "64 GiB of 80 GiB held", ["20%", "60%"]],
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_cpus_of_a_pod_have_its_colour_and_can_be_read(chromium: Browser, tmp_path: Path, *, dark: bool) -> None:
    """An owner outranks the pool, whatever the order of the style's rules."""
    chromium.open(drawn(tmp_path, node(), topology(), pods=(pinned("mine", 4),)), dark=dark)
    cells = chromium.until("$$('.cores .cpu').map((one) => [one.className, getComputedStyle(one).backgroundColor])")
    own = {colour for name, colour in cells if "lsr" in name}
    shared = {colour for name, colour in cells if "shared" in name}
    assert len([name for name, _ in cells if "lsr" in name]) == 4
    assert len(own) == 1
    assert own.isdisjoint(shared)
    key = chromium.ask("getComputedStyle($('.cpus .key')).backgroundColor")
    assert own == {key}
    assert chromium.violations() == []


def test_a_pod_that_is_picked_is_marked_wherever_it_holds_something(chromium: Browser, example: str) -> None:
    chromium.open(example)
    chromium.until("$$('.card').length > 8")
    chromium.ask("$('#search').focus()")
    chromium.press("own-cpus-beside")
    chromium.until("$$('.node').length === 1")
    chromium.ask("$$('.holder').find((one) => one.textContent.includes('own-cpus-beside')).click()")
    chromium.until("$('#picked')?.textContent === 'default/own-cpus-beside-a-card'")
    assert chromium.ask("$$('.card.lit').length") == 1
    assert chromium.ask("$$('.box.lit').length") == 1
    assert chromium.ask("$$('.cpu.lit').length") == 4
    assert chromium.ask("$$('.share.lit').length") == 2
    assert chromium.ask("$$('main .holder[aria-pressed=true]').length") == 2
    chromium.ask("$('#search').blur()")
    chromium.press("\ue00c")  # Escape
    chromium.until("!$('#picked')")


@pytest.mark.parametrize(
    ("query", "nodes"),
    [
        pytest.param("h200", ["h200-1"], id="a model"),
        pytest.param("A100-2", ["a100-2"], id="a node"),
        pytest.param("default/train-4", ["h200-1"], id="a Pod with its namespace"),
        pytest.param("unhealthy", ["a100-1"], id="a state"),
        pytest.param("h200 train-beside", ["h200-1"], id="several words"),
        pytest.param("nowhere", [], id="nothing"),
    ],
)
def test_search_begins_with_a_slash_and_finds(chromium: Browser, example: str, query: str, nodes: list[str]) -> None:
    chromium.open(example)
    chromium.until("$$('.card').length > 8")
    chromium.ask("document.activeElement.blur()")
    chromium.press("/")
    chromium.until("document.activeElement.id === 'search'")
    chromium.press(query)
    chromium.until("$('.found').textContent.startsWith(arguments[0])", f"{len(nodes)} of 4")
    assert chromium.ask("$$('.nodename').map((one) => one.textContent.trim())") == nodes


def test_connections_are_drawn_and_told_in_words(chromium: Browser, example: str) -> None:
    chromium.open(example)
    chromium.until("$$('svg[role=img]').length > 0")
    chromium.ask("scrollTo(0, document.body.scrollHeight)")
    told = chromium.until("$$('svg[role=img]').map((one) => one.ariaLabel).find((one) => one.includes('NVLink'))")
    assert "NUMA node 0: gpu 0, gpu 1, rdma 0 on PCIe root pci0000:15" in told
    assert "NVLink connects each pair of 8 devices by 18 lanes." in told


def test_pods_without_a_node_are_told_with_their_reasons(chromium: Browser, example: str) -> None:
    chromium.open(example)
    chromium.until("$('details').textContent.includes('default/waits-for-a-larger-card')")
    assert "write 1 or 2" in chromium.ask("$('details').textContent")


@pytest.mark.parametrize("nodes", [1, 13])
def test_whatever_objects_say_is_text(chromium: Browser, tmp_path: Path, nodes: int) -> None:
    device = {
        "type": "gpu",
        "minor": 0,
        "id": HOSTILE,
        "model": HOSTILE,
        "numa": 0,
        "pcie": HOSTILE,
        "bus": HOSTILE,
        "health": "unhealthy",
        "why": HOSTILE,
        "amounts": [[100, 50, 50]],
        "shares": [{"holder": 0, "amounts": [50], "containers": [HOSTILE]}],
        "uses": [used(f"{HOSTILE}/{HOSTILE}", HOSTILE, "missing", 1, None, 1)],
    }
    holder = {"kind": "pod", "uid": HOSTILE, "namespace": HOSTILE, "name": HOSTILE, "note": HOSTILE, "numa": []}
    one = {
        "blocked": HOSTILE,
        "undelivered": HOSTILE,
        "devices": [device],
        "links": [],
        "cpus": None,
        "holders": [holder],
    }
    waits = {"uid": "", "namespace": "x", "name": HOSTILE, "state": HOSTILE, "reasons": [HOSTILE], "seconds": 1}
    resources = [{"name": "gpu-core", "word": HOSTILE, "unit": "percent"}]
    document = {
        "version": 1,
        "epoch": "",
        "revision": 0,
        "at": 0,
        "types": {"gpu": {"noun": "x", "resources": resources}},
        "nodes": [{**one, "name": f"{HOSTILE}{number}"} for number in range(nodes)],
        "waiting": {"pods": [waits], "total": 1},
    }
    chromium.open(written(tmp_path, document))
    if nodes > 1:
        chromium.until("$$('.tile').length === arguments[0]", nodes)
        assert chromium.ask("$$('#app img, .tile b b').length") == 0
        chromium.ask("$('.cell[role=gridcell]').click()")
    chromium.until("$$('.holder').length === 1")
    chromium.ask("$('.holder').click()")
    chromium.until("$('#picked')")
    assert chromium.ask("$$('#app img, #app li > b > b, #app h2 b').length") == 0
    assert HOSTILE in chromium.ask("$('.nodename').textContent")


def used(pod: str, container: str, state: str, use: int | None, limit: int | None, held: int) -> dict[str, Any]:
    """What a container has of a card's memory."""
    wanted = None if state == "accounting" else held
    return {
        "pod": pod,
        "container": container,
        "state": state,
        "used": use,
        "limit": limit,
        "wanted": wanted,
        "held": held,
    }


def test_a_card_tells_at_once_who_is_not_kept_to_its_memory_and_the_rest_once_it_is_opened(
    chromium: Browser, tmp_path: Path
) -> None:
    document = many(1)
    document["nodes"][0]["devices"] = document["nodes"][0]["devices"][:2]
    document["nodes"][0]["links"] = []
    gib = 2**30
    document["nodes"][0]["devices"][0]["uses"] = [
        used("team/pod-0", "kept", "enforced", gib, 4 * gib, 4 * gib),
        used("team/pod-0", "loose", "missing", 2 * gib, None, 4 * gib),
        used("team/pod-0", "greedy", "accounting", 9 * gib, None, 4 * gib),
        used("team/other", "strange", "missing", gib, None, gib),
    ]
    chromium.open(written(tmp_path, document))
    chromium.until("$$('.card .holder').length === 2")
    told = "$$('.card .holders p').map((one) => one.textContent).join('|')"
    bad = "loose uses 2 GiB (missing)|greedy uses 9 GiB (accounting, more than it holds)"
    assert chromium.ask(told) == bad
    chromium.ask("$('.card .more').click()")
    chromium.until("$$('.card .holders p').length === 3")
    assert chromium.ask(told) == f"kept uses 1 GiB of at most 4 GiB (enforced)|{bad}"
    chromium.ask("$('.holder').click()")
    chromium.until("$('#picked')")
    assert "loose uses 2 GiB (missing)" in chromium.ask("$('.panel').textContent")


PERCENT = (50, 50, 70, 1, 99, 100, 0, 0)
"""What is held of each card of a node; the last is unhealthy."""


def many(count: int) -> dict[str, Any]:
    """A document of this many nodes with eight cards each."""
    cards = [
        {
            "type": "gpu",
            "minor": minor,
            "model": "H100",
            "numa": minor // 4,
            "pcie": f"pci{minor // 2}",
            "bus": "",
            "health": "unhealthy" if minor == 7 else "healthy",
            "state": {0: "free", 100: "held"}.get(percent, "inParts"),
            "why": "XID79" if minor == 7 else "",
            "amounts": [[100, percent, 100 - percent], [100 * 2**30, percent * 2**30, (100 - percent) * 2**30]],
            "shares": [{"holder": 0, "amounts": [percent, percent * 2**30], "containers": ["main"]}] if percent else [],
        }
        for minor, percent in enumerate(PERCENT)
    ]
    nodes = [
        {
            "name": f"node-{number:04}",
            "blocked": "",
            "undelivered": "",
            "links": [[a, b, 18] for b in range(8) for a in range(b)],
            "devices": [{**card, "id": f"GPU-{number:08}-{card['minor']}"} for card in cards],
            "cpus": None,
            "holders": [
                {
                    "kind": "pod",
                    "uid": f"u{number}",
                    "namespace": "team",
                    "name": f"pod-{number}",
                    "note": "",
                    "numa": [],
                }
            ],
        }
        for number in range(count)
    ]
    resources = [
        {"name": "gpu-core", "word": "core", "unit": "percent"},
        {"name": "gpu-memory", "word": "memory", "unit": "bytes"},
    ]
    return {
        "version": 1,
        "epoch": "",
        "revision": 0,
        "at": 0,
        "types": {"gpu": {"noun": "card", "resources": resources}},
        "nodes": nodes,
        "waiting": {"pods": [], "total": 0},
    }


def test_twelve_nodes_are_shown_with_all_that_they_have_and_more_as_a_cell_for_each_device(
    chromium: Browser, tmp_path: Path
) -> None:
    chromium.open(written(tmp_path, many(12)))
    chromium.until("$$('.card').length === 96")
    assert chromium.ask("$$('.tile').length") == 0
    chromium.open(written(tmp_path, many(13)))
    chromium.until("$$('.tile .cell').length === 104")
    assert chromium.ask("$$('.card').length") == 0
    assert chromium.ask("$$('.legend b').map((one) => one.textContent)") == ["13", "65", "13", "13"]


@pytest.mark.parametrize(
    ("count", "width", "dark"),
    [(60, 1280, False), (60, 1280, True), (60, 390, False), (60, 390, True), (MANY, 1280, False)],
)
def test_axe_finds_nothing_in_the_overview(
    chromium: Browser, tmp_path: Path, count: int, width: int, *, dark: bool
) -> None:
    chromium.open(written(tmp_path, many(count)), width=width, dark=dark)
    chromium.until("$$('.tile').length === arguments[0]", count)
    chromium.ask("$('#search').focus()")
    chromium.press("pod-1")
    chromium.until("$$('.cell.lit').length > 0 && $$('aside .holder').length > 0")
    assert chromium.violations() == []
    chromium.press("\ue00c")
    chromium.until("$$('.tile').length === arguments[0]", count)
    assert chromium.violations() == []
    assert chromium.ask("document.documentElement.scrollWidth") <= width


HEIGHTS = [50, 50, 70, 12, 86, 100, 0, 0]
"""What of PERCENT is seen: 1 is not empty, and 99 is not full."""


def test_a_full_card_looks_full_and_no_other_does(chromium: Browser, tmp_path: Path) -> None:
    document = many(1)
    chromium.open(written(tmp_path, document))
    drawn = (
        "$$('.box').map((box) => [...box.querySelectorAll('.fill')].map((one) =>"
        " Math.round(100 * one.getAttribute('height') / box.querySelector('.edge').getAttribute('height'))))"
    )
    assert chromium.until(drawn) == [[height, height] for height in HEIGHTS]
    chromium.open(written(tmp_path, many(13)))
    chromium.until("$$('.tile').length === 13")
    looks = chromium.ask("[...$('.cells').querySelectorAll('.cell')].map((one) => one.className.split(' ')[1])")
    assert looks == ["parts", "parts", "parts", "parts", "parts", "full", "free", "bad"]
    seen = (
        "[...$('.cells').querySelectorAll('.cell')].map((one) =>"
        " getComputedStyle(one).backgroundImage.match(/[0-9.]+(?=%)/)?.[0] ?? '')"
    )
    assert chromium.ask(seen)[:7] == ["50", "50", "70", "12", "86", "", ""]
    whole = "getComputedStyle($('.cell.full')).backgroundColor === getComputedStyle($('.cell.full')).borderColor"
    assert chromium.ask(whole)


CONTRAST = """(() => {
  const look = document.createElement("i");
  document.body.append(look);
  const light = (name) => {
    look.style.color = `var(--${name})`;
    const [r, g, b] = getComputedStyle(look).color.match(/[0-9.]+/g).slice(0, 3).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const face = light("face");
  const found = ["edge", "part", "full", "bad", "mark"].map((name) => [face, light(name)])
    .map((pair) => Math.max(...pair) / Math.min(...pair));
  look.remove();
  return Math.min(...found);
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_cells_are_drawn_with_is_seen_against_the_face(chromium: Browser, tmp_path: Path, *, dark: bool) -> None:
    chromium.open(written(tmp_path, many(13)), dark=dark)
    chromium.until("$$('.tile').length === 13")
    assert chromium.ask(CONTRAST) >= 3


def test_a_cell_says_its_figures_and_who_holds_it(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(written(tmp_path, many(13)))
    names = chromium.until("$$('.cell[role=gridcell]').map((one) => one.ariaLabel)")
    assert names[2] == "gpu 2 of node-0000: in parts, core 70 %, memory 70 / 100 GiB, held by team/pod-0"
    assert names[6:8] == [
        "gpu 6 of node-0000: free, core 0 %, memory 0 / 100 GiB",
        "gpu 7 of node-0000: unhealthy, core 0 %, memory 0 / 100 GiB",
    ]
    chromium.ask("$$('.cell[role=gridcell]')[7].focus()")
    chromium.until("$('.readout').textContent === arguments[0]", f"{names[7]} XID79")


def test_what_long_names_have_in_common_is_left_out_of_the_tiles_alone(chromium: Browser, tmp_path: Path) -> None:
    document = many(13)
    for number, one in enumerate(document["nodes"]):
        one["name"] = f"prod-eu-west-4-cards-{number:02}"
    chromium.open(written(tmp_path, document))
    seen = chromium.until("$$('.tile .name').map((one) => [one.textContent, one.ariaLabel])")
    assert seen == [[f"…{number:02}1 free", f"prod-eu-west-4-cards-{number:02}, 1 free"] for number in range(13)]
    assert "gpu 0 of prod-eu-west-4-cards-00:" in chromium.ask("$('.cell[role=gridcell]').ariaLabel")


def test_search_marks_who_holds_what_and_counts(chromium: Browser, tmp_path: Path) -> None:
    document = many(60)
    document["nodes"][41]["holders"][0] |= {"uid": "u7", "name": "pod-7"}  # the same Pod on two nodes
    chromium.open(written(tmp_path, document))
    chromium.until("$('.found').textContent === '60 nodes, 480 devices'")
    chromium.ask("$('#search').focus()")
    chromium.press("team/pod-7")
    chromium.until("$('.found').textContent === '2 of 60 nodes, 12 of 480 devices, 1 holder'")
    assert chromium.ask("$$('.tile').map((one) => one.dataset.node)") == ["node-0007", "node-0041"]
    assert chromium.ask("$$('.cell.lit').length") == 12
    assert chromium.ask("$$('.cell.lit').every((one) => one.ariaLabel.endsWith(', marked'))")
    assert chromium.ask("$('aside .holder').innerText.split('\\n').join(' ')") == "team/pod-7 12 devices on 2 nodes"
    chromium.ask("$('aside .holder').click()")
    chromium.press("\ue00c")  # Escape empties the search; the Pod stays marked
    chromium.until("$$('.tile').length === 60 && $$('.cell.lit').length === 12")
    assert chromium.ask("$$('#picked ~ h3').map((one) => one.textContent)") == ["node-0007", "node-0041"]
    chromium.press("node-0007")
    chromium.until("$('.found').textContent === '1 of 60 nodes, 8 of 480 devices, 1 holder'")


def focused(chromium: Browser, minor: int, number: int) -> None:
    chromium.until("document.activeElement.ariaLabel.startsWith(arguments[0])", f"gpu {minor} of node-{number:04}:")


def test_the_keys_go_from_cell_to_cell_to_a_node_and_back(chromium: Browser, tmp_path: Path) -> None:
    chromium.open(written(tmp_path, many(MANY)))
    chromium.until("$$('.tile').length === arguments[0]", MANY)
    columns = chromium.ask("getComputedStyle($('.overview')).gridTemplateColumns.split(' ').length")
    assert columns > 3
    stops = "$$('.overview [tabindex=\"0\"]').length"
    assert chromium.ask(stops) == 1
    chromium.ask("$('.overview [tabindex=\"0\"]').focus()")
    left, up, right, down = "\ue012", "\ue013", "\ue014", "\ue015"
    ctrl, end, home, page_down = "\ue009", "\ue010", "\ue011", "\ue00f"
    for keys, minor, number in (
        (right, 1, 0),
        (down, 1, columns),
        (end, 7, columns),
        (right, 0, columns + 1),
        (left, 7, columns),
        (up, 7, 0),
        (up, 7, 0),
        (home, 0, 0),
        (left, 0, 0),
        (ctrl + end, 7, MANY - 1),
        (ctrl + home, 0, 0),
    ):
        chromium.press(keys)
        focused(chromium, minor, number)
    assert chromium.ask(stops) == 1
    chromium.press(page_down)
    chromium.until("document.activeElement.closest('.tile').previousElementSibling")
    chromium.until("document.activeElement.getBoundingClientRect().bottom < innerHeight")
    chromium.press(ctrl + home, right, right)
    focused(chromium, 2, 0)
    chromium.press("\ue007")  # Enter
    chromium.until(
        "document.activeElement.matches('.card') && document.activeElement.ariaLabel === 'gpu 2 of node-0000'"
    )
    assert chromium.ask("$$('.card').length") == 8
    chromium.press("\ue00c")  # Escape
    focused(chromium, 2, 0)
    assert chromium.ask("$$('.card').length") == 0


def test_a_click_leads_to_the_node_and_the_address_names_it(chromium: Browser, tmp_path: Path) -> None:
    url = written(tmp_path, many(60))
    chromium.open(url)
    chromium.until("$$('.tile').length === 60")
    chromium.ask("$$('.tile')[33].querySelector('.name').click()")
    chromium.until("$$('.nodename').map((one) => one.textContent.trim()).join() === 'node-0033'")
    assert chromium.ask("[location.hash, document.title]") == ["#/node-0033", "node-0033 · Device map · koordgate"]
    chromium.ask("$('nav a').click()")
    chromium.until("!$('.nodename') && $$('.tile').length === 60")
    chromium.open("about:blank")
    chromium.open(f"{url}#/node-0059")
    chromium.until("$$('.nodename').map((one) => one.textContent.trim()).join() === 'node-0059'")
    chromium.ask("$('#search').focus()")
    chromium.press("pod-12")  # what is found is not on this node
    chromium.until("!$('.nodename') && $$('.tile').map((one) => one.dataset.node).join() === 'node-0012'")
    for address, told in (("#/gone", "This node is not there"), ("#/%", "")):
        chromium.ask("(location.hash = arguments[0])", address)
        chromium.until("$('main').textContent.includes(arguments[0])", told)


class Elsewhere:
    """An event loop in a thread of its own: the browser and the server work at the same time as the test."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def end(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@asynccontextmanager
async def replica(clients: int) -> AsyncIterator[tuple[World, str]]:
    """A replica's map behind the review of tokens, with one node; so many may follow it."""

    async def nobody() -> dict[str, Any]:
        return {"pods": [], "total": 0}

    async with FakeKube() as fake, KubeClient(fake.url) as kube:
        world = World(fake, kube)
        world.add_node()
        world.see()
        fake.users["good"] = {"username": "alice"}
        fake.may.add(("alice", "/koordgate/map"))
        feed = MapFeed(world.parts.cluster, world.parts.types, nobody, world.clock)
        runner = web.AppRunner(MapServer(feed, TokenGuard(kube), clients).app(), shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield world, f"http://127.0.0.1:{runner.addresses[0][1]}/"
        finally:
            await runner.cleanup()
            await world.idle()


@pytest.fixture(params=[4])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[Elsewhere, World, str]]:
    elsewhere = Elsewhere()
    stack = AsyncExitStack()
    try:
        world, url = elsewhere.do(stack.enter_async_context(replica(request.param)))
        yield elsewhere, world, url
        elsewhere.do(stack.aclose())
    finally:
        elsewhere.end()


def test_a_reader_signs_in_follows_changes_and_signs_out(
    chromium: Browser, served: tuple[Elsewhere, World, str]
) -> None:
    elsewhere, world, url = served
    chromium.open(url)
    chromium.until("$('#token') && document.activeElement === $('#token')")
    assert chromium.violations() == []
    chromium.press("wrong\ue007")
    chromium.until("$('[role=alert]').textContent.includes('does not know this token')")
    chromium.until("document.activeElement === $('#token')")
    chromium.press("good\ue007")
    chromium.until("$('.state.live') && $$('.card').length === 1")
    assert chromium.ask("document.cookie") == ""
    assert chromium.ask("localStorage.length") == 0

    async def bind() -> None:
        world.add_pod(gpu_pod("new", 40))
        world.see()
        await world.bind("new")

    elsewhere.do(bind())
    chromium.until("$('.holder')?.textContent.includes('new')")
    assert chromium.ask("$('[role=meter]').ariaValueNow") == "40"
    chromium.ask("$$('button').find((one) => one.textContent === 'Sign out').click()")
    chromium.until("$('#token')")
    assert chromium.ask("sessionStorage.length") == 0
    assert chromium.ask("$$('.card').length") == 0


def test_a_change_draws_only_the_nodes_that_changed(chromium: Browser, served: tuple[Elsewhere, World, str]) -> None:
    elsewhere, world, url = served

    async def add() -> None:
        for number in range(2, 20):
            world.add_node(f"n{number}")
        world.see()

    elsewhere.do(add())
    chromium.open(url)
    chromium.until("document.activeElement === $('#token')")
    chromium.press("good\ue007")
    chromium.until("$('.state.live') && $$('.tile').length === 19")
    chromium.ask(
        "(window.drawn = new Set(), new MutationObserver((all) => all.forEach(({target}) =>"
        " drawn.add(target.closest?.('.tile')?.dataset.node ?? 'more'))).observe($('.overview'),"
        " {subtree: true, childList: true, attributes: true}), 1)"
    )

    async def bind() -> None:
        world.add_pod(gpu_pod("new", 40))
        world.see()
        await world.bind("new")

    elsewhere.do(bind())
    chromium.until("$('.tile[data-node=n1] .cell').ariaLabel.includes('core 40 %')")
    assert chromium.ask("[...drawn]") == ["n1"]


@pytest.mark.parametrize("served", [0], indirect=True)
def test_a_reader_beyond_those_who_may_follow_asks_in_turns(
    chromium: Browser, served: tuple[Elsewhere, World, str]
) -> None:
    _, _, url = served
    chromium.open(url)
    chromium.until("document.activeElement === $('#token')")
    chromium.press("good\ue007")
    chromium.until("$('.state.polling') && $$('.card').length === 1")
