"""What other products' Pods state: a table for each product, and the bounds on what a stranger may write."""

from collections.abc import Sequence
from typing import Any

import pytest
from foreignpods import (
    STARTED_S,
    Raw,
    gpushare,
    hami,
    init_ended,
    kai,
    reservation,
    running,
    vgpu,
    volcano,
    with_containers,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from allocator.vocabulary.adopted import LATER, UNNUMBERED, ForeignPart, Numbered, Product
from allocator.wire.foreignpods import Adoption, read_devices, read_foreign_pod
from allocator.wire.mirror import write_devices
from webhook.settings import adoption_of, parse

MIB = 2**20
ALL = adoption_of(parse("adopt: {peers: [hami, volcano, gpushare, kai]}"))


def part(identity: str = "", mib: int | None = None, core: int = 0, **more: Any) -> ForeignPart:
    return ForeignPart(identity, memory=None if mib is None else mib * MIB, core=core, **more)


def index(number: int, mib: int | None = 1000) -> ForeignPart:
    return part(mib=mib, by=Numbered.INDEX, number=number)


def minor(number: int, *of: Any) -> ForeignPart:
    return ForeignPart(by=Numbered.MINOR, number=number, part=of or None)


def cards(indexes: str) -> Raw:
    return volcano(indexes, None, limits={"volcano.sh/gpu-number": 2})


OF_A = "nvidia.com/container.a"


def fraction(text: str) -> Raw:
    return kai("g", annotations={"gpu-fraction": text})


DEVICES = {
    "one card": ("GPU-a,NVIDIA,3000,30:;", [part("GPU-a", 3000, 30)]),
    "two cards of a container": ("GPU-a,NVIDIA,1,0:GPU-b,NVIDIA,2,5:;", [part("GPU-a", 1), part("GPU-b", 2, 5)]),
    "two containers": ("GPU-a,NVIDIA,1,0:;GPU-a,NVIDIA,2,0:;", [part("GPU-a", 3)]),
    "an empty init container": (";GPU-a,NVIDIA,1,0:;", [part("GPU-a", 1)]),
    "an empty last container": ("GPU-a,NVIDIA,1,0:;;", [part("GPU-a", 1)]),
    "no last separator": ("GPU-a,NVIDIA,1,0", [part("GPU-a", 1)]),
    "another type's name": ("GPU-a,NVIDIA A100-SXM4-80GB,1,0:;", [part("GPU-a", 1)]),
    "more fields than today": ("GPU-a,NVIDIA,1,0,x,y:;", [part("GPU-a", 1)]),
    "more compute than a card has": ("GPU-a,NVIDIA,1,250:;", [part("GPU-a", 1, 100)]),
    "no memory is the whole card": ("GPU-a,NVIDIA,0,0:;", [part("GPU-a")]),
    "a MIG device is the whole card": ("GPU-a[1-0],NVIDIA,4864,14:;", [part("GPU-a", None, 14)]),
    "blanks": (" GPU-a,NVIDIA, 1 ,0 :;", [part("GPU-a", 1)]),
}
BAD_DEVICES = {
    "a field too few": ("GPU-a,NVIDIA,3000:;", "is not UUID,TYPE,MiB,percent"),
    "no UUID": (",NVIDIA,3000,30:;", "is not UUID,TYPE,MiB,percent"),
    "a MIG position of no card": ("[1-0],NVIDIA,3000,30:;", "names no card before"),
    "no type": ("GPU-a,,3000,30:;", "is not UUID,TYPE,MiB,percent"),
    "no number": ("GPU-a,NVIDIA,many,30:;", "no whole number"),
    "below zero": ("GPU-a,NVIDIA,-1,30:;", "no whole number"),
    "a fraction": ("GPU-a,NVIDIA,1.5,30:;", "no whole number"),
    "other digits": ("GPU-a,NVIDIA,\u0663,30:;", "no whole number"),
    "more than any card": (f"GPU-a,NVIDIA,{2**33},30:;", "more than any card has"),
    "a list": (["GPU-a"], "is no text"),
    "too long": ("GPU-a,NVIDIA,1,0:" * 1000, "more than 16384 characters"),
    "too many cards": ("a,b,1,0:" * 300, "more than 256 cards"),
}


@pytest.mark.parametrize("make", [hami, vgpu], ids=["HAMi", "Volcano vGPU"])
@pytest.mark.parametrize(("text", "parts"), DEVICES.values(), ids=DEVICES)
def test_devices_are_read(make, text, parts) -> None:
    found = read_foreign_pod(make(text), ALL)
    assert found is not None
    assert (list(found.parts), found.problem, found.uncounted) == (parts, "", "")


@pytest.mark.parametrize("make", [hami, vgpu], ids=["HAMi", "Volcano vGPU"])
@pytest.mark.parametrize(("text", "says"), BAD_DEVICES.values(), ids=BAD_DEVICES)
def test_devices_that_cannot_be_read_are_a_problem_and_never_nothing(make, text, says) -> None:
    found = read_foreign_pod(make(text), ALL)
    assert found is not None
    assert says in found.problem
    assert found.evidence in found.problem
    assert not found.parts


labelled = kai("g")
labelled["metadata"]["labels"] |= {"app": "a", "zone": "z"}

OTHERS = {
    "Volcano: memory of one card": (volcano("1"), [index(1)]),
    "Volcano: whole cards": (cards("0,2"), [index(0, None), index(2, None)]),
    "Volcano: blanks": (volcano(" 3 "), [index(3)]),
    "gpushare: a part of a card": (gpushare("2"), [minor(2, 4, 16)]),
    "gpushare: all of a card": (gpushare("2", "16"), [minor(2, 16, 16)]),
    "gpushare: more asked than stated": (gpushare("2", "1", "16", 8), [minor(2, 8, 16)]),
    "gpushare: the card's size is missing": (gpushare("2", "4", None), [minor(2)]),
    "gpushare: what is held is missing": (gpushare("0", None), [minor(0, 4, 16)]),
    "KAI: a fraction": (fraction("0.5"), [part(group="g", part=(1, 2), core=50)]),
    "KAI: a fraction rounds up": (fraction(".333"), [part(group="g", part=(333, 1000), core=34)]),
    "KAI: all of a card": (fraction("1"), [part(group="g", part=(1, 1), core=100)]),
    "KAI: memory": (kai("g", annotations={"gpu-memory": "2000"}), [part(mib=2000, group="g")]),
    "KAI: two cards": (
        kai("g", "h", annotations={"gpu-memory": "1"}),
        [part(mib=1, group="g"), part(mib=1, group="h")],
    ),
    "KAI 0.18: a request of one card": (
        kai("g", annotations={f"{OF_A}.gpus.devices": "GPU-a", f"{OF_A}.gpu-memory.request": "2000Mi"}),
        [part("GPU-a", mib=2000, group="g")],
    ),
    "KAI 0.18: of two cards, as CDI names": (
        kai(
            "h",
            "g",
            annotations={
                f"{OF_A}.gpus.devices": "k8s.device-plugin.nvidia.com/gpu=GPU-a, nvidia.com/gpu=GPU-b",
                f"{OF_A}.gpu-memory.request": "1Gi",
                f"{OF_A}.gpu-memory.limit": "2Gi",
            },
        ),
        [part("GPU-a", mib=1024, group="g"), part("GPU-b", mib=1024, group="g")],
    ),
    "KAI 0.18: a fraction, in bytes by its binder": (
        kai(
            "g",
            annotations={
                "gpu-fraction": "0.5",
                f"{OF_A}.gpus.devices": "GPU-a",
                f"{OF_A}.gpu-memory.request": "7Gi",
            },
        ),
        [part("GPU-a", mib=7168, core=50, group="g")],
    ),
    "KAI 0.18: without a group": (
        running(
            scheduler="kai-scheduler",
            annotations={f"{OF_A}.gpus.devices": "GPU-a", f"{OF_A}.gpu-memory.request": "1Mi"},
        ),
        [part("GPU-a", mib=1)],
    ),
    "KAI 0.18: no amount is the whole card": (
        kai("g", annotations={f"{OF_A}.gpus.devices": "GPU-a"}),
        [part("GPU-a", group="g")],
    ),
    "KAI 0.18: a request where nothing keeps it": (
        kai("g", annotations={f"{OF_A}.gpu-memory.request": "1Gi", "gpu-memory": "1024"}),
        [part(mib=1024, group="g")],
    ),
    "KAI 0.18: a limit alone": (
        kai("g", annotations={f"{OF_A}.gpu-memory.limit": "1Gi"}),
        [part(mib=1024, group="g")],
    ),
    "KAI 0.18: another annotation about a container": (
        kai("g", annotations={f"{OF_A}.gpu-compute.mode": "sm-sharing"}),
        [part(group="g")],
    ),
    "KAI: no amount is the whole card": (kai("g"), [part(group="g")]),
    "KAI: labels before and behind that of a group": (labelled, [part(group="g")]),
    "KAI: a reservation": (reservation("g", "GPU-a"), [part("GPU-a")]),
    "KAI: a reservation that does not know its card yet": (reservation("g", None), [part(group="g")]),
    "KAI: a reservation that failed": (reservation("g", "-1"), [part(group="g")]),
}  # fmt: skip


@pytest.mark.parametrize(("pod", "parts"), OTHERS.values(), ids=OTHERS)
def test_cards_by_number_and_by_group_are_read(pod, parts) -> None:
    found = read_foreign_pod(pod, ALL)
    assert found is not None
    assert (list(found.parts), found.problem, found.uncounted) == (parts, "", "")


BAD = {
    "Volcano: no index": (volcano("first"), "no whole number"),
    "Volcano: below zero": (volcano("-1"), "no whole number"),
    "Volcano: empty": (volcano(""), "no whole number"),
    "Volcano: memory of two cards": (volcano("0,1"), "names 2 cards"),
    "Volcano: one card twice": (cards("1,1"), "a card twice"),
    "Volcano: a node with too many": (volcano("5000"), "no node has a card 5000"),
    "gpushare: the plugin failed": (gpushare("-1"), "no whole number"),
    "gpushare: more than the card": (gpushare("0", "17"), "17 units are held of a card that has 16"),
    "gpushare: a card of nothing": (gpushare("0", dev="0"), "has 0"),
    "gpushare: amounts that are no numbers": (gpushare("0", "x"), "no whole number"),
    "gpushare: a start that is no time": (gpushare("0", started="yesterday"), "is no time"),
    "too many entries": (hami(";" * 300 + "GPU-a,NVIDIA,1,0:"), "has entries of more than 256 containers"),
    "too many containers": (with_containers(hami("GPU-a,NVIDIA,1,0:;"), [{}] * 256, [{}]), "more than 256 containers"),
    "KAI: a fraction above one": (fraction("1.1"), "not above 0 and at most 1"),
    "KAI: a fraction of nothing": (fraction("0.0"), "not above 0 and at most 1"),
    "KAI: no fraction": (fraction("half"), "is no decimal number"),
    "KAI 0.18: cards of two containers": (
        kai("g", annotations={f"{OF_A}.gpus.devices": "GPU-a", "nvidia.com/container.b.gpus.devices": "GPU-a"}),
        "2 containers have gpus.devices, and KAI gives cards to one",
    ),
    "KAI 0.18: no card": (kai("g", annotations={f"{OF_A}.gpus.devices": "GPU-a,,GPU-b"}), "names no card between"),
    "KAI 0.18: an empty list": (kai("g", annotations={f"{OF_A}.gpus.devices": ""}), "names no card between"),
    "KAI 0.18: no amount": (
        kai("g", annotations={f"{OF_A}.gpus.devices": "GPU-a", f"{OF_A}.gpu-memory.request": "much"}),
        "gpu-memory.request: 'much' is not a Kubernetes quantity",
    ),
    "KAI: a point": (fraction("."), "is no decimal number"),
    "KAI: memory that is no number": (kai("g", annotations={"gpu-memory": "2Gi"}), "no whole number"),
    "two products": (
        running(
            scheduler="volcano",
            annotations={"hami.io/vgpu-devices-allocated": "a,b,1,0:;", "volcano.sh/vgpu-ids-new": "a,b,1,0:;"},
        ),
        "two products state what the Pod holds",
    ),
}


@pytest.mark.parametrize(("pod", "says"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_a_problem_and_never_nothing(pod, says) -> None:
    found = read_foreign_pod(pod, ALL)
    assert found is not None
    assert says in found.problem
    assert not found.parts


NOTHING = {
    "no annotation": running(),
    "not bound": hami("GPU-a,NVIDIA,1,0:;", node=""),
    "succeeded": hami("GPU-a,NVIDIA,1,0:;", phase="Succeeded"),
    "failed": hami("GPU-a,NVIDIA,1,0:;", phase="Failed"),
    "a list without devices": hami(";;"),
    "an index without Volcano's resources": volcano("0", None),
    "an index without gpushare's resource": gpushare("0", asked=None),
    "a fraction that is not bound by KAI": running(annotations={"gpu-fraction": "0.5"}),
}


@pytest.mark.parametrize("pod", NOTHING.values(), ids=NOTHING)
def test_a_pod_to_which_nothing_was_given_holds_nothing(pod) -> None:
    assert read_foreign_pod(pod, ALL) is None


HAMI, VGPU = "hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new"
# what HAMi and Volcano vGPU say; by whom the Pod cannot be read, and why
TWO = {
    "both can be read": ("a,b,1,0:", "a,b,1,0:", Product.HAMI, HAMI, f"{HAMI} and {VGPU}: two products state what"),
    "neither": ("a", "b", Product.HAMI, HAMI, f"{HAMI}: 'a' is not UUID"),
    "the first": ("a,b,1,0:", "b", Product.VOLCANO, VGPU, f"{VGPU}: 'b' is not UUID"),
}


@pytest.mark.parametrize(("hamis", "volcanos", "peer", "evidence", "says"), TWO.values(), ids=TWO)
def test_what_two_products_state_is_a_problem_of_one(hamis, volcanos, peer, evidence, says) -> None:
    found = read_foreign_pod(running(annotations={HAMI: hamis, VGPU: volcanos}), ALL)
    assert found is not None
    assert (found.peer, found.evidence, found.parts) == (peer, evidence, ())
    assert found.problem.startswith(says)


UNNAMED = {
    "gpushare": (running(limits={"aliyun.com/gpu-mem": 20}), part(mib=20 * 1024), "aliyun.com/gpu-mem"),
    "Volcano share": (
        running(limits={"volcano.sh/gpu-memory": 9}, scheduler="volcano"),
        part(mib=9),
        "volcano.sh/gpu-memory",
    ),
    "Volcano share: whole cards": (
        running(limits={"volcano.sh/gpu-number": 2}, scheduler="volcano"),
        part(),
        "volcano.sh/gpu-number",
    ),
    "Volcano vGPU": (
        running(
            limits={"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 9, "volcano.sh/vgpu-cores": 30},
            scheduler="volcano",
        ),
        part(mib=9, core=30),
        "volcano.sh/vgpu-number",
    ),
    "Volcano vGPU: a percentage": (
        running(limits={"volcano.sh/vgpu-memory": 9, "volcano.sh/vgpu-memory-percentage": 5}, scheduler="volcano"),
        part(),
        "volcano.sh/vgpu-memory",
    ),
    "HAMi": (
        running(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9}, scheduler="hami-scheduler"),
        part(mib=9),
        "nvidia.com/gpumem",
    ),
    "HAMi: whole cards": (running(limits={"nvidia.com/gpu": 1}, scheduler="hami-scheduler"), part(), "nvidia.com/gpu"),
    "HAMi: a list without cards": (hami(";;", limits={"nvidia.com/gpumem": 9}), part(mib=9), "nvidia.com/gpumem"),
    "KAI: a fraction": (
        running(annotations={"gpu-fraction": "0.5"}, scheduler="kai-scheduler"),
        part(part=(1, 2), core=50),
        "gpu-fraction",
    ),
    "KAI 0.18": (
        running(annotations={f"{OF_A}.gpu-memory.request": "1Gi"}, scheduler="kai-scheduler"),
        part(mib=1024),
        f"{OF_A}.gpu-memory.request",
    ),
}


@pytest.mark.parametrize(("pod", "asked", "evidence"), UNNAMED.values(), ids=UNNAMED)
def test_a_pod_of_a_product_without_its_annotation_has_what_it_asks_for_of_any_card(
    pod: Raw, asked: ForeignPart, evidence: str
) -> None:
    found = read_foreign_pod(pod, ALL)
    assert found is not None
    assert (found.parts, found.evidence, found.problem, found.uncounted) == ((asked,), evidence, "", "")


Shape = tuple[list[tuple[int, bool]], list[int], bool]
# units of init containers and whether each is a sidecar, units of apps, whether the init containers have ended
_SHAPES = st.tuples(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=4),
    st.lists(st.integers(0, 50), min_size=1, max_size=3),
    st.booleans(),
)


def most(early: Sequence[tuple[int, bool]], apps: Sequence[int], *, ended: bool) -> int:
    """The most units at one moment, of the moments at which an init container, or all apps, run."""
    at_init = [units + sum(of for of, sidecar in early[:at] if sidecar) for at, (units, _) in enumerate(early)]
    last = sum(apps) + sum(of for of, sidecar in early if sidecar)
    over = ended and not any(sidecar for _, sidecar in early)  # they have not all ended while a sidecar runs
    return last if over else max(last, *at_init, 0)


def shaped(pod: Raw, shape: Shape, resource: str, unit: int = 1) -> Raw:
    early, apps, ended = shape
    limits = [[{resource: units * unit} if units else {} for units in of] for of in ([one[0] for one in early], apps)]
    marked = [{**asked, "sidecar": sidecar} for asked, (_, sidecar) in zip(limits[0], early, strict=True)]
    made = with_containers(pod, marked, limits[1])
    return init_ended(made) if ended else made


def entry(units: int) -> str:
    return f"GPU-a,NVIDIA,{units},0:" if units else ""


@settings(max_examples=examples(200))
@given(_SHAPES, st.sampled_from([1, 10, 1024]))
def test_a_pod_holds_the_most_that_its_containers_have_at_one_time_by_its_products_rule(
    shape: Shape, unit: int
) -> None:
    early, apps, ended = shape
    names = ("hami", "volcano", "volcano-share", "gpushare")
    dialects = ", ".join(f"{name}: {{memoryUnit: {unit}Mi}}" for name in names)
    installed = adoption_of(parse(f"{{adopt: {{peers: [hami, volcano, gpushare]}}, dialects: {{{dialects}}}}}"))
    shrunk, lasting = most(early, apps, ended=ended), most(early, apps, ended=False)
    every = "".join(f"{entry(units * unit)};" for units in [*(units for units, _ in early), *apps])
    asking = ";".join(entry(units) for units in apps if units)
    asked = max(shrunk, sum(apps))
    stated = {
        "HAMi": (shaped(hami(every), shape, "none"), shrunk, None),
        "Volcano vGPU": (shaped(vgpu(asking), shape, "none"), sum(apps), None),
        "Volcano share": (shaped(volcano("0", None), shape, "volcano.sh/gpu-memory"), lasting, None),
        "gpushare": (shaped(gpushare("0", str(sum(apps)), "999"), shape, "aliyun.com/gpu-mem"), asked, (asked, 999)),
        "HAMi, unnamed": (shaped(running(scheduler="hami-scheduler"), shape, "nvidia.com/gpumem"), shrunk, None),
        "Volcano vGPU, unnamed": (shaped(running(scheduler="volcano"), shape, "volcano.sh/vgpu-memory"), lasting, None),
        "Volcano share, unnamed": (shaped(running(scheduler="volcano"), shape, "volcano.sh/gpu-memory"), lasting, None),
        "gpushare, unnamed": (shaped(running(), shape, "aliyun.com/gpu-mem"), shrunk, None),
    }
    for what, (pod, units, of) in stated.items():
        found = read_foreign_pod(pod, installed)
        parts = [(one.memory, one.part) for one in (found.parts if found is not None else ())]
        held = [(size, of) for size, of in parts if size != 0 and of != (0, 999)]
        assert held == ([(None, of) if of else (units * unit * MIB, None)] if units else []), what


ANYBODYS = {
    "names of HAMi's by a named scheduler": (
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9},
        "[default-scheduler]",
        True,
    ),
    "names of HAMi's by any scheduler": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 9}, "[]", True),
    "a device plugin's name by a named scheduler": ({"nvidia.com/gpu": 1}, "[default-scheduler]", False),
    "a device plugin's name by any scheduler": ({"nvidia.com/gpu": 1}, "[]", False),
    "names of HAMi's by another scheduler": ({"nvidia.com/gpumem": 9}, "[mine]", False),
}


