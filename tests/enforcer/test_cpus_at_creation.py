"""CPUs of containers that are created, changed and found, and of those that make room for them."""

from dataclasses import replace
from typing import Any

import pytest
from enforcing import CPUS, FACTS, RULES, container, cpus_of, moved, sandbox
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from trials import examples

from allocator.vocabulary.cputopology import format_cpuset, parse
from reporter.enforcer.mirror import Mirror
from reporter.enforcer.model import Container, Update
from reporter.exchange import Cpus, Facts

STATUS = "scheduling.koordinator.sh/resource-status"


def facts(**cpus: Any) -> Facts:
    return structs.replace(FACTS, cpus=structs.replace(CPUS, **cpus))


NONE = FACTS
FIRST = facts(first="0-1")
STATIC = facts(static=True, default="0-15")

CREATED = {
    "LSE: its own": (sandbox(qos="LSE", own="2-3"), NONE, "2-3"),
    "LSR: its own": (sandbox(qos="LSR", own="4-5", tier="Guaranteed"), NONE, "4-5"),
    "Guaranteed without a class, to which Koordinator gave CPUs": (sandbox(own="4", tier="Guaranteed"), NONE, "4"),
    "LS: the shared pool": (sandbox(qos="LS"), NONE, "0-15"),
    "Burstable: the shared pool": (sandbox(), NONE, "0-15"),
    "Guaranteed: the shared pool": (sandbox(tier="Guaranteed"), NONE, "0-15"),
    "LS on a NUMA node's pool": (
        sandbox(qos="LS", more={STATUS: '{"cpuSharedPools":[{"socket":0,"node":1}]}'}),
        NONE,
        "8-15",
    ),
    "BE: the BE pool": (sandbox(qos="BE"), NONE, "0-15"),
    "BE: first on the kubelet's CPUs": (sandbox(qos="BE"), FIRST, "0-1"),
    "BestEffort: first on the kubelet's CPUs": (sandbox(tier="BestEffort"), FIRST, "0-1"),
    "LS never on those alone": (sandbox(qos="LS"), FIRST, "0-15"),
    "SYSTEM: the system's": (sandbox(qos="SYSTEM"), NONE, "0"),
    "LSR whose status cannot be read: what it has": (sandbox(qos="LSR", more={STATUS: "{"}), NONE, ""),
    "LSR whose status names no CPU: what it has": (sandbox(qos="LSR", more={STATUS: "{}"}), NONE, ""),
    "no pool: what it has": (sandbox(qos="LS"), structs.replace(FACTS, cpus=Cpus()), ""),
    "of a cgroup that is none of Kubernetes': the shared pool": (replace(sandbox(), cgroup="../x"), NONE, "0-15"),
}


@pytest.mark.parametrize(("pod", "told", "cpus"), CREATED.values(), ids=CREATED)
def test_a_container_is_created_with_the_cpus_of_its_pods_class(pod, told, cpus) -> None:
    answer = Mirror(RULES).created(pod, container(pod), told)
    assert (cpus_of(answer), answer.updates, answer.refusal, answer.remarks) == (cpus, (), "", ())


def test_only_containers_that_the_facts_name_leave_their_pods_cpus() -> None:
    pod, told = sandbox(qos="LSR", own="4-5"), facts(beside={"u1": ("istio-proxy", "other"), "u2": ("main",)})
    mirror = Mirror(RULES)
    given = {name: cpus_of(mirror.created(pod, container(pod, name), told)) for name in ("main", "istio-proxy", "log")}
    assert given == {"main": "4-5", "istio-proxy": "0-3,6-15", "log": "4-5"}


def test_memory_follows_the_numa_nodes_only_where_the_facts_say_so() -> None:
    pod = sandbox(qos="LSR", more={STATUS: '{"cpuset":"8-9","numaNodeResources":[{"node":1}]}'})
    for mems, expected in ((False, 0), (True, 0b10)):
        assert Mirror(RULES).created(pod, container(pod), facts(mems=mems)).edits.mems == expected


