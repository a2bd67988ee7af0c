"""Running Pods of other products in `koordgate simulate`: they hold what their annotations state, if that counts."""

from pathlib import Path
from typing import Any

import foreignpods
import pytest
from simulator.clusters import gpus, machine, saved

from console.simulator.cluster import OfflineCluster, PodFate
from koordgate.cli import main
from webhook.settings import parse

Raw = dict[str, Any]
COUNTED = "adopt: {peers: [hami, kai]}\n"
FIRST, SECOND = "GPU-node-1-0", "GPU-node-1-1"


def hami(text: str, name: str = "theirs", cards: int = 1, **about: Any) -> Raw:
    return foreignpods.hami(text, name=name, node="node-1", limits={"nvidia.com/gpu": str(cards)}, **about)


async def loaded(*pods: Raw, settings: str = COUNTED) -> OfflineCluster:
    cluster = OfflineCluster.in_process(parse(settings))
    await cluster.load([*machine(), *pods])
    return cluster


def used(cluster: OfflineCluster) -> dict[str, dict[str, int]]:
    """Of each card, the percent of its memory that each Pod holds."""
    return {
        one.id: {pod.holder: share.amounts["gpu-memory-ratio"] for pod, share in one.counted}
        for one in cluster.account().report("node-1").devices
    }


async def test_a_pod_that_states_its_card_holds_this_and_no_assumed_card_beside_it() -> None:
    cluster = await loaded(hami(f"{SECOND},NVIDIA,20480,30:;"))
    assert used(cluster) == {FIRST: {}, SECOND: {"team/theirs": 25}}
    assert (await cluster.submit(gpus("whole", 100))).state is PodFate.BOUND
    assert (await cluster.submit(gpus("half", 50))).state is PodFate.BOUND
    assert used(cluster) == {FIRST: {"default/whole": 100}, SECOND: {"default/half": 50, "team/theirs": 25}}
    assert cluster.account().overgiven() == []


async def test_a_pod_beside_it_that_states_nothing_is_assumed_to_have_an_idle_card() -> None:
    plugin = foreignpods.running("plugin", node="node-1", limits={"nvidia.com/gpu": "1"})
    cluster = await loaded(hami(f"{FIRST},NVIDIA,20480,30:;"), plugin)
    assert used(cluster) == {FIRST: {"team/theirs": 25}, SECOND: {"team/plugin": 100}}


async def test_a_shared_card_is_counted_once_by_the_pod_that_reserves_it() -> None:
    reserving = foreignpods.reservation("group", FIRST, node="node-1", limits={"nvidia.com/gpu": "1"})
    cluster = await loaded(reserving, foreignpods.kai("group", node="node-1"))
    assert used(cluster) == {FIRST: {"kai-resource-reservation/reserve": 100}, SECOND: {}}


async def test_whole_cards_that_volcanos_containers_count_are_cards_of_their_own() -> None:
    cluster = await loaded(settings="dialects: {volcano-share: {enabled: true}}")
    pod = gpus("whole", 100)
    asked = {"volcano.sh/gpu-number": "1"}
    pod["spec"]["containers"] = [{"name": name, "image": "i", "resources": {"limits": asked}} for name in "ab"]
    assert (await cluster.submit(pod)).state is PodFate.BOUND
    assert used(cluster) == {FIRST: {"default/whole": 100}, SECOND: {"default/whole": 100}}


async def test_what_the_settings_do_not_count_is_assumed_and_told() -> None:
    one, two = hami(f"{SECOND},NVIDIA,20480,30:;"), hami(f"{SECOND},NVIDIA,20480,30:;", "second")
    cluster = await loaded(one, two, settings="")
    assert used(cluster) == {FIRST: {"team/theirs": 100}, SECOND: {"team/second": 100}}
    (told,) = cluster.notes
    assert told.startswith("2 running Pods state in hami.io/vgpu-devices-allocated what hami gave, ")
    assert told.endswith("and this does not count: add hami to adopt.peers")


async def test_a_pod_of_an_unknown_scheduler_holds_an_assumed_card_and_is_told() -> None:
    cluster = await loaded(hami(f"{SECOND},NVIDIA,20480,30:;", scheduler="mine"))
    assert used(cluster) == {FIRST: {"team/theirs": 100}, SECOND: {}}


