"""The metrics of single devices: what they have, what is given, to whom, and what is really used."""

from collections.abc import Mapping
from dataclasses import replace

from round_driver import CARDS, Driven, cluster_node, host, node_pod, reading, uid

from allocator.vocabulary.holdings import Share
from reporter.gpu.facts import CardLoad, CgroupMemory, Outage
from reporter.gpu.health import NOTHING_KNOWN, HealthPolicy
from reporter.metrics import ReporterMetrics
from reporter.pods import NodePod
from reporter.proof.agree import CardUse
from reporter.round.messages import (
    CardsRead,
    CpusWritten,
    HealthSaved,
    HostRead,
    Listed,
    Moment,
    ObjectStands,
    PodsChanged,
    Proved,
    Restored,
    ShowRound,
    WatchedKind,
)
from reporter.round.state import CardsState

NOW = Moment(1000.0, 0.0)
HALF: Mapping[str, int] = {"gpu-core": 50, "gpu-memory-ratio": 50, "gpu-memory": 2**29}


def share(card: int, amounts: Mapping[str, int] = HALF) -> Share:
    return Share("gpu", CARDS[card], card, amounts)


def samples(metrics: ReporterMetrics, name: str) -> dict[str, float]:
    """A metric's samples by their labels, as in the text."""
    start = f"koordgate_reporter_{name}{{"
    lines = metrics.exposition().decode().splitlines()
    return {
        line[len(start) :].rpartition("} ")[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(start)
    }


def shown(
    *pods: NodePod,
    loads: Mapping[str, CardLoad] | None = None,
    uses: tuple[CardUse, ...] = (),
    memory: Mapping[tuple[str, str], CgroupMemory] | None = None,
) -> ShowRound:
    """What a round shows of a node with three cards of 1 GiB and two NICs, whose Pods these are."""
    driven = Driven.of()
    events = (ObjectStands(WatchedKind.NODE, cluster_node()), PodsChanged(pods), *map(Listed, WatchedKind))
    driven.feed(*events, Restored(NOTHING_KNOWN))
    driven.feed(CardsRead(replace(reading(), loads=loads or {})), HealthSaved(), HostRead(host()), CpusWritten())
    running = frozenset(container for _, container in memory or {})
    driven.feed(Proved({}, uses, {}, running, memory or {}))
    driven.pass_time(1.0)
    driven.feed(HostRead(host()), CpusWritten())
    return driven.asked(ShowRound)[-1]


def test_each_device_is_shown_with_what_it_has_and_what_is_given_of_it() -> None:
    metrics = ReporterMetrics()
    third = {"gpu-core": 30}
    finished = node_pod(3, shares=(share(1),), finished=True)
    metrics.show_round(shown(node_pod(1, shares=(share(0),)), node_pod(2, shares=(share(0, third),)), finished))

    assert samples(metrics, "device_info") == {
        **{f'id="GPU-{n}",minor="{n}",model="",numa_node="",pci="",type="gpu"': 1.0 for n in range(3)},
        'id="0000:3b:00.0",minor="0",model="",numa_node="",pci="",type="rdma"': 1.0,
        'id="0000:3c:00.0",minor="1",model="",numa_node="",pci="",type="rdma"': 1.0,
    }
    given = samples(metrics, "device_allocated")
    assert {key: value for key, value in given.items() if value} == {
        'id="GPU-0",resource="gpu-core",type="gpu",unit="percent"': 80,
        'id="GPU-0",resource="gpu-memory-ratio",type="gpu",unit="percent"': 50,
        'id="GPU-0",resource="gpu-memory",type="gpu",unit="bytes"': 2**29,
    }
    assert samples(metrics, "device_capacity").keys() == given.keys()
    assert samples(metrics, "device_capacity")['id="GPU-1",resource="gpu-memory",type="gpu",unit="bytes"'] == 2**30
    holders = samples(metrics, "device_pods")
    assert {key: value for key, value in holders.items() if value} == {'id="GPU-0",type="gpu"': 2}
    assert len(holders) == 5


def test_a_card_on_which_a_pod_of_others_runs_is_not_usable() -> None:
    metrics = ReporterMetrics()
    metrics.show_round(shown(node_pod(1), uses=(CardUse(CARDS[1], uid(1), 7, None),)))
    usable = samples(metrics, "device_usable")
    assert [usable[f'id="GPU-{n}",type="gpu"'] for n in range(3)] == [1, 0, 1]


def test_the_load_of_cards_is_shown_as_far_as_they_tell_it_and_goes_with_them() -> None:
    metrics = ReporterMetrics()
    metrics.show_round(shown(loads={CARDS[0]: CardLoad(2**20, 37), CARDS[1]: CardLoad(None, 0), CARDS[2]: CardLoad()}))
    assert samples(metrics, "device_busy_ratio") == {'id="GPU-0",type="gpu"': 0.37, 'id="GPU-1",type="gpu"': 0}
    assert samples(metrics, "device_memory_used_bytes") == {'id="GPU-0",type="gpu"': 2**20}
    metrics.show_round(shown())
    assert samples(metrics, "device_busy_ratio") == samples(metrics, "device_memory_used_bytes") == {}


def test_while_nvml_is_out_of_reach_no_load_is_shown() -> None:
    cards = CardsState().read(replace(reading(), loads={CARDS[0]: CardLoad(1, 1)}), (), NOW, HealthPolicy())
    assert cards.loads == {CARDS[0]: CardLoad(1, 1)}
    assert cards.away(Outage("NvmlHangs", "it hangs", 1.0)).loads == {}


GIB = 2**30


def kept(
    number: int, limit: int | None, used: int, hard: int | None
) -> tuple[NodePod, dict[tuple[str, str], CgroupMemory]]:
    """A Pod with half of card 0, the limit that was decided for it, and what the driver says of it."""
    limits = {} if limit is None else {"main": limit}
    pod = node_pod(number, shares=(share(0)._replace(containers=("main",)),), limits=limits)
    return pod, {(CARDS[0], f"{number:064x}"): CgroupMemory(hard, used)}


def limited() -> tuple[tuple[NodePod, ...], dict[tuple[str, str], CgroupMemory]]:
    pairs = [kept(1, GIB, 1, GIB), kept(2, GIB, 2, None), kept(3, None, GIB, None), kept(4, GIB, 4, GIB)]
    return tuple(pod for pod, _ in pairs), {key: value for _, one in pairs for key, value in one.items()}


def test_containers_are_counted_by_whether_they_are_kept_to_their_memory_and_cards_have_the_sum_of_limits() -> None:
    metrics = ReporterMetrics()
    pods, memory = limited()
    metrics.show_round(shown(*pods, memory=memory))
    kept = {'state="enforced"': 2, 'state="injected"': 0, 'state="missing"': 1, 'state="accounting"': 1}
    assert samples(metrics, "memory_limits") == kept
    assert "koordgate_reporter_memory_exceeded 1.0" in metrics.exposition().decode().splitlines()
    assert samples(metrics, "device_memory_limit_bytes") == {'id="GPU-0",type="gpu"': 2 * GIB}
    assert samples(metrics, "container_memory_used_bytes") == {}, "no Pod is named"
    metrics.show_round(shown())
    assert set(samples(metrics, "memory_limits").values()) == {0}
    assert samples(metrics, "device_memory_limit_bytes") == {}


def test_where_pods_are_named_each_containers_use_limit_and_share_are_shown() -> None:
    metrics = ReporterMetrics(pods=True)
    pods, memory = limited()
    metrics.show_round(shown(*pods[:3], memory=memory))

    def of(number: int) -> str:
        return f'container="main",id="GPU-0",namespace="ns",pod="pod-{number}",type="gpu"'

    assert samples(metrics, "container_memory_used_bytes") == {of(1): 1, of(2): 2, of(3): GIB}
    assert samples(metrics, "container_memory_limit_bytes") == {of(1): GIB}
    assert samples(metrics, "container_memory_held_bytes") == dict.fromkeys([of(1), of(2), of(3)], 2**29)
    metrics.show_round(shown())
    assert samples(metrics, "container_memory_used_bytes") == samples(metrics, "container_memory_held_bytes") == {}


POD = (node_pod(1, shares=(share(0),)), node_pod(2))
USES = (
    CardUse(CARDS[0], uid(1), 7, 300),
    CardUse(CARDS[0], uid(1), 8, 20),
    CardUse(CARDS[0], uid(1), 9, None),
    CardUse(CARDS[1], uid(2), 10, 5),
    CardUse(CARDS[1], None, 11, 7),
    CardUse(CARDS[2], uid(9), 12, 11),
)


def test_pods_are_named_only_where_the_settings_say_so() -> None:
    silent, metrics = ReporterMetrics(), ReporterMetrics(pods=True)
    for one in (silent, metrics):
        one.show_round(shown(*POD, uses=USES))
    assert b"pod-1" not in silent.exposition()
    held = 'id="GPU-0",namespace="ns",pod="pod-1",'
    assert samples(metrics, "pod_allocated") == {
        f'{held}resource="gpu-core",type="gpu",unit="percent"': 50,
        f'{held}resource="gpu-memory-ratio",type="gpu",unit="percent"': 50,
        f'{held}resource="gpu-memory",type="gpu",unit="bytes"': 2**29,
    }
    assert samples(metrics, "pod_memory_used_bytes") == {
        f'{held}type="gpu"': 320,
        'id="GPU-1",namespace="ns",pod="pod-2",type="gpu"': 5,
    }
    metrics.show_round(shown())
    assert samples(metrics, "pod_allocated") == samples(metrics, "pod_memory_used_bytes") == {}


def test_the_number_of_pods_that_are_named_has_a_bound() -> None:
    metrics = ReporterMetrics(pods=True)
    metrics.show_round(shown(*(node_pod(n, shares=(share(0), share(1))) for n in range(200))))
    assert len(samples(metrics, "pod_allocated")) == 1000