def test_numa_nodes_that_another_has_set_are_left_alone() -> None:
    pod = sandbox(qos="LSR", more={STATUS: '{"cpuset":"8-9","numaNodeResources":[{"node":1}]}'})
    answer = Mirror(RULES).created(pod, container(pod, mems=1), facts(mems=True))
    assert (cpus_of(answer), answer.edits.mems) == ("8-9", 0)


def test_nothing_is_set_where_cpusets_are_not_to_be_written() -> None:
    mirror, pod = Mirror(replace(RULES, cpus=False)), sandbox(qos="LSR", own="4-5")
    assert not mirror.sets_cpus
    assert mirror.created(pod, container(pod), NONE).edits.cpus == 0
    assert mirror.updated(container(pod).id, 1, 1, NONE).edits.cpus == 0


def test_without_facts_containers_are_created_as_they_are_and_are_narrowed_as_soon_as_there_are_some() -> None:
    mirror, first, second = Mirror(RULES), sandbox(1), sandbox(2, qos="LSE", own="2-3")
    for pod in (first, second):
        answer = mirror.created(pod, container(pod), None)
        assert (answer.edits.cpus, answer.updates, answer.refusal) == (0, (), "")
    third = sandbox(3)
    answer = mirror.created(third, container(third), NONE)
    assert cpus_of(answer) == "0-1,4-15"
    assert moved(answer) == {"s1-main-0": "0-1,4-15", "s2-main-0": "2-3"}


# others make room


def test_others_leave_the_cpus_that_a_pod_gets_in_the_same_answer() -> None:
    mirror = Mirror(RULES)
    bound = {STATUS: '{"cpuSharedPools":[{"socket":0,"node":0}]}'}
    pods = [
        sandbox(1),
        sandbox(2, tier="BestEffort"),
        sandbox(3, qos="LSE", own="14-15"),
        sandbox(4, qos="LS", more=bound),
        sandbox(5, qos="BE"),
    ]
    for pod in pods:
        mirror.created(pod, container(pod), NONE)
        mirror.created(pod, container(pod, "second"), NONE)
    shared, part = "0-3,6-13", "0-3,6-7"
    lsr = sandbox(6, qos="LSR", own="4-5")
    answer = mirror.created(lsr, container(lsr), NONE)
    names = ("main", "second")
    assert moved(answer) == {f"s{one}-{name}-0": cpus for one, cpus in ((1, shared), (4, part)) for name in names}
    lse = sandbox(7, qos="LSE", own="6-7")
    answer = mirror.created(lse, container(lse), NONE)
    assert moved(answer) == {
        f"s{one}-{name}-0": cpus
        for one, cpus in ((1, "0-3,8-13"), (2, "0-5,8-13"), (4, "0-3"), (5, "0-5,8-13"))
        for name in names
    }


def test_the_second_container_of_a_pod_moves_nobody() -> None:
    mirror, other, pod = Mirror(RULES), sandbox(1), sandbox(2, qos="LSR", own="4-5")
    mirror.created(other, container(other), NONE)
    assert moved(mirror.created(pod, container(pod), NONE)) == {"s1-main-0": "0-3,6-15"}
    assert moved(mirror.created(pod, container(pod, "second"), NONE)) == {}


def test_a_pods_own_cpus_are_taken_although_no_pool_is_left_to_others() -> None:
    """They stay where they are: a cpuset is never empty."""
    mirror, other, pod = Mirror(RULES), sandbox(1), sandbox(2, qos="LSE", own="0-15")
    mirror.created(other, container(other), NONE)
    answer = mirror.created(pod, container(pod), NONE)
    assert (cpus_of(answer), moved(answer)) == ("0-15", {})