async def test_a_card_that_another_product_gave_away_twice_is_told() -> None:
    whole = f"{FIRST},NVIDIA,81920,100:;"
    cluster = await loaded(hami(whole), hami(whole, "second"))
    (told,) = cluster.account().overgiven()
    assert "is held beyond what it has, by team/second (hami), team/theirs (hami)" in told


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{SECOND},NVIDIA,20480,30:;", ["gpu 1 GPU-node-1-1: core 30 %", "by hami.io/vgpu-devices-allocated"]),
        ("GPU-gone,NVIDIA,20480,30:;", ["gpu 0 ", "gpu 1 ", "which is none of the GPUs of node node-1"]),
        ("nonsense", ["gpu 0 ", "gpu 1 ", "'nonsense' is not UUID,TYPE,MiB,percent"]),
    ],
    ids=["known card", "unknown card", "unreadable"],
)
def test_the_table_says_what_such_a_pod_holds_and_what_says_so(
    text: str, shown: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(COUNTED)
    files = saved(tmp_path, [*machine(), hami(text)])
    assert main(["simulate", "-f", files, "--config", str(config)]) == 0
    printed = capsys.readouterr()
    assert all(one in printed.out for one in shown)
    assert "assumed" not in printed.out
    assert printed.err == ""


async def test_memory_that_volcano_vgpu_gave_counts_in_the_unit_of_its_installation() -> None:
    settings = "adopt: {peers: [volcano]}\ndialects: {volcano: {memoryUnit: 10Mi}}\n"
    theirs = foreignpods.vgpu(f"{FIRST},NVIDIA,2048,0:", name="theirs", node="node-1")
    assert used(await loaded(theirs, settings=settings)) == {FIRST: {"team/theirs": 25}, SECOND: {}}


@pytest.mark.parametrize("ended", [False, True])
async def test_what_hami_gave_init_containers_does_not_add_up_with_apps_and_ends_with_them(*, ended: bool) -> None:
    text = f"{FIRST},NVIDIA,61440,0:;{FIRST},NVIDIA,20480,0:;"
    theirs = foreignpods.with_containers(hami(text), [{}], [{}])
    cluster = await loaded(foreignpods.init_ended(theirs) if ended else theirs)
    assert used(cluster) == {FIRST: {"team/theirs": 25 if ended else 75}, SECOND: {}}


async def test_what_volcano_share_gave_init_containers_counts_as_long_as_the_pod_lives() -> None:
    asked = [{"volcano.sh/gpu-memory": amount} for amount in (61440, 20480)]
    pod = foreignpods.volcano("0", None, name="theirs", node="node-1")
    theirs = foreignpods.with_containers(pod, asked[:1], asked[1:])
    cluster = await loaded(foreignpods.init_ended(theirs), settings="adopt: {peers: [volcano]}\n")
    uncertain = {"team/theirs": 75}  # which card index 0 is: the Device object has no history of numbers
    assert used(cluster) == {FIRST: uncertain, SECOND: uncertain}


async def test_a_pod_of_gpushare_that_no_annotation_ties_to_a_card_holds_what_it_asks_for_of_each() -> None:
    theirs = foreignpods.running("theirs", node="node-1", limits={"aliyun.com/gpu-mem": "20"})
    cluster = await loaded(theirs, settings="adopt: {peers: [gpushare]}\n")
    assert used(cluster) == {FIRST: {"team/theirs": 25}, SECOND: {"team/theirs": 25}}


MISSING = "the reservation Pod of group one, which names its GPU of node node-1, was not read"
GIVE = "give that Pod too if this was read from files, and delete Pod team/shared if it is gone"


@pytest.mark.parametrize("beside", [[], [FIRST]])
def test_a_pod_in_doubt_is_shown_with_the_doubt_and_what_ends_it(
    beside: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sure = bool(beside)
    pods = [foreignpods.kai("one", name="shared", node="node-1")]
    pods += [foreignpods.reservation("one", uuid, node="node-1") for uuid in beside]
    assert main(["simulate", "-f", saved(tmp_path, [*machine(), *pods, gpus("mine", 100)])]) == 0
    out, _ = capsys.readouterr()
    assert (f"in doubt: {MISSING}. All GPUs of the node are held: {GIVE}" in out) is not sure
    assert out.count("team/shared: whole (in doubt)") == (0 if sure else 2)
    assert main(["simulate", "-f", saved(tmp_path, [*machine(), *pods]), "-o", "json"]) == 0
    assert (f"Pod team/shared: in doubt: {MISSING}" in capsys.readouterr().err) is not sure
