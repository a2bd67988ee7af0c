"""Which containers of a Pod run on its own CPUs: stated, implied, wrong; and nothing that an injector adds counts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest
from builders import GIB, container, pod, sidecar_container
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.quantity import to_milli
from allocator.request.cpuamounts import INJECTED, INJECTORS, on_shared_cpus
from allocator.request.cpus import QOS_LABEL, below_one, not_guaranteed, read_cpu_ask
from allocator.vocabulary.names import OWN_CPUS

Raw = dict[str, Any]
PATH: Final = f"metadata.annotations[{OWN_CPUS}]"
OR_SHARED: Final = f", or name only other containers in the annotation {OWN_CPUS}: this one then runs on shared CPUs"


def cpus(request: Any, limit: Any = None) -> Raw:
    return {"requests": {"cpu": request}, "limits": {"cpu": request if limit is None else limit}}


def lsr(*containers: Raw, stated: str | None = None, qos: str = "LSR", **fields: Any) -> Raw:
    return pod(
        *containers, labels={QOS_LABEL: qos}, annotations=None if stated is None else {OWN_CPUS: stated}, **fields
    )


MAIN = container("main", **cpus(4))
PROXY = container("istio-proxy", **cpus("100m", 2))
LOGGER = container("logger", **cpus("1500m"))

# A Pod, the containers that run on shared CPUs, and how many CPUs it has of its own.
DIVIDED: dict[str, tuple[Raw, set[str], int]] = {
    "one container": (lsr(MAIN), set(), 4),
    "Istio's": (lsr(MAIN, PROXY, init=[container("istio-init", **cpus("100m", 2))]), {"istio-proxy", "istio-init"}, 4),
    "Istio's, first and as a sidecar": (
        lsr(MAIN, init=[sidecar_container("istio-proxy", **cpus("100m", 2))]),
        {"istio-proxy"},
        4,
    ),
    "an injector's that asks for whole CPUs": (lsr(container("queue-proxy", **cpus(2)), MAIN), {"queue-proxy"}, 4),
    "an injector's that asks for none": (lsr(MAIN, container("linkerd-proxy")), {"linkerd-proxy"}, 4),
    "an unknown one of less than a CPU": (lsr(MAIN, container("logger", **cpus("250m"))), {"logger"}, 4),
    "the same by its limit alone": (lsr(MAIN, container("logger", limits={"cpu": "0.999"})), {"logger"}, 4),
    "one without CPU stays": (lsr(MAIN, container("helper")), set(), 4),
    "one of no CPU stays": (lsr(MAIN, container("helper", **cpus(0))), set(), 4),
    "a Pod of the product itself": (lsr(container("istio-proxy", **cpus(4))), set(), 4),
    "that with an init container of its author": (
        lsr(container("daprd", **cpus(4)), init=[container("first", **cpus(1))]),
        set(),
        4,
    ),
    "the peak of those that stay": (
        lsr(MAIN, PROXY, init=[sidecar_container("cache", **cpus(1)), container("first", **cpus(8))]),
        {"istio-proxy"},
        9,
    ),
    "CPU of the Pod as a whole": (lsr(container("main"), PROXY, resources=cpus(6)), {"istio-proxy"}, 6),
    "that and an unknown one": (
        lsr(container("main"), container("logger", **cpus("100m")), resources=cpus(6)),
        {"logger"},
        6,
    ),
    "overhead": (lsr(MAIN, PROXY, overhead={"cpu": 2}), {"istio-proxy"}, 6),
    "stated": (lsr(MAIN, LOGGER, container("worker", **cpus(2)), stated="main,worker"), {"logger"}, 6),
    "stated with blanks": (lsr(MAIN, LOGGER, container("worker", **cpus(2)), stated=" worker , main"), {"logger"}, 6),
    "stated twice": (lsr(MAIN, LOGGER, stated="main,main"), {"logger"}, 4),
    "an init container stated": (
        lsr(container("main", **cpus("500m")), init=[container("first", **cpus(2))], stated="first"),
        {"main"},
        2,
    ),
    "an injector's stated": (lsr(MAIN, container("daprd", **cpus(2)), stated="daprd,main"), set(), 6),
    "one without CPU that is not stated": (lsr(MAIN, container("helper"), stated="main"), {"helper"}, 4),
}


@pytest.mark.parametrize("qos", ["LSR", "LSE"])
@pytest.mark.parametrize(("obj", "shared", "count"), DIVIDED.values(), ids=DIVIDED)
def test_containers_leave_a_pods_own_cpus(obj: Raw, shared: set[str], count: int, qos: str) -> None:
    obj["metadata"]["labels"][QOS_LABEL] = qos
    told = read_cpu_ask(obj)
    assert (told.problems, told.shared, on_shared_cpus(obj)) == ((), frozenset(shared), frozenset(shared))
    assert told.ask is not None
    assert told.ask.count == count


def test_what_a_pod_asks_in_total_is_still_all_of_it() -> None:
    asks = {"cpu": "100m", "memory": GIB}
    told = read_cpu_ask(lsr(MAIN, container("istio-proxy", requests=asks, limits={"cpu": 2})))
    assert told.ask is not None
    assert (told.ask.count, told.ask.milli, told.ask.memory, told.ask.limit_milli) == (4, 4100, GIB, 6000)


REFUSED: dict[str, tuple[Raw, list[str]]] = {
    "no container of the Pod": (
        lsr(MAIN, stated="main,wroker"),
        [
            (
                f"{PATH}: 'wroker' is no container of the Pod; write the names of the containers that run on the "
                "Pod's own CPUs, separated by commas"
            )
        ],
    ),
    "nothing": (
        lsr(MAIN, stated=""),
        [
            (
                f"{PATH}: has an empty name; write the names of the containers that run on the Pod's own CPUs, "
                "separated by commas"
            )
        ],
    ),
    "more names than the Pod has containers": (
        lsr(MAIN, stated="main" + ",main" * 100_000),
        [
            (
                f"{PATH}: {('main,' * 16)[:80]!r} is no container of the Pod; write the names of the "
                "containers that run on the Pod's own CPUs, separated by commas"
            )
        ],
    ),
    "of class LS": (
        lsr(MAIN, qos="LS", stated="main"),
        [
            (
                f"{PATH}: is for Pods that get CPUs of their own; label the Pod {QOS_LABEL}: LSR (or LSE), or remove "
                "the annotation"
            )
        ],
    ),
    "of no class": (
        pod(MAIN, annotations={OWN_CPUS: "main"}),
        [
            (
                f"{PATH}: is for Pods that get CPUs of their own; label the Pod {QOS_LABEL}: LSR (or LSE), or remove "
                "the annotation"
            )
        ],
    ),
    "a fraction that stays": (
        lsr(MAIN, LOGGER),
        [
            f"spec.containers[logger].resources.{key}[cpu]: 1500m is no whole number of CPUs; write 1 or 2{OR_SHARED}"
            for key in ("requests", "limits")
        ],
    ),
    "a limit above the request of one that stays": (
        lsr(MAIN, container("logger", **cpus(1, 2))),
        [
            (
                "spec.containers[logger].resources.requests[cpu]: request 1 and limit 2 differ; in a Pod of class LSE "
                f"or LSR write 1 or 2 in both{OR_SHARED}"
            )
        ],
    ),
    "no whole CPU but an injector's": (
        lsr(container("main", limits={"cpu": "500m"}), container("istio-proxy", **cpus(2))),
        ["spec.containers[main].resources.limits[cpu]: 500m is no whole number of CPUs; write 1" + OR_SHARED],
    ),
    "no whole CPU but an init container's": (
        lsr(container("main", limits={"cpu": "500m"}), init=[container("first", **cpus(2))]),
        ["spec.containers[main].resources.limits[cpu]: 500m is no whole number of CPUs; write 1" + OR_SHARED],
    ),
    "no CPU but an injector's": (
        lsr(container("main"), container("istio-proxy", **cpus(2))),
        [
            (
                "spec.containers: no container that runs on the Pod's own CPUs requests any; name in the annotation "
                f"{OWN_CPUS} the containers that run on them, with a whole number of CPUs in requests and limits"
            )
        ],
    ),
}


@pytest.mark.parametrize(("obj", "told"), REFUSED.values(), ids=REFUSED)
def test_what_is_wrong_is_told_with_what_to_do(obj: Raw, told: list[str]) -> None:
    found = read_cpu_ask(obj)
    assert (found.ask, [str(problem) for problem in found.problems]) == (None, told)


def test_a_container_without_a_name_cannot_be_stated() -> None:
    found = read_cpu_ask(lsr({"resources": cpus(2)}, MAIN, stated="main,"))
    assert [problem.path for problem in found.problems] == [PATH]


def test_ephemeral_containers_run_beside_what_they_look_at_unless_the_others_are_named() -> None:
    debug = [{"name": "debug"}, {"name": "istio-proxy-debug"}]
    assert on_shared_cpus(lsr(MAIN, PROXY, ephemeralContainers=debug)) == {"istio-proxy"}
    named = {"istio-proxy", "debug", "istio-proxy-debug"}
    assert on_shared_cpus(lsr(MAIN, PROXY, ephemeralContainers=debug, stated="main")) == named
    assert on_shared_cpus(lsr(MAIN, PROXY, ephemeralContainers=debug, stated="other")) == {"istio-proxy"}


# What its author is told


@pytest.mark.parametrize(
    ("obj", "named"),
    [
        (lsr(MAIN, container("logger", **cpus("100m"))), "spec.containers[logger].resources: "),
        (
            lsr(MAIN, container("logger", **cpus("1m")), container("other", **cpus("1m"))),
            "spec.containers[logger].resources: less than one CPU, so that this container (and 1 more) runs",
        ),
        (lsr(MAIN, PROXY), ""),
        (lsr(MAIN, LOGGER, stated="main"), ""),
        (lsr(container("main", **cpus("100m")), qos="LS"), ""),
    ],
)
def test_an_author_is_told_of_containers_that_leave_for_their_size(obj: Raw, named: str) -> None:
    told = below_one(obj, read_cpu_ask(obj).shared)
    assert (told.startswith(named), bool(told), OWN_CPUS in told) == (True, bool(named), bool(named))


def test_an_author_is_told_that_a_sidecar_keeps_the_pod_from_being_guaranteed() -> None:
    assert not_guaranteed(lsr(MAIN, PROXY)) == (
        "spec.containers[istio-proxy].resources.limits[cpu]: differs from the request; the Pod is not Guaranteed then, "
        "and a kubelet of the CPU manager policy static may give its CPUs to another Pod: write 100m in both"
    )
    assert not_guaranteed(lsr(MAIN, container("istio-proxy", **cpus("100m")))) == ""


# Recomputed

AUTHORS: Final = ("main", "worker", "helper", "loader")
AMOUNTS: Final = st.sampled_from([None, 0, 1, 2, 3, 8, "100m", "999m", "1500m"])


@st.composite
def containers(
    draw: st.DrawFn, names: Sequence[str], amounts: st.SearchStrategy[Any], *, apps: int = 0
) -> tuple[list[Raw], list[Raw]]:
    """Containers of some of these names: those that start first, and at least so many apps."""
    first, then = list[Any](), list[Any]()
    for name in draw(st.lists(st.sampled_from(names), unique=True, min_size=apps)):
        amount, limit = draw(amounts), draw(amounts) if draw(st.booleans()) else None
        resources = {} if amount is None else cpus(amount, limit)
        one = container(name, **resources)
        if len(then) < apps or draw(st.booleans()):
            then.append(one)
        else:
            first.append({**one, **draw(st.sampled_from([{}, {"restartPolicy": "Always"}]))})
    return first, then


def asked(one: Mapping[str, Any]) -> int:
    resources = one.get("resources", {})
    amount = resources.get("requests", resources.get("limits", {})).get("cpu")
    return 0 if amount is None else to_milli(amount)


def busiest(first: Sequence[Raw], apps: Sequence[Raw], own: set[str]) -> int:
    """The most that containers of these names request at once, by listing which run together."""
    moments = [[one for one in first if "restartPolicy" in one] + [*apps]]
    for at, one in enumerate(first):
        moments.append([*(earlier for earlier in first[:at] if "restartPolicy" in earlier), one])
    return max(sum(asked(one) for one in moment if one["name"] in own) for moment in moments)


def staying(first: Sequence[Raw], apps: Sequence[Raw]) -> set[str]:
    """The rule in words: the product's own Pod keeps all; then what is small leaves beside what is whole and an app."""
    every = {one["name"]: asked(one) for one in (*first, *apps)}
    if any(one["name"] not in INJECTED for one in apps):
        every = {name: amount for name, amount in every.items() if name not in INJECTED}
    large = {name for name, amount in every.items() if amount == 0 or amount >= 1000}
    if large.isdisjoint(one["name"] for one in apps) or not any(
        every[name] % 1000 == 0 < every[name] for name in large
    ):
        return set(every)
    return large