def test_a_pod_that_goes_gives_nobody_cpus_until_the_facts_do() -> None:
    mirror, other, pod, late = Mirror(RULES), sandbox(1), sandbox(2, qos="LSE", own="4-5"), sandbox(3)
    mirror.created(other, container(other), NONE)
    mirror.created(pod, container(pod), NONE)
    mirror.started(container(pod, pid=1), NONE)
    mirror.sandbox_removed(pod.id)
    told = facts(shared="0-3,6-15")  # They still have the Pod.
    answer = mirror.created(late, container(late), told)
    assert (cpus_of(answer), moved(answer)) == ("0-3,6-15", {})


def test_what_the_reporter_may_have_widened_meanwhile_is_narrowed_again() -> None:
    mirror, other, lse = Mirror(RULES), sandbox(1), sandbox(2, qos="LSE", own="4-5")
    mirror.created(other, container(other), NONE)
    mirror.created(lse, container(lse), NONE)
    mirror.started(container(lse, pid=1), NONE)
    mirror.sandbox_removed(lse.id)
    # The reporter has seen it come and go, and wrote the whole pool again.
    mirror.created(sandbox(3), container(sandbox(3)), facts(system="1"))
    again = sandbox(4, qos="LSE", own="4-5")
    answer = mirror.created(again, container(again), facts(system="1"))
    assert moved(answer) == {"s1-main-0": "0-3,6-15", "s3-main-0": "0-3,6-15"}


@pytest.mark.parametrize("how", ["removed", "tried again"])
def test_a_creation_that_failed_narrows_others_once_more_when_it_succeeds(how) -> None:
    """The runtime may have dropped the answer with all that it said of others."""
    mirror, other, pod = Mirror(RULES), sandbox(1), sandbox(2, qos="LSE", own="4-5")
    mirror.created(other, container(other), NONE)
    mirror.created(pod, container(pod), NONE)
    if how == "removed":
        mirror.removed(container(pod).id)
    answer = mirror.created(pod, container(pod, attempt=1), NONE)
    assert moved(answer) == {"s1-main-0": "0-3,6-15"}
    mirror.started(container(pod, attempt=1, pid=7), NONE)
    mirror.removed(container(pod, attempt=1).id)
    assert moved(mirror.created(pod, container(pod, attempt=2), NONE)) == {}


def test_containers_that_have_stopped_are_not_moved() -> None:
    mirror, other, pod = Mirror(RULES), sandbox(1), sandbox(2, qos="LSE", own="4-5")
    mirror.created(other, container(other, "init"), NONE)
    mirror.created(other, container(other), NONE)
    mirror.stopped(container(other, "init").id)
    assert moved(mirror.created(pod, container(pod), NONE)) == {"s1-main-0": "0-3,6-15"}


def test_a_refused_container_moves_nobody() -> None:
    mirror, other = Mirror(RULES), sandbox(1)
    pod = sandbox(2, qos="LSE", own="4-5", more={"nri.koordgate.io/main": "GPU-none"})
    mirror.created(other, container(other), NONE)
    answer = mirror.created(pod, container(pod), NONE)
    assert answer.refusal
    assert (answer.updates, answer.edits.cpus) == ((), 0)


# the kubelet's static policy

GIVEN = facts(static=True, default="0-11", given={"u9": {"main": "12-13"}})
BY_STATIC = {
    "ours in place of its shared CPUs": (sandbox(qos="LS"), "main", "0-11", "0-15"),
    "ours in place of what it gives alone": (sandbox(qos="LSR", own="4-5", tier="Guaranteed"), "main", "14-15", "4-5"),
    "ours in place of what it gave alone, as the facts say": (
        sandbox(9, qos="LSR", own="4-5", tier="Guaranteed"),
        "main",
        "12-13",
        "4-5",
    ),
    "its own, which the facts know": (sandbox(9, tier="Guaranteed"), "main", "12-13", ""),
    "its own, which the facts do not know yet": (sandbox(2, tier="Guaranteed"), "main", "14-15", ""),
    "of a Pod with such, what it shares": (sandbox(9, tier="Guaranteed"), "log", "0-11", ""),
    "Guaranteed with parts of CPUs: ours": (sandbox(2, tier="Guaranteed"), "main", "0-11", "0-15"),
    "shared CPUs that the facts do not know yet: ours": (sandbox(2), "main", "0-9", "0-15"),
    "BestEffort: ours": (sandbox(2, tier="BestEffort"), "main", "0-11", "0-15"),
}