@pytest.mark.parametrize(("limits", "schedulers", "holds"), ANYBODYS.values(), ids=ANYBODYS)
def test_a_device_plugins_pod_is_no_products_by_a_scheduler_that_others_use_too(
    limits: Raw, schedulers: str, *, holds: bool
) -> None:
    adoption = adoption_of(parse(f"adopt: {{peers: [hami], schedulers: {{hami: {schedulers}}}}}"))
    assert (read_foreign_pod(running(limits=limits), adoption) is not None) is holds


def test_memory_is_the_sum_over_a_pods_containers() -> None:
    pod = volcano("0", 1000)
    containers = pod["spec"]["containers"]
    containers += [{"name": "bare"}, {**containers[0], "name": "other"}]
    found = read_foreign_pod(pod, ALL)
    assert found is not None
    assert found.parts == (index(0, 2000),)


def test_a_card_that_is_named_otherwise_has_no_number_that_a_card_could_have() -> None:
    assert ForeignPart("GPU-a").number == UNNUMBERED == -1


def test_a_product_that_is_not_turned_on_is_not_read() -> None:
    only = Adoption(frozenset({Product.VOLCANO}))
    assert read_foreign_pod(hami("GPU-a,NVIDIA,1,0:;"), only) is None
    assert read_foreign_pod(hami("nonsense"), only) is None
    assert read_foreign_pod(hami("GPU-a,NVIDIA,1,0:;"), Adoption()) is None