SOME_INJECTED: Final = ("istio-proxy", "istio-init", "vault-agent-init", "daprd")


@settings(max_examples=examples(300), deadline=None)
@given(containers((*AUTHORS, *SOME_INJECTED), AMOUNTS, apps=1), st.data())
def test_the_count_is_the_peak_over_the_containers_that_stay(made: tuple[list[Raw], list[Raw]], data: Any) -> None:
    first, apps = made
    own = staying(first, apps)
    stated = None
    if data.draw(st.booleans()):
        own = set(data.draw(st.lists(st.sampled_from([one["name"] for one in (*first, *apps)]), min_size=1)))
        stated = ",".join(sorted(own))
    told = read_cpu_ask(lsr(*apps, init=first, stated=stated))
    assert told.shared == {one["name"] for one in (*first, *apps)} - own
    sound = all(
        asked(one) % 1000 == 0 and one["resources"]["requests"] == one["resources"]["limits"]
        for one in (*first, *apps)
        if one["name"] in own and "resources" in one
    )
    most = busiest(first, apps, own)
    assert (told.problems == ()) == (sound and most > 0)
    if told.ask is not None:
        assert told.ask.count * 1000 == most
        assert told.ask.milli == busiest(first, apps, {one["name"] for one in (*first, *apps)})


