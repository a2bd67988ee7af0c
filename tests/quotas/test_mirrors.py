"""What the mirror of a quota is, and what namespaces limit: pure rules, and the tables that watches fill."""

from typing import Any

import pytest
from npus import TYPES as NPU_TYPES

from allocator.quantity import LARGEST
from allocator.vocabulary.devicetype import BUILT_IN, DeviceTypes
from allocator.vocabulary.dialects import Dialect, Term
from webhook.quotas.limits import NO_LIMITS, NamespaceLimits, Range, in_units, may_be_added, read_ranges, tightest
from webhook.quotas.mirror import (
    MIRROR_LABEL,
    Quota,
    is_right,
    may_replace,
    mirror_body,
    mirror_name,
    mirrored,
    read_quota,
    written_names,
)
from webhook.quotas.table import LimitTable, QuotaFeed, RangeFeed

WRITTEN = written_names(NPU_TYPES, "kubernetes.io")
MEBIBYTES = Dialect("example.com", "gpu", (Term("example.com/gpumem", "gpu-memory", factor=2**20),), own=False)
Raw = dict[str, Any]


def quota(hard: Raw, used: Raw | None = None, name: str = "q", **fields: Any) -> Raw:
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "resourceVersion": "7", **fields}
    return {"metadata": metadata, "spec": {"hard": hard}, "status": {"used": used or {}}}


def read(obj: Raw, types: DeviceTypes = NPU_TYPES) -> Quota:
    found = read_quota(obj, types)
    assert found is not None
    return found


def limits(hard: Raw, used: Raw | None = None, domain: str = "kubernetes.io") -> Raw:
    made = mirrored(read(quota(hard, used)), NPU_TYPES, written_names(NPU_TYPES, domain))
    return {name.removeprefix("quota.koordgate.io/"): amount for name, amount in made.items()}


CASES: dict[str, tuple[Raw, Raw]] = {
    "cards": ({"requests.nvidia.com/gpu": "8"}, {"gpu": 800}),
    "percent of cards": ({"requests.koordinator.sh/gpu": "400"}, {"gpu": 400}),
    "names that no quota ever counts": ({"requests.kubernetes.io/gpu-core": "150"}, {"gpu-core": 150}),
    "parts of cards": (
        {"requests.koordinator.sh/gpu-core": "4k", "requests.koordinator.sh/gpu-memory-ratio": "50"},
        {"gpu-core": 4000, "gpu-memory-ratio": 50},
    ),
    "bytes": ({"requests.koordinator.sh/gpu-memory": "2Ki"}, {"gpu-memory": 2048}),
    "other types": (
        {"requests.kubernetes.io/rdma": "50", "requests.koordinator.sh/fpga": "1"},
        {"rdma": 50, "fpga": 1},
    ),
    "a type of several amounts": (
        {"requests.huawei.com/npu": "2", "requests.huawei.com/npu-core": "9"},
        {"npu": 200, "npu-core": 9},
    ),
    "none": ({"requests.nvidia.com/gpu": "0"}, {"gpu": 0}),
    "the least of several": ({"requests.nvidia.com/gpu": "2", "requests.koordinator.sh/gpu": "150"}, {"gpu": 150}),
    "the least of several, the other way round": (
        {"requests.nvidia.com/gpu": "1", "requests.koordinator.sh/gpu": "150"},
        {"gpu": 100},
    ),
    "a part of a card, rounded down": ({"requests.nvidia.com/gpu": "1505m"}, {"gpu": 150}),
    "more than any quantity": ({"requests.nvidia.com/gpu": str(LARGEST)}, {"gpu": LARGEST}),
    "a split": ({"requests.koordinator.sh/gpu.shared": "2", "requests.nvidia.com/gpu": "1"}, {"gpu": 100}),
    "a template": ({"requests.huawei.com/npu-vir04": "2", "requests.nvidia.com/gpu": "1"}, {"gpu": 100}),
}


@pytest.mark.parametrize(("hard", "mirror"), CASES.values(), ids=CASES)
def test_a_mirror_limits_in_the_units_that_quotas_count(hard: Raw, mirror: Raw) -> None:
    assert limits(hard) == mirror