def test_a_mirrored_annotation_on_a_pod_that_koordgate_bound_is_no_second_holding() -> None:
    pod = hami("GPU-a,NVIDIA,1,0:;", scheduler="koord-scheduler")
    pod["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"] = "{}"
    assert read_foreign_pod(pod, ALL) is None


@pytest.mark.parametrize("pod", [hami("GPU-a,NVIDIA,1,0:;"), vgpu("GPU-a,NVIDIA,1,0:;"), kai("g")])
def test_an_author_hides_nothing_of_what_another_product_gave_by_an_allocation_that_he_wrote(pod: Raw) -> None:
    stated = read_foreign_pod(pod, ALL)
    pod["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"] = "{}"
    assert stated is not None
    assert read_foreign_pod(pod, ALL) == stated


@pytest.mark.parametrize(
    "pod",
    [
        hami("GPU-a,NVIDIA,1,0:;", scheduler="default-scheduler"),
        volcano("0", scheduler="hami-scheduler"),
        kai("g", scheduler=""),
        reservation("g", "GPU-a", namespace="team"),
    ],
    ids=["HAMi", "Volcano", "KAI", "a reservation elsewhere"],
)
def test_a_pod_of_another_scheduler_does_not_count_and_says_why(pod) -> None:
    found = read_foreign_pod(pod, ALL)
    assert found is not None
    assert "add the name to adopt.schedulers" in found.uncounted