def mixed(draw: Any, own: Sequence[Raw], added: Sequence[Raw]) -> list[Raw]:
    """Put some containers between others, whose order stays."""
    found, at = list(own), 0
    for one in added:
        at = draw(st.integers(at, len(found)))
        found.insert(at, one)
    return found


SMALL: Final = st.sampled_from(["1m", "100m", "999m"])
STRANGE: Final = ("sidecar", "agent", "mesh", "logger")
INJECTABLE: Final = {
    "a known injector, whatever it asks": (sorted(INJECTED), AMOUNTS, False),
    "an unknown one, less than a CPU": (STRANGE, SMALL, False),
    "anything, where the annotation names the containers": ((*sorted(INJECTED), *STRANGE), AMOUNTS, True),
}


@pytest.mark.parametrize(("names", "amounts", "stated"), INJECTABLE.values(), ids=INJECTABLE)
@settings(max_examples=examples(200), deadline=None)
@given(made=containers(AUTHORS, st.sampled_from([None, 0, 1, 2, 8]), apps=1), data=st.data())
def test_nothing_that_an_injector_adds_changes_the_count_or_makes_a_right_pod_wrong(
    names: Sequence[str], amounts: Any, made: tuple[list[Raw], list[Raw]], data: Any, *, stated: bool
) -> None:
    first, apps = made
    fields: Raw = {"resources": cpus(16)} if data.draw(st.booleans()) else {}
    named = ",".join(one["name"] for one in (*first, *apps)) if stated else None
    before = read_cpu_ask(lsr(*apps, init=first, stated=named, **fields))
    more = data.draw(containers(names, amounts))
    init, then = (mixed(data.draw, *pair) for pair in zip((first, apps), more, strict=True))
    after = read_cpu_ask(lsr(*then, init=init, stated=named, **fields))
    if before.ask is None:
        return  # requests no CPU, or more than its limit
    assert after.problems == ()
    assert after.ask is not None
    assert after.ask.count == before.ask.count
    assert after.shared == {one["name"] for one in (*more[0], *more[1])}


def test_no_injected_name_is_in_two_products() -> None:
    assert len(INJECTED) == sum(map(len, INJECTORS.values()))