def test_names_of_a_further_dialect_are_mirrored_by_their_factor() -> None:
    types = BUILT_IN.with_dialects([MEBIBYTES])
    found = read(quota({"requests.example.com/gpumem": "3"}), types)
    assert mirrored(found, types, frozenset()) == {"quota.koordgate.io/gpu-memory": 3 * 2**20}


USED: dict[str, tuple[Raw, Raw, str, Raw]] = {
    "Pods from before": (
        {"requests.nvidia.com/gpu": "8"},
        {"requests.nvidia.com/gpu": "3"},
        "kubernetes.io",
        {"gpu": 500},
    ),
    "more than the limit": (
        {"requests.nvidia.com/gpu": "2"},
        {"requests.nvidia.com/gpu": "3"},
        "kubernetes.io",
        {"gpu": 0},
    ),
    "Koordinator's Pods from before": (
        {"requests.koordinator.sh/gpu-core": "400"},
        {"requests.koordinator.sh/gpu-core": "100"},
        "kubernetes.io",
        {"gpu-core": 300},
    ),
    "names that translated Pods state": (
        {"requests.koordinator.sh/gpu-core": "400", "requests.koordinator.sh/gpu": "400"},
        {"requests.koordinator.sh/gpu-core": "100", "requests.koordinator.sh/gpu": "100"},
        "koordinator.sh",
        {"gpu-core": 400, "gpu": 300},
    ),
    "names of an own type": (
        {"requests.huawei.com/npu": "4"},
        {"requests.huawei.com/npu": "1"},
        "kubernetes.io",
        {"npu": 400},
    ),
}


@pytest.mark.parametrize(("hard", "used", "domain", "left"), USED.values(), ids=USED)
def test_what_pods_from_before_use_is_taken_off(hard: Raw, used: Raw, domain: str, left: Raw) -> None:
    assert limits(hard, used, domain) == left


@pytest.mark.parametrize(
    "hard",
    [{}, {"pods": "5"}, {"requests.cpu": "5"}, {"requests.example.com/gpu": "1"}, {"limits.nvidia.com/gpu": "1"}],
)
def test_a_quota_without_devices_is_not_kept(hard: Raw) -> None:
    assert read_quota(quota(hard), NPU_TYPES) is None


def test_a_quota_in_the_resources_that_quotas_count_needs_no_mirror() -> None:
    assert limits({"requests.quota.koordgate.io/gpu": "100"}) == {}


@pytest.mark.parametrize(
    ("name", "mirror"),
    [
        ("team", "team.koordgate"),
        ("a" * 243, "a" * 243 + ".koordgate"),
        ("a" * 244, "a" * 234 + "-ad5e672a.koordgate"),
        ("a" * 253, "a" * 234 + "-32859a3a.koordgate"),
        ("a" * 233 + "." + "b" * 19, "a" * 233 + "-3507cdbd.koordgate"),
    ],
)
def test_a_mirror_has_the_quotas_name_within_kubernetes_bound(name: str, mirror: str) -> None:
    assert len(mirror) <= 253
    assert mirror_name(name) == mirror


@pytest.mark.parametrize(
    ("quantity", "factor", "units"),
    [
        ("2", 100, 200),
        ("1500m", 1, 1),
        ("1500m", 100, 150),
        ("1m", 100, 0),
        ("0", 100, 0),
        ("-1", 100, 0),
        ("-1m", 1, 0),
        ("8E", 1, 8 * 10**18),
        ("9E", 100, 2**63 - 1),
        (3, 2, 6),
    ],
)
def test_an_amount_is_converted_to_whole_units_that_an_object_can_hold(
    quantity: object, factor: int, units: int
) -> None:
    assert in_units(quantity, factor) == units


def test_long_names_with_the_same_beginning_have_different_mirrors() -> None:
    one, other = "a" * 250 + "b", "a" * 250 + "c"
    assert mirror_name(one) != mirror_name(other)
    assert ".-" not in mirror_name("a" * 233 + "." + "b" * 19)