def test_the_schedulers_of_a_product_can_be_named() -> None:
    named = adoption_of(parse("adopt: {peers: [hami], schedulers: {hami: [mine]}}"))
    found = [read_foreign_pod(hami("a,b,1,0:;", scheduler=name), named) for name in ("mine", "hami-scheduler")]
    assert [one is not None and one.uncounted == "" for one in found] == [True, False]
    anybody = adoption_of(parse("adopt: {peers: [hami], schedulers: {hami: []}}"))
    found = [read_foreign_pod(hami("a,b,1,0:;", scheduler="any"), anybody)]
    assert [one is not None and one.uncounted == "" for one in found] == [True]


UNITS = {
    "Volcano share: the Pod's resource": ("volcano-share", volcano("0", 7), 70 * MIB),
    "Volcano vGPU: the annotation": ("volcano", vgpu("GPU-a,NVIDIA,7,0:"), 70 * MIB),
    "KAI: the annotation": ("kai", kai("g", annotations={"gpu-memory": "7"}), 70 * MIB),
    "HAMi: the annotation, which HAMi has multiplied": ("hami", hami("GPU-a,NVIDIA,70,0:;"), 70 * MIB),
    "gpushare: no card is named": ("gpushare", running(limits={"aliyun.com/gpu-mem": 7}), 70 * MIB),
}