@pytest.mark.parametrize(("pod", "name", "asked", "cpus"), BY_STATIC.values(), ids=BY_STATIC)
def test_under_the_static_policy_a_container_is_created_with(pod, name, asked, cpus) -> None:
    mirror = Mirror(RULES)
    answer = mirror.created(pod, container(pod, name, cpus=asked), GIVEN)
    assert (cpus_of(answer), answer.remarks, mirror.sets_cpus) == (cpus, (), True)


@pytest.mark.parametrize(("pod", "name", "asked", "cpus"), BY_STATIC.values(), ids=BY_STATIC)
def test_under_the_static_policy_a_container_keeps_when_the_kubelet_changes_it(pod, name, asked, cpus) -> None:
    mirror = Mirror(RULES)
    mirror.created(pod, container(pod, name, cpus=asked), GIVEN)
    answer = mirror.updated(container(pod, name).id, parse(asked), 0, GIVEN)
    assert (cpus_of(answer), answer.edits.mems, answer.updates) == (cpus, 0, ())


def test_containers_with_cpus_of_the_kubelets_are_not_moved() -> None:
    mirror, theirs, ours = Mirror(RULES), sandbox(2, tier="Guaranteed"), sandbox(3, qos="LSE", own="4-5")
    mirror.created(theirs, container(theirs, cpus="14-15"), GIVEN)
    assert moved(mirror.created(ours, container(ours, cpus="0-11"), GIVEN)) == {}


def test_a_change_that_names_no_cpus_is_answered_without_any() -> None:
    mirror, pod = Mirror(RULES), sandbox(qos="LSR", own="4-5")
    mirror.created(pod, container(pod), NONE)
    assert mirror.updated(container(pod).id, 0, 0, NONE).edits.cpus == 0
    assert mirror.updated("another", 1, 0, NONE).edits.cpus == 0
    assert mirror.updated(container(pod).id, 1, 0, None).edits.cpus == 0


def test_a_change_of_one_container_narrows_others_whom_the_facts_narrow() -> None:
    mirror, one, two = Mirror(RULES), sandbox(1), sandbox(2)
    for pod in (one, two):
        mirror.created(pod, container(pod), STATIC)
    answer = mirror.updated(container(one).id, parse("0-15"), 0, facts(static=True, default="0-15", shared="0-9"))
    assert (cpus_of(answer), moved(answer)) == ("0-9", {"s2-main-0": "0-9"})


# another plugin that sets cpusets


def test_a_container_with_cpus_that_the_kubelet_does_not_set_has_them_from_another_plugin() -> None:
    mirror, one, two, own = Mirror(RULES), sandbox(1), sandbox(2), sandbox(3, qos="LSE", own="4-5")
    mirror.created(one, container(one), NONE)
    answer = mirror.created(two, container(two, cpus="3"), NONE)
    (remark,) = answer.remarks
    assert (remark.reason, remark.uid) == ("CpusetsByAnother", "")
    assert "container main of ns/p2 had CPUs" in remark.message
    assert "turn that plugin off" in remark.message
    assert (answer.edits.cpus, answer.updates, mirror.sets_cpus) == (0, (), False)
    answer = mirror.created(own, container(own), NONE)
    assert (answer.edits.cpus, answer.updates, answer.remarks) == (0, (), ())
    assert mirror.updated(container(one).id, 1, 1, NONE).edits.cpus == 0
    assert mirror.synchronized([one], [container(one, pid=1)], NONE).updates == ()