OWNED = [{"kind": "ResourceQuota", "name": "q", "uid": "uid-q"}]
SCOPES = {"scopes": ["NotTerminating"], "scopeSelector": {"matchExpressions": []}}


def test_a_mirror_is_owned_by_its_quota_and_has_its_scopes() -> None:
    obj = quota({"requests.nvidia.com/gpu": "20", "pods": "4"})
    obj["spec"]["scopes"] = ["NotTerminating"]
    found = read(obj)
    assert mirror_body(found, mirrored(found, NPU_TYPES, WRITTEN), None) == {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {
            "name": "q.koordgate",
            "namespace": "team",
            "labels": {MIRROR_LABEL: "true"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "ResourceQuota", "name": "q", "uid": "uid-q"}],
        },
        "spec": {"hard": {"requests.quota.koordgate.io/gpu": "2000"}, "scopes": ["NotTerminating"]},
    }


def mirror_of(found: Quota, amount: str = "2k", **fields: Any) -> Raw:
    body = mirror_body(found, {"quota.koordgate.io/gpu": 0}, None)
    body["spec"]["hard"]["requests.quota.koordgate.io/gpu"] = amount
    body["metadata"] |= {"uid": "uid-mirror", "resourceVersion": "9", **fields}
    return body


def test_a_mirror_is_right_if_it_limits_the_same_in_any_spelling_and_nothing_else() -> None:
    found = read(quota({"requests.nvidia.com/gpu": "20"}))
    wanted = mirrored(found, NPU_TYPES, WRITTEN)
    assert is_right(read(mirror_of(found)), found, wanted)
    assert is_right(read(mirror_of(found, "2000")), found, wanted)
    assert not is_right(read(mirror_of(found, "3k")), found, wanted)
    assert not is_right(read(mirror_of(found, "lots")), found, wanted)
    assert not is_right(read(mirror_of(found, labels={})), found, wanted)
    assert not is_right(read(mirror_of(found, ownerReferences=[])), found, wanted)
    for spec in ({"scopes": ["Terminating"]}, {"hard": {"requests.quota.koordgate.io/gpu": "2k", "pods": "1"}}):
        other = mirror_of(found)
        other["spec"] |= spec
        assert not is_right(read(other), found, wanted)


@pytest.mark.parametrize(
    ("hard", "about", "ours"),
    [
        ({"requests.quota.koordgate.io/gpu": "1"}, {}, False),
        ({"requests.quota.koordgate.io/gpu": "1"}, {"ownerReferences": OWNED}, True),
        ({"requests.quota.koordgate.io/gpu": "1", "pods": "1"}, {"ownerReferences": OWNED}, False),
        ({"requests.nvidia.com/gpu": "1"}, {"ownerReferences": OWNED}, False),
        ({"pods": "1"}, {"labels": {MIRROR_LABEL: "true"}}, True),
    ],
)
def test_nobody_elses_quota_is_replaced(hard: Raw, about: Raw, ours: bool) -> None:  # noqa: FBT001 a parameter
    assert may_replace(read(quota(hard, **about))) is ours


# --- LimitRanges


def test_the_limits_of_containers_and_pods_that_name_devices_are_read() -> None:
    found, zeros, _ = read_ranges(
        [
            {"type": "PersistentVolumeClaim", "max": {"nvidia.com/gpu": "9"}},
            {"type": "Container", "max": {"cpu": "4", "nvidia.com/gpu": "2"}, "min": {"kubernetes.io/gpu-core": "10"}},
            {"type": "Pod", "max": {"huawei.com/npu": 3}},
        ],
        NPU_TYPES,
    )
    assert found == (
        Range("Container", "nvidia.com/gpu", "quota.koordgate.io/gpu", "2", 200, least=False),
        Range("Container", "kubernetes.io/gpu-core", "quota.koordgate.io/gpu-core", "10", 10, least=True),
        Range("Pod", "huawei.com/npu", "quota.koordgate.io/npu", "3", 300, least=False),
    )
    assert zeros == ("nvidia.com/gpu",)


