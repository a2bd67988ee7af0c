"""Limits of memory above what is asked: how they are stated, what is wrong with them, and what a card makes of them."""

from typing import Any

import pytest
from builders import GIB, MIB, app, ask, container, gpu, node, pod, request
from hypothesis import given
from hypothesis import strategies as st

from allocator.memorylimits import memory_limits
from allocator.place import Placement, place
from allocator.quantity import QuantityError
from allocator.request.original import read_asks
from allocator.request.pod import asks_by_metadata
from allocator.vocabulary.asks import PodRequest
from allocator.vocabulary.delivery import AskedLimit, LimitProvider
from allocator.vocabulary.names import DEVICE_ALLOCATED
from allocator.wire.podannotations import read_limit, write_limit
from webhook import patch
from webhook.admission.limits import LimitPolicy
from webhook.admission.translate import TranslationPolicy, translate
from webhook.settings import parse, types_of

KAI = types_of(parse("dialects: {kai: {enabled: true}}"))
PREFIX = "gpu-memory-limit.koordgate.io/"
K = "kubernetes.io/gpu"
BYTES = container("a", limits={f"{K}-memory": "8Gi"})
TWO = container("a", limits={f"{K}-memory": "8Gi", f"{K}.shared": "2"})
HALF = container("a", limits={K: "50"})
CARD = container("a", limits={"nvidia.com/gpu": "1"})
PLAIN = container("p")
NIC = container("a", limits={"kubernetes.io/rdma": "50"})


def limited(*containers: Any, **limits: str) -> dict[str, Any]:
    return pod(*containers, annotations={f"{PREFIX}{name}": text for name, text in limits.items()})


READ = {
    "above bytes": (limited(BYTES, a="12Gi"), {"a": 12 * GIB}, {}),
    "above bytes of each of two cards": (limited(TWO, a="6Gi"), {"a": 6 * GIB}, {}),
    "one byte more": (limited(BYTES, a=str(8 * GIB + 1)), {"a": 8 * GIB + 1}, {}),
    "as much as asked": (limited(BYTES, a="8192Mi"), {}, {}),
    "as much of each of two": (limited(TWO, a="4Gi"), {}, {}),
    "a part, beside bytes": (limited(BYTES, a="80%"), {}, {"a": 80_000}),
    "a very small part, beside bytes": (limited(BYTES, a="0.001%"), {}, {"a": 1}),
    "above a part": (limited(HALF, a="50.001%"), {}, {"a": 50_001}),
    "the part that is asked": (limited(HALF, a="50.0%"), {}, {}),
    "bytes, beside a part": (limited(HALF, a="1Mi"), {"a": MIB}, {}),
    "a whole card": (limited(CARD, a="100%"), {}, {}),
    "of one of two containers": (
        limited(BYTES, container("b", limits={f"{K}-memory": "1Gi"}), b="2Gi"),
        {"b": 2 * GIB},
        {},
    ),
    "of an init container": (
        pod(PLAIN, init=[container("i", limits={K: "50"})], annotations={f"{PREFIX}i": "60%"}),
        {},
        {"i": 60_000},
    ),
}


@pytest.mark.parametrize(("obj", "sizes", "portions"), READ.values(), ids=READ)
def test_a_limit_above_what_is_asked_is_read(
    obj: dict[str, Any], sizes: dict[str, int], portions: dict[str, int]
) -> None:
    reading = read_asks(obj)
    assert reading.problems == ()
    assert (dict(reading.request.memory_limits), dict(reading.request.memory_portions)) == (sizes, portions)
    assert asks_by_metadata(obj)


