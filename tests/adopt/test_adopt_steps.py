"""What each of the seven steps still needs, and what is in the way of a switch: findings in, sentences out."""

from collections.abc import Iterable
from typing import Any

import pytest

from allocator.vocabulary.names import Mode
from console.adopt.findings import OURS, ClusterFindings, DevicePod, HeldBy, NodeFinding
from console.adopt.steps import blockers, named, steps

BINDING = "wait for another scheduler, whose Bindings would be refused"


def pod(name: str, namespace: str = "team", node: str = "", product: str = "HAMi", *, read: bool = True) -> DevicePod:
    return DevicePod(namespace, name, f"uid-{name}", node, product, read, Mode.SHADOW)


def node(name: str, *uids: str, **about: Any) -> NodeFinding:
    """A node with a reporter, on which these Pods hold a device each through koordgate."""
    held = tuple(HeldBy(f"GPU-{uid}", f"team/{uid}", f"uid-{uid}", OURS, "ledger") for uid in uids)
    about = {"ready": True, "listed": True, "reporter": "ready", "devices": 2, "held": held, **about}
    return NodeFinding(name, **about)


def found(nodes: Iterable[NodeFinding] = (), pods: Iterable[DevicePod] = (), **about: Any) -> ClusterFindings:
    pods = tuple(pods)
    modes = {one.namespace: Mode.SHADOW for one in pods}
    return ClusterFindings(tuple(nodes), pods, **{"modes": modes, "installed": True, **about})


BEGINNING = found(
    [
        node("n1", listed=False, reporter="none", problems=("Device n1: no id",)),
        node("n2", reporter="not ready", offers={"nvidia.com/gpumem": "9", "nvidia.com/gpu": "2"}),
        node("n3", clashes=("n3: a clash", "n3: another"), offers={"nvidia.com/gpu": "2"}),
        node("n4", listed=False),
    ],
    [pod("a", "late"), pod("b", "early"), pod("c", "late"), pod("d", "early", "n3"), pod("e", "early", "n2", OURS)],
    installed=False,
)
NEEDED = [
    (
        [
            "koordgate's webhooks are not installed: install the chart with mode: shadow",
            "no reporter is ready on n1, n2",
        ],
        "helm upgrade --install koordgate charts/koordgate -n koordgate-system --create-namespace --set mode=shadow",
    ),
    (
        ["early has 1 Pod that must still be placed", "late has 2 Pods that must still be placed"],
        "kubectl -n early create quota pause --hard=requests.nvidia.com/gpu=0",
    ),
    (
        ["Pods wait for another scheduler: late/a, early/b, late/c"],
        "kubectl -n late get pods --field-selector=status.phase=Pending",
    ),
    (["no Device object: n1, n4", "Device n1: no id", "n3: a clash", "n3: another"], "koordgate adopt check"),
    (
        ["late is in mode shadow", "early is in mode shadow"],
        "koordgate adopt switch late --to enforce --dry-run",
    ),
    (["no Pod holds devices through koordgate yet: create one in a switched namespace"], "koordgate top"),
    (
        [
            "devices of the old product are held by 1 running Pod, which their controllers may replace",
            "n2, n3 still offer nvidia.com/gpu, nvidia.com/gpumem",
        ],
        "koordgate adopt check   # docs/install/migrate.md: what to remove of each product",
    ),
]


def test_at_the_beginning_each_step_says_what_it_needs_and_names_a_command() -> None:
    made = steps(BEGINNING)
    assert [step.number for step in made] == [1, 2, 3, 4, 5, 6, 7]
    assert [(list(step.needed), step.command) for step in made] == NEEDED
    assert not any(step.done for step in made)


def test_at_the_end_nothing_is_needed_and_no_command_is_named() -> None:
    held = HeldBy("GPU-0", "team/a", "uid-a", "HAMi", "an annotation")
    nodes = [node("n1", held=(held,)), node("n2", "b")]
    pods = [pod("a", node="n1", product=OURS), pod("b", node="n2", product=OURS)]
    made = steps(found(nodes, pods, modes={"team": Mode.ENFORCE}))
    assert [(step.done, step.needed, step.command) for step in made] == [(True, (), "")] * 7