def test_under_the_static_policy_it_is_another_plugin_when_a_creation_failed_and_the_facts_explain_nothing() -> None:
    mirror, one, two = Mirror(RULES), sandbox(1), sandbox(2)
    assert cpus_of(mirror.created(one, container(one, cpus="3"), STATIC)) == "0-15"
    assert mirror.created(two, container(two, cpus="3"), STATIC).remarks == ()
    mirror.removed(container(one).id)
    answer = mirror.created(one, container(one, attempt=1, cpus="3"), STATIC)
    assert [one.reason for one in answer.remarks] == ["CpusetsByAnother"]
    assert (answer.edits.cpus, mirror.sets_cpus) == (0, False)


NOT_ANOTHER = {
    "the facts explain it by then": ("3", facts(static=True, default="3"), "3", False),
    "it has the kubelet's shared CPUs by then": ("3", STATIC, "0-15", False),
    "it had started": ("3", STATIC, "3", True),
}


@pytest.mark.parametrize(("first", "told", "then", "started"), NOT_ANOTHER.values(), ids=NOT_ANOTHER)
def test_under_the_static_policy_it_is_no_other_plugin_if(first, told, then, started) -> None:
    mirror, pod = Mirror(RULES), sandbox(1)
    mirror.created(pod, container(pod, cpus=first), STATIC)
    if started:
        mirror.started(container(pod, pid=1), STATIC)
    answer = mirror.created(pod, container(pod, attempt=1, cpus=then), told)
    assert (answer.remarks, mirror.sets_cpus) == ((), True)


def test_what_the_facts_have_explained_is_not_doubted_when_the_next_creation_is_ahead_of_them() -> None:
    """As where a container that never starts is tried again while Guaranteed Pods come and go."""
    mirror, pod, other = Mirror(RULES), sandbox(1), sandbox(2)
    mirror.created(pod, container(pod, cpus="3"), STATIC)
    mirror.created(other, container(other, cpus="3"), facts(static=True, default="3"))
    answer = mirror.created(pod, container(pod, attempt=1, cpus="3-4"), facts(static=True, default="3"))
    assert (answer.remarks, mirror.sets_cpus) == ((), True)


# what exists already


def test_cpusets_that_differ_are_corrected_when_the_runtime_tells_what_runs() -> None:
    mirror = Mirror(RULES)
    pods = [sandbox(1), sandbox(2, qos="LSR", own="4-5"), sandbox(3, tier="BestEffort"), sandbox(4, own="6")]
    found = [
        container(pods[0], pid=1),
        container(pods[0], "right", cpus="0-3,7-15", pid=2),
        container(pods[1], cpus="0-15", pid=3),
        container(pods[2], cpus="0-15", pid=4),
        container(pods[3], cpus="1"),
        container(sandbox(9), pid=5),  # Its sandbox is not told.
    ]
    answer = mirror.synchronized(pods, found, NONE)
    assert moved(answer) == {"s1-main-0": "0-3,7-15", "s2-main-0": "4-5", "s4-main-0": "6"}


def test_a_sandbox_without_containers_keeps_no_cpus() -> None:
    """It may have ended: the facts know whether its Pod still has them."""
    mirror, ended, pod = Mirror(RULES), sandbox(1, qos="LSE", own="4-5"), sandbox(2)
    mirror.synchronized([ended, pod], [container(pod, pid=1)], NONE)
    third = sandbox(3)
    assert cpus_of(mirror.created(third, container(third), NONE)) == "0-15"


def test_what_was_known_is_forgotten_when_the_runtime_tells_what_runs() -> None:
    mirror, gone, other = Mirror(RULES), sandbox(1, qos="LSE", own="4-5"), sandbox(2)
    mirror.created(gone, container(gone), NONE)
    mirror.synchronized([], [], NONE)
    answer = mirror.created(other, container(other), NONE)
    assert (cpus_of(answer), answer.updates) == ("0-15", ())