WRONG = {
    "less than the bytes": (
        limited(BYTES, a="8191Mi"),
        ["a: 8191Mi is less than the container asks for", "8Gi at least"],
    ),
    "less than the part": (
        limited(HALF, a="49.999%"),
        ["a: 49.999% is less than the container asks for", "50% at least"],
    ),
    "less than a card": (limited(CARD, a="99%"), ["write 100% at least"]),
    "no such container": (limited(BYTES, x="9Gi"), ["x: names no container of the Pod; write the name of one"]),
    "no container": (limited(BYTES, **{"": "9Gi"}), [": names no container of the Pod"]),
    "a container without a GPU": (limited(BYTES, PLAIN, p="9Gi"), ["p: asks for no GPU"]),
    "a container with another device": (limited(NIC, a="9Gi"), ["a: asks for no GPU"]),
    "no amount": (limited(BYTES, a="much"), ["a: 'much' is not a Kubernetes quantity"]),
    "nothing": (limited(BYTES, a="0"), ["a: 0 is not from 1Mi to 1Pi; write bytes"]),
    "less than a MiB": (limited(BYTES, a="1048575"), ["1048575 is not from 1Mi"]),
    "more than any card has": (limited(BYTES, a="2Pi"), ["2Pi is not from 1Mi to 1Pi"]),
    "part of a byte": (limited(BYTES, a="10.3"), ["not a whole number"]),
    "no percentage": (limited(BYTES, a="0%"), ["'0%' is no percentage above 0 and at most 100"]),
    "more than all": (limited(BYTES, a="100.001%"), ["no percentage"]),
    "four digits": (limited(BYTES, a="50.0001%"), ["at most 3 digits behind the point"]),
}


@pytest.mark.parametrize(("obj", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_limit_is_refused_with_what_to_write(obj: dict[str, Any], told: list[str]) -> None:
    problems = [str(one) for one in read_asks(obj).problems]
    assert len(problems) == 1
    assert problems[0].startswith(f"metadata.annotations[{PREFIX}")
    assert all(one in problems[0].replace("]", "", 1) for one in told), problems


def test_of_many_wrong_limits_sixteen_are_told() -> None:
    assert len(read_asks(limited(BYTES, **{f"x{number}": "9Gi" for number in range(40)})).problems) == 16


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"a": "12Gi", "b": "12Gi"}, ""),
        ({"a": "12Gi"}, "container b shares what the container holds"),
        ({"a": "12Gi", "b": "13Gi"}, "container b shares what the container holds"),
        ({"b": "12Gi"}, "container a shares what the container holds"),
    ],
)
def test_containers_that_share_a_holding_have_the_same_limit(limits: dict[str, str], told: str) -> None:
    apps = [container(name, limits={f"{K}-memory": "2Gi"}) for name in "ab"]
    annotations = {f"{PREFIX}{name}": text for name, text in limits.items()}
    obj = pod(*apps, annotations={**annotations, "koordgate.io/device-sharing": '{"gpu": {}}'})
    reading = read_asks(obj)
    assert [one.message[: len(told)] for one in reading.problems] == ([told] if told else [])
    if not told:
        assert dict(reading.request.memory_limits) == {"a": 12 * GIB, "b": 12 * GIB}


@given(st.one_of(st.integers(MIB, 2**50).map(AskedLimit), st.integers(1, 100_000).map(lambda n: AskedLimit(0, n))))
def test_a_limit_is_written_as_it_is_read(limit: AskedLimit) -> None:
    assert read_limit(write_limit(limit)) == limit


like_limits = st.from_regex(r"[0-9.]{1,9}(%|[KMG]i)?", fullmatch=True)


@given(st.one_of(st.text(max_size=30), st.integers(), st.none(), like_limits))
def test_any_text_is_a_limit_or_no_quantity(text: object) -> None:
    try:
        found = read_limit(text)
    except QuantityError:
        return
    assert (MIB <= found.size <= 2**50) is (found.portion == 0)
    assert 0 <= found.portion <= 100_000


def test_limits_change_nothing_about_where_a_pod_goes() -> None:
    plain = request(app("a", ask(memory=8 * GIB)))
    other = PodRequest(plain.containers, memory_limits=(("a", 80 * GIB),), memory_portions=(("b", 1),))
    assert hash(other) == hash(plain)
    assert place(other, node(gpu(0))) == place(plain, node(gpu(0)))


KEPT = {
    "a part": (ask(memory=8 * GIB), {}, {"a": 75_000}, (8192, 61440)),
    "a part of the smallest card": (ask(2, memory=8 * GIB), {}, {"a": 75_000}, (8192, 30720)),
    "a part, rounded down": (ask(memory=8 * GIB), {}, {"a": 33_333}, (8192, 27306)),
    "less than is held": (ask(memory=MIB), {}, {"a": 1}, (1, 1)),
    "all": (ask(core=50, ratio=50), {}, {"a": 100_000}, (40960, 81920)),
    "bytes beside a part": (ask(core=50, ratio=50), {"a": 50 * GIB}, {}, (40960, 51200)),
    "another container's": (ask(memory=8 * GIB), {"b": 12 * GIB}, {"c": 90_000}, (8192, 8192)),
}