def test_what_another_product_gave_a_pod_is_not_from_koordgate() -> None:
    held = HeldBy("GPU-0", "team/a", "uid-a", "HAMi", "an annotation")
    made = steps(found([node("n1", held=(held,)), node("n2", "gone")], [pod("a", node="n1")]))
    assert [step.number for step in made if not step.done] == [5, 6, 7]


@pytest.mark.parametrize("product", ["HAMi", "the old one"])
def test_whatever_another_product_is_called_it_is_not_koordgate(product: str) -> None:
    held = HeldBy("GPU-0", "team/a", "uid-a", product, "an annotation")
    pods = [pod("a", node="n1", product=product), pod("b", product=product), pod("c", "other", "n1", product)]
    told = found([node("n1", held=(held,), offers={"x": "1"})], pods)
    made = {step.number: step.needed for step in steps(told)}
    assert [str(one) for one in told.waiting] == ["team/b"]
    assert made[6] == ("no Pod holds devices through koordgate yet: create one in a switched namespace",)
    assert made[7][0].startswith("devices of the old product are held by 2 running Pods, ")
    assert "the old product also gives devices on n1 to other" in list(blockers(told, ["team"], Mode.ENFORCE))[-1]
    enforced = found(told.nodes, pods, modes={"team": Mode.ENFORCE, "other": Mode.ENFORCE})
    assert list(blockers(enforced, ["team"], Mode.SHADOW)) == []


def test_without_koordgate_no_namespace_is_switched_whatever_mode_is_assumed() -> None:
    fifth = steps(found([node("n1")], modes={"team": Mode.ENFORCE}, installed=False))[4]
    assert (fifth.done, fifth.command) == (False, "")
    assert fifth.needed == ("koordgate is not installed, so no namespace is switched",)


def test_whether_koordgate_is_installed_may_be_unknown() -> None:
    first = steps(found([node("n1", reporter="not ready")], installed=None))[0]
    assert first.needed == ("no reporter is ready on n1",)
    assert first.command == "kubectl get pods -A -o wide -l app.kubernetes.io/name=koordgate-reporter"
    assert steps(found([node("n1")], installed=None))[0].done


def test_without_a_clash_the_command_shows_the_device_objects() -> None:
    assert steps(found([node("n1", listed=False)]))[3].command == "kubectl get devices.scheduling.koordinator.sh"


@pytest.mark.parametrize(
    ("namespaces", "last"),
    [
        (5, "s4 is in mode off"),
        (6, "and 1 more namespaces"),
        (8, "and 3 more namespaces"),
        (11, "and 6 more namespaces"),
    ],
)
def test_five_namespaces_that_are_behind_are_named_and_the_others_counted(namespaces: int, last: str) -> None:
    modes = {"done": Mode.ENFORCE} | {f"s{at}": Mode.OFF for at in range(namespaces)}
    step = steps(found(modes=modes))[4]
    assert step.needed[:5] == tuple(f"s{at} is in mode off" for at in range(5))
    assert step.needed[-1] == last
    assert len(step.needed) == min(namespaces, 6)
    assert step.command == "koordgate adopt switch s0 --to enforce --dry-run"


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ("a", "a"),
        ("abcde", "a, b, c, d, e"),
        ("abcdef", "a, b, c, d, e and 1 more"),
        ("a" * 9, "a, a, a, a, a and 4 more"),
        ("a" * 11, "a, a, a, a, a and 6 more"),
    ],
)
def test_five_names_are_told_and_the_others_counted(names: str, told: str) -> None:
    assert named(list(names)) == told


# What is in the way of enforcement