# properties

KINDS = st.sampled_from(["LSE", "LSR", "LS", "BE", ""])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "create", "fail", "fail", "remove", "end", "tell", "find"]),
        st.integers(0, 3),
        st.sampled_from(["a", "b"]),
    ),
    max_size=40,
)
OWN = ("LSE", "LSR")


class Runtime:
    """A runtime that does as it is answered. Pod i has CPU i for itself, if its class has such."""

    def __init__(self, kinds: list[str]) -> None:
        self.mirror, self.told, self.attempts = Mirror(RULES), NONE, 0
        self.kinds = kinds
        self.pods = [
            sandbox(one, qos, "Burstable" if qos else "BestEffort", str(one) if qos in OWN else "")
            for one, qos in enumerate(kinds)
        ]
        self.running: dict[str, tuple[int, str, int]] = {}  # container to its Pod, its name, and its CPUs

    def create(self, number: int, name: str) -> None:
        made = self._ask(number, name)
        self.mirror.started(made, self.told)

    def fail(self, number: int, name: str) -> None:
        """A creation that fails after it was answered; what was answered for others is lost."""
        before = dict(self.running)
        made = self._ask(number, name)
        self.running = {one: has for one, has in before.items() if has[:2] != (number, name)}
        self.mirror.removed(made.id)

    def _ask(self, number: int, name: str) -> Container:
        self.attempts += 1
        made = container(self.pods[number], name, self.attempts)
        answer = self.mirror.created(self.pods[number], made, self.told)
        self.remove(number, name, forgotten=True)
        for update in answer.updates:
            other, _, had = self.running[update.container]
            # The reporter may have written what its facts say.
            told = self.told.cpus.best_effort if self.kinds[other] in {"BE", ""} else self.told.cpus.shared
            assert update.cpus & ~(had | parse(told)) == 0, "it was widened"
            self._change(update)
        self.running[made.id] = number, name, answer.edits.cpus
        return made

    def _change(self, update: Update) -> None:
        number, name, _ = self.running[update.container]
        self.running[update.container] = number, name, update.cpus

    def remove(self, number: int, name: str, *, forgotten: bool = False) -> None:
        for identity in [one for one, has in self.running.items() if has[:2] == (number, name)]:
            del self.running[identity]
            if not forgotten:
                self.mirror.removed(identity)

    def end(self, number: int, _name: str) -> None:
        self.running = {one: has for one, has in self.running.items() if has[0] != number}
        self.mirror.sandbox_removed(self.pods[number].id)

    def tell(self, number: int, name: str) -> None:
        """Facts of any moment."""
        left = 0xFFFF & ~(1 << number if name == "a" else 0)
        self.told = facts(system=str(number), shared=format_cpuset(left))

    def find(self, _number: int, _name: str) -> None:
        found = [
            replace(container(self.pods[number], name), id=one, cpus=cpus, pid=1)
            for one, (number, name, cpus) in self.running.items()
        ]
        for update in self.mirror.synchronized(self.pods, found, self.told).updates:
            self._change(update)

    def check(self) -> None:
        holding = {number for number, _, _ in self.running.values() if self.kinds[number] in OWN}
        for number, _, cpus in self.running.values():
            lends = ("LSR",) if self.kinds[number] in {"BE", ""} else ()
            others = [one for one in holding if one != number and self.kinds[one] not in lends]
            assert cpus
            assert not any(cpus >> one & 1 for one in others)


@given(st.lists(KINDS, min_size=4, max_size=4), STEPS)
@settings(max_examples=examples(400), deadline=None)
def test_nobody_ever_runs_on_cpus_that_are_a_pods_own(kinds, steps) -> None:
    runtime = Runtime(kinds)
    for what, number, name in steps:
        getattr(runtime, what)(number, name)
        runtime.check()