@pytest.mark.parametrize("key", ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"])
@pytest.mark.parametrize("of", ["Container", "Pod"])
def test_a_name_of_a_device_plugin_in_any_limit_is_to_be_stated(key: str, of: str) -> None:
    _, zeros, _ = read_ranges([{"type": of, key: {"nvidia.com/gpu": "1", "koordinator.sh/gpu": "1"}}], NPU_TYPES)
    assert zeros == ("nvidia.com/gpu",)


def test_of_many_limits_for_one_name_the_tightest_is_kept() -> None:
    def limit(amount: str, key: str = "max", of: str = "Pod") -> Raw:
        return {"type": of, key: {"nvidia.com/gpu": amount}}

    listed = [limit("3"), limit("2"), limit("4"), limit("1", "min"), limit("2", "min"), limit("1", of="Container")]
    found = read_ranges([*listed, limit("1", "min")], NPU_TYPES).ranges
    assert [(one.of, one.quantity, one.least) for one in tightest(found)] == [
        ("Pod", "2", False),
        ("Pod", "2", True),
        ("Container", "1", False),
    ]


@pytest.mark.parametrize(
    ("limit", "added"),
    [
        ({"max": {"nvidia.com/gpu": "2", "cpu": "4"}}, {"nvidia.com/gpu", "cpu"}),
        ({"default": {"cpu": "500m", "memory": "1Gi"}}, {"cpu"}),
        ({"min": {"nvidia.com/gpu": "1"}}, {"nvidia.com/gpu"}),
        ({"default": {"kubernetes.io/gpu": "50"}}, {"kubernetes.io/gpu"}),
        ({"defaultRequest": {"koordinator.sh/gpu-core": "50"}}, {"koordinator.sh/gpu-core"}),
        ({"max": {"nvidia.com/gpu": "2"}, "default": {"nvidia.com/gpu": "0"}}, set()),
        ({"min": {"nvidia.com/gpu": "1"}, "max": {"nvidia.com/gpu": "0"}}, set()),
        ({"maxLimitRequestRatio": {"nvidia.com/gpu": "2"}}, set()),
        ({"type": "Pod", "max": {"nvidia.com/gpu": "2"}}, set()),
    ],
)
def test_what_a_limit_range_adds_to_containers_is_read(limit: Raw, added: set[str]) -> None:
    assert read_ranges([{"type": "Container", **limit}], NPU_TYPES).added == added


def test_a_refusal_names_the_limit_ranges_that_may_have_added_what_it_names() -> None:
    table = LimitTable(NPU_TYPES)
    ranges = RangeFeed(table, lambda _name, _problems: None)
    for name, most in (("b", {"nvidia.com/gpu": "2"}), ("a", {"nvidia.com/gpu": "1", "koordinator.sh/gpu": "1"})):
        spec = {"limits": [{"type": "Container", "max": most}]}
        ranges.put({"metadata": {"name": name, "namespace": "team"}, "spec": spec})

    def said(text: str) -> list[str]:
        return [str(one) for one in may_be_added(table.of("team"), text)]

    states = "to containers that do not state it"
    assert said("asks for nvidia.com/gpu, and") == [
        f"spec: LimitRanges a and b add nvidia.com/gpu {states}; write nvidia.com/gpu: 0 in limits to ask for none"
    ]
    assert said("limits[koordinator.sh/gpu]") == [
        f"spec: LimitRange a adds koordinator.sh/gpu {states}; ask in that name, or change it"
    ]
    assert said("nvidia.com/gpumem and koordinator.sh/gpu-core and koordinator.sh/gpu.shared") == []


def test_a_refusal_of_a_containers_cpu_names_the_limit_range_that_added_it() -> None:
    table = LimitTable(NPU_TYPES)
    spec = {"limits": [{"type": "Container", "defaultRequest": {"cpu": "500m"}}]}
    RangeFeed(table, lambda _name, _problems: None).put({"metadata": {"name": "r", "namespace": "team"}, "spec": spec})
    limits = table.of("team")
    assert [str(one) for one in may_be_added(limits, "resources.requests[cpu]: 500m is no whole number of CPUs")] == [
        "spec: LimitRange r adds cpu to containers that do not state it; state it in requests and limits, or change it"
    ]
    assert list(may_be_added(limits, "quota.koordgate.io/cpu, of gpu and CPUs")) == []


# --- tables


def test_a_namespace_limits_what_its_quotas_and_ranges_name_together() -> None:
    table = LimitTable(NPU_TYPES)
    quotas, ranges = QuotaFeed(table), RangeFeed(table, lambda _name, _problems: None)
    quotas.put(quota({"requests.nvidia.com/gpu": "1"}, name="a"))
    quotas.put(quota({"requests.quota.koordgate.io/rdma": "1", "pods": "1"}, name="b"))
    quotas.put(quota({"pods": "1"}, name="c"))
    one = {
        "metadata": {"name": "r", "namespace": "team"},
        "spec": {"limits": [{"type": "Pod", "max": {"nvidia.com/gpu": 2}}]},
    }
    ranges.put(one)

    assert table.of("other") == NO_LIMITS
    assert table.of("team") == NamespaceLimits(
        frozenset({"quota.koordgate.io/gpu", "quota.koordgate.io/rdma"}),
        (Range("Pod", "nvidia.com/gpu", "quota.koordgate.io/gpu", "2", 200, least=False),),
        ("nvidia.com/gpu",),
    )
    assert table.of("team").added == {}, "a Pod's limit adds nothing"
    ranges.put({**one, "metadata": {"name": "s", "namespace": "team"}})
    assert len(table.of("team").ranges) == 1
    ranges.drop({"metadata": {"name": "s", "namespace": "team"}})
    quotas.drop(quota({}, name="a"))
    ranges.put({**one, "spec": {"limits": [{"type": "Pod", "max": {"cpu": 2}}]}})
    assert table.of("team") == NamespaceLimits(frozenset({"quota.koordgate.io/rdma"}))
    quotas.put(quota({"pods": "1"}, name="b"))
    assert table.of("team") == NO_LIMITS


def test_a_limit_that_changed_is_the_limit_at_once() -> None:
    table = LimitTable(NPU_TYPES)
    quotas, ranges = QuotaFeed(table), RangeFeed(table, lambda _name, _problems: None)

    def put(most: int) -> None:
        limits = [{"type": "Pod", "max": {"nvidia.com/gpu": most}}]
        ranges.put({"metadata": {"name": "r", "namespace": "team"}, "spec": {"limits": limits}})

    for most in (2, 3):
        put(most)
        assert [one.amount for one in table.of("team").ranges] == [100 * most]
    for resource in ("gpu", "rdma"):
        quotas.put(quota({f"requests.quota.koordgate.io/{resource}": "1"}, name="a"))
        assert table.of("team").counted == {f"quota.koordgate.io/{resource}"}


def test_what_a_list_no_longer_names_limits_nothing() -> None:
    table = LimitTable(NPU_TYPES)
    heard: list[tuple[str, str]] = []
    table.changed = heard.append
    feed = QuotaFeed(table)
    feed.put(quota({"requests.nvidia.com/gpu": "1"}, name="a"))
    feed.put(quota({"requests.nvidia.com/gpu": "1"}, name="b"))
    feed.put(quota({"pods": "1"}, name="c"))
    feed.begin_list()
    feed.put(quota({"requests.nvidia.com/gpu": "1"}, name="b"))
    feed.end_list()
    assert table.quotas("team").keys() == {"b"}
    assert heard == [("team", "a"), ("team", "b"), ("team", "b"), ("team", "a")]


def test_a_limit_range_that_cannot_be_read_is_reported_and_limits_nothing() -> None:
    table = LimitTable(NPU_TYPES)
    told: list[tuple[str, tuple[str, ...]]] = []
    feed = RangeFeed(table, lambda name, problems: told.append((name, problems)))
    wrong = [{"type": "Pod", "max": {"nvidia.com/gpu": "many"}}]
    feed.put({"metadata": {"name": "r", "namespace": "team"}, "spec": {"limits": wrong}})
    assert table.of("team") == NO_LIMITS
    ((name, (problem,)),) = told
    assert name == "team/r"
    assert "'many' is not a Kubernetes quantity" in problem