def test_all_that_is_in_the_way_of_enforcement_is_told() -> None:
    nodes = [node("n1"), node("n2"), node("n3", clashes=("n3: a clash",)), node("n4", listed=False)]
    pods = [
        pod("a"),
        pod("b", read=False),
        pod("c", node="n1", product="Volcano vGPU", read=False),
        pod("d", "other"),
        pod("e", "other", "n2", "KAI", read=False),
        pod("f", "more", "n1"),
        pod("g", "unlisted", "n4"),
        pod("h", "moved", "n1"),
        pod("i", "mine", "n1", OURS),
    ]
    modes = {one.namespace: Mode.SHADOW for one in pods} | {"moved": Mode.ENFORCE}
    told = list(blockers(found(nodes, pods, modes=modes, installed=False), ["team", "new"], Mode.ENFORCE))
    assert told == [
        "koordgate's webhooks are not installed, so nothing would translate Pods: install the chart",
        f"team/a, team/b {BINDING}: wait until they are bound, or delete them, and their controllers create them anew",
        (
            "Pods there ask in names of HAMi, Volcano vGPU, which are not read there: turn on the dialect (values "
            "dialects.*), else such Pods stay with the other product"
        ),
        "n3: a clash",
        (
            "the old product also gives devices on n1, n2 to more, other, and does not know what koordgate gives "
            "there: switch more, other together with these namespaces, or keep the Pods of one product off these nodes "
            "by a taint"
        ),
    ]


def test_nothing_is_in_the_way_where_pods_are_bound_and_read() -> None:
    pods = [pod("a", node="n1"), pod("b", node="n2", product=OURS), pod("c", product=OURS)]
    assert list(blockers(found([node("n1"), node("n2")], pods, installed=None), ["team"], Mode.ENFORCE)) == []


# What is in the way of leaving it

LEAVING = [pod("a", node="n1", product=OURS), pod("b", "other", "n1", OURS), pod("c", "plain", "n2", OURS)]


def leaving(**about: Any) -> ClusterFindings:
    """Pods of three namespaces hold devices through koordgate, on n1, which HAMi offers too, and on n2."""
    nodes = [node("n1", "a", "b", offers={"nvidia.com/gpu": "2"}), node("n2", "c")]
    modes = dict.fromkeys(("team", "other", "plain"), Mode.ENFORCE)
    return found(nodes, LEAVING, **{"modes": modes, **about})


@pytest.mark.parametrize("to", [Mode.SHADOW, Mode.OFF])
def test_what_koordgate_gave_is_in_the_way_of_leaving_it(to: Mode) -> None:
    own, others = list(blockers(leaving(), ["new", "team"], to))
    assert own.startswith("team/a hold devices through koordgate, which the old product would give again: delete them")
    assert others.startswith("Pods of other hold devices through koordgate on nodes where the old product gives")


def test_namespaces_that_leave_together_are_in_nobodys_way_but_their_own() -> None:
    (own,) = blockers(leaving(), ["plain", "team", "other"], Mode.SHADOW)
    assert own.startswith("team/a, other/b, plain/c hold devices through koordgate")
    (others,) = blockers(
        found([node("n1", "b", offers={"a": "1"})], LEAVING, modes={"team": Mode.ENFORCE}), ["team"], Mode.OFF
    )
    assert others.startswith("Pods of other hold devices")


def test_what_another_product_gave_is_not_in_the_way_of_leaving() -> None:
    held = HeldBy("GPU-0", "team/a", "uid-a", "HAMi", "an annotation")
    nodes = [node("n1", held=(held,), offers={"nvidia.com/gpu": "2"})]
    assert list(blockers(found(nodes, LEAVING, modes={"team": Mode.ENFORCE}), ["team"], Mode.SHADOW)) == []


@pytest.mark.parametrize("mode", [Mode.SHADOW, Mode.OFF])
def test_nothing_is_in_the_way_of_leaving_what_was_not_enforced(mode: Mode) -> None:
    modes = {"team": mode, "other": Mode.ENFORCE, "plain": Mode.ENFORCE}
    assert list(blockers(leaving(modes=modes), ["team", "new"], Mode.OFF)) == []


NONE = "Pods get no cards on 1 node (n1): each has no runtime; install one"


WAYS = {("none", "none"): True, ("none", "environment"): False, ("none", ""): True, ("",): False}


@pytest.mark.parametrize("ways", WAYS)
def test_a_switch_is_stopped_where_no_node_could_show_cards(ways: tuple[str, ...]) -> None:
    nodes = [node(f"n{at}", delivery=way) for at, way in enumerate(ways, 1)]
    one = found(nodes, [pod("a", node="n1", product=OURS)], unshown=(NONE,))
    assert (NONE in blockers(one, ["team"], Mode.ENFORCE)) is WAYS[ways]
    assert NONE not in list(blockers(one, ["team"], Mode.SHADOW))
    assert NONE in steps(one)[3].needed