@pytest.mark.parametrize(("asked", "sizes", "portions", "limit"), KEPT.values(), ids=KEPT)
def test_a_limit_is_between_what_is_held_of_the_card_and_what_it_has(
    asked: Any, sizes: dict[str, int], portions: dict[str, int], limit: tuple[int, int]
) -> None:
    of = PodRequest((app("a", asked),), memory_limits=tuple(sizes.items()), memory_portions=tuple(portions.items()))
    cards = [gpu(0), gpu(1, memory=40 * GIB)] if asked.count > 1 else [gpu(0)]
    placed = place(of, node(*cards))
    assert isinstance(placed, Placement)
    found = memory_limits(of, placed.shares, cards)
    assert {name: (one.held, one.most) for name, (_, one) in found.items()} == {"a": limit}


@pytest.mark.parametrize(
    ("provider", "namespaces", "cure"),
    [
        (LimitProvider.NONE, (), "an administrator sets limits.provider"),
        (LimitProvider.NVIDIA_TOOLKIT, (), "write koordgate.io/limits: require"),
        (LimitProvider.NVIDIA_TOOLKIT, ("team",), ""),
    ],
)
def test_an_author_is_warned_where_nothing_keeps_limits(
    provider: LimitProvider, namespaces: tuple[str, ...], cure: str
) -> None:
    policy = TranslationPolicy("kubernetes.io", limits=LimitPolicy(provider, frozenset(namespaces)))
    made = translate(limited(BYTES, a="12Gi"), policy, None, namespace="team")
    told = "nothing keeps this Pod to its limits of GPU memory (a 12Gi), so that a program may use all of a card; "
    assert (made.problems, made.warnings) == ((), (f"{told}{cure}",) if cure else ())
    assert not any("/gpu-memory-limit" in str(one) for one in made.operations)


def test_what_a_bind_tells_other_products_in_kais_names_asks_for_nothing() -> None:
    told = {
        f"nvidia.com/container.a.{end}": text for end, text in (("gpus.devices", "GPU-0"), ("gpu-memory.limit", "8Gi"))
    }
    half = container("a", limits={"kubernetes.io/gpu": "50"})
    limit = {"gpu-memory-limit.koordgate.io/a": "80%"}
    bound = pod(half, annotations={**told, **limit, DEVICE_ALLOCATED: "{}"})
    reading = read_asks(bound, KAI)
    assert reading.problems == ()
    assert reading.request == read_asks(pod(half, annotations=limit), KAI).request
    assert read_asks(pod(half, annotations=told), KAI).problems != ()


def test_a_limit_in_kais_names_is_stored_in_koordgates_and_only_that_counts_later() -> None:
    annotations = {"nvidia.com/container.a.gpu-memory.request": "4Gi", "nvidia.com/container.a.gpu-memory.limit": "8Gi"}
    policy = TranslationPolicy("kubernetes.io", KAI)
    obj = pod(container("a"), annotations=annotations)
    done = patch.apply(obj, translate(obj, policy, None).operations)
    assert done["metadata"]["annotations"]["gpu-memory-limit.koordgate.io/a"] == "8Gi"
    done["metadata"]["annotations"] |= dict.fromkeys(annotations, "1Gi")
    assert read_asks(done, policy.types).request.memory_limits == (("a", 8 * GIB),)
    both = pod(container("a"), annotations={**annotations, "gpu-memory-limit.koordgate.io/a": "9Gi"})
    (problem,) = translate(both, policy, None).problems
    assert str(problem) == (
        "metadata.annotations[gpu-memory-limit.koordgate.io/a]: the Pod's other annotations state 8Gi; keep one"
    )
    same = pod(container("a"), annotations={**annotations, "gpu-memory-limit.koordgate.io/a": "8192Mi"})
    made = patch.apply(same, translate(same, policy, None).operations)
    assert made["metadata"]["annotations"]["gpu-memory-limit.koordgate.io/a"] == "8192Mi"