@pytest.mark.parametrize(("dialect", "pod", "size"), UNITS.values(), ids=UNITS)
def test_units_of_memory_are_those_of_the_installation(dialect: str, pod: Raw, size: int) -> None:
    text = f"{{adopt: {{peers: [hami, volcano, gpushare, kai]}}, dialects: {{{dialect}: {{memoryUnit: 10Mi}}}}}}"
    found = read_foreign_pod(pod, adoption_of(parse(text)))
    assert found is not None
    assert [one.memory for one in found.parts] == [size]


def test_more_memory_than_any_card_has_is_a_problem_in_any_unit() -> None:
    text = "{adopt: {peers: [volcano]}, dialects: {volcano: {memoryUnit: 1Gi}}}"
    found = read_foreign_pod(vgpu(f"GPU-a,NVIDIA,{2**32},0:"), adoption_of(parse(text)))
    assert found is not None
    assert "more than any card has" in found.problem


def test_an_index_counts_as_of_each_start_of_a_container_and_a_minor_as_of_the_pods_start() -> None:
    pod = volcano("0")
    statuses = pod["status"]["containerStatuses"]
    statuses.append({"name": "later", "state": {"running": {"startedAt": "2026-11-20T11:00:05+00:00"}}})
    statuses.append({"name": "waits", "state": {"waiting": {}}})
    found = read_foreign_pod(pod, ALL)
    assert found is not None
    assert found.starts == (STARTED_S, STARTED_S + 3600, LATER)
    assert LATER == 2**62
    share = read_foreign_pod(gpushare("0"), ALL)
    assert share is not None
    assert share.starts == (STARTED_S,)
    new = read_foreign_pod(gpushare("0", started=None), ALL)
    assert new is not None
    assert new.starts == (LATER,)


_ENTRY = st.tuples(st.from_regex(r"GPU-[0-9a-f]{1,8}", fullmatch=True), st.integers(1, 2**20), st.integers(0, 100))


@settings(max_examples=examples(100))
@given(st.lists(st.lists(_ENTRY, max_size=3), max_size=4))
def test_written_devices_are_read_as_the_same(containers) -> None:
    parts = [tuple(part(*one) for one in container) for container in containers]
    assert list(read_devices(write_devices(containers))) == parts


@settings(max_examples=examples(200))
@given(st.sampled_from([hami, vgpu, volcano, gpushare]), st.text(max_size=40) | st.integers() | st.none())
def test_no_text_makes_the_reader_fail(make, text) -> None:
    found = read_foreign_pod(make(text), ALL)
    assert found is None or bool(found.parts) != bool(found.problem)
