"""`koordgate doctor --probe`: what a Pod shows of how its node gives cards, and that no Pod is left."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from commands import Koordgate
from doctor.test_checks import device, node, right_cluster, snapshot
from fake_kube import FakeKube, Where, answer, hold, lose_answer
from kubeconfigs import write_kubeconfig

from allocator.vocabulary.delivery import Delivery, Way
from allocator.vocabulary.holdings import Share
from console.doctor.checks import examine
from console.doctor.checks.delivery import Chosen, DeliveryProof, Result
from console.doctor.command import data, probe_table
from console.doctor.findings import Level
from console.doctor.probe import (
    Ending,
    Outcome,
    ProbePlan,
    Probes,
    Seen,
    Verdict,
    compared,
    cure,
    ending,
    late,
    probe_findings,
    probe_pod,
    read_seen,
    with_proofs,
)
from console.terminal import show
from koordgate.kube.client import KubeClient
from koordgate.kube.resource import CONFIG_MAPS, DEVICES, EVENTS, NODES, PODS, RUNTIME_CLASSES

Raw = dict[str, Any]
PROVED = "koordgate.io/delivery-proved"
BY_CLASS = Chosen(Way(Delivery.RUNTIME_CLASS, "runtime.nvidia.com/gpu"), "nvidia")
BY_ENVIRONMENT = Chosen(Way(Delivery.ENVIRONMENT))
BY_NRI = Chosen(Way(Delivery.NVIDIA_NRI, "nvidia.com/gpu"))
NO_WAY = Chosen(Way(None, why_not="has a default runtime that shows containers no cards: create a RuntimeClass"))
CARD, OTHER = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
GIVEN = (Share("gpu", CARD, 1, {}),)


def wrote(*minors: int, smi: str = "") -> str:
    """The message of a container whose command ran to its end."""
    nodes = "".join(f"/dev/nvidia{minor} {minor}\n" for minor in minors)
    return f"koordgate-probe-begin\n{smi}koordgate-probe-devices\n{nodes}koordgate-probe-end\n"


def listed_card(at: int, uuid: str) -> str:
    return f"GPU {at}: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n"


# What the Pod is


def test_the_pod_asks_for_the_least_of_a_card_on_one_node_whose_taints_it_tolerates() -> None:
    taints = [
        {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"},
        {"key": "k", "effect": "NoExecute"},
    ]
    made = probe_pod(
        "koordgate-probe-x-0", {"metadata": {"name": "n1"}, "spec": {"taints": taints}}, "busybox", "x", 90.5
    )
    spec = made["spec"]
    (container,) = spec["containers"]
    assert made["metadata"]["name"] == "koordgate-probe-x-0"
    assert made["metadata"]["labels"] == {"app.kubernetes.io/name": "koordgate-probe", "koordgate.io/probe": "x"}
    assert container["resources"]["limits"] == {"kubernetes.io/gpu-memory-ratio": "1"}
    assert (container["image"], container["command"][:2]) == ("busybox", ["/bin/sh", "-c"])
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
    assert spec["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "k", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"]) == ("Never", 90)
    assert spec["securityContext"]["runAsNonRoot"] is True


async def test_the_command_lists_the_device_nodes_of_cards_by_minor_number_and_what_nvidia_smi_says(
    tmp_path: Path,
) -> None:
    """The very command, with other folders: character devices that every machine has, and an nvidia-smi of its own."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "dev").mkdir()
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\nprintf '%s' '{listed_card(0, CARD)}'\n")
    smi.chmod(0o755)
    (tmp_path / "dev" / "nvidia0").symlink_to("/dev/null")
    (tmp_path / "dev" / "nvidia7").write_text("no device")
    (tmp_path / "dev" / "nvidiactl").symlink_to("/dev/null")
    script = probe_pod("p", node("n1"), "busybox", "x", 60)["spec"]["containers"][0]["command"][2]
    script = script.replace("/dev/termination-log", str(tmp_path / "log")).replace(
        "/dev/nvidia", f"{tmp_path}/dev/nvidia"
    )
    script = script.replace("ls -ln", "ls -lnL")  # a device node of its own would need root
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    ran = await asyncio.create_subprocess_exec("/bin/sh", "-c", script, env=env, stdout=asyncio.subprocess.PIPE)
    out, _ = await ran.communicate()
    said = out.decode().replace(str(tmp_path), "")
    assert ran.returncode == 0
    assert read_seen(said) == Seen((3,), (CARD,))  # /dev/null is 1, 3


SAID: dict[str, tuple[str, Seen | None]] = {
    "nothing": ("", None),
    "no card": (wrote(), Seen()),
    "two cards": (wrote(7, 0), Seen((0, 7))),
    "with nvidia-smi": (wrote(1, smi=listed_card(0, CARD)), Seen((1,), (CARD,))),
    "an nvidia-smi that fails": (wrote(1, smi="NVIDIA-SMI has failed\n\n"), Seen((1,))),
    "cut at its beginning": (wrote(1, smi=listed_card(0, CARD))[40:], Seen((1,))),
    "cut at its end": (wrote(1)[:-10], None),
    "something behind it": (wrote(1) + "more", None),
    "a minor that is none": (wrote(1).replace("nvidia1 1", "nvidia1 x"), Seen()),
    "a name in place of a UUID": (wrote(1, smi="GPU 0: x (UUID: GPU-a b)\n"), Seen((1,))),
    "more than the kubelet keeps": (" " * 4096 + wrote(1), None),
}


@pytest.mark.parametrize(("message", "seen"), SAID.values(), ids=SAID)
def test_what_a_container_wrote_is_read_if_its_command_ran_to_its_end(message: str, seen: Seen | None) -> None:
    assert read_seen(message) == seen


# How it ends


def in_state(node_name: str = "n1", phase: str = "Pending", reason: str = "", **state: Mapping[str, Any]) -> Raw:
    statuses = [{"name": "main", "state": state}] if state else []
    spec = {"nodeName": node_name} if node_name else {}
    return {"metadata": {}, "spec": spec, "status": {"phase": phase, "reason": reason, "containerStatuses": statuses}}


def unscheduled(reason: str, message: str) -> Raw:
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {"metadata": {}, "spec": {}, "status": {"conditions": [{"type": "Ready"}, condition]}}


NO_SHELL = 'exec: "/bin/sh": stat /bin/sh: no such file or directory: unknown'
UNRESOLVABLE = "unresolvable CDI devices management.nvidia.com/gpu=GPU-1"
ENDINGS: dict[str, tuple[Raw, Ending | None]] = {
    "waits for its node": ({"metadata": {}, "spec": {}}, None),
    "tried again": (unscheduled("SchedulerError", "no answer"), None),
    "refused": (unscheduled("Unschedulable", "0/1 nodes:  full"), Ending(Verdict.NOT_PLACED, "0/1 nodes: full")),
    "bound": (in_state(), None),
    "pulled": (in_state(waiting={"reason": "ContainerCreating"}), None),
    "pulled again": (in_state(waiting={"reason": "ErrImagePull", "message": "x"}), None),
    "no image": (
        in_state(waiting={"reason": "ImagePullBackOff", "message": "not found"}),
        Ending(Verdict.NOT_RUN, "ImagePullBackOff: not found"),
    ),
    "no container": (
        in_state(waiting={"reason": "CreateContainerError", "message": UNRESOLVABLE}),
        Ending(Verdict.NOT_CREATED, f"CreateContainerError: {UNRESOLVABLE}"),
    ),
    "a container that cannot start": (
        in_state(waiting={"reason": "RunContainerError", "message": "hook"}),
        Ending(Verdict.NOT_CREATED, "RunContainerError: hook"),
    ),
    "a wrong configuration": (
        in_state(waiting={"reason": "CreateContainerConfigError", "message": "no"}),
        Ending(Verdict.NOT_RUN, "CreateContainerConfigError: no"),
    ),
    "runs": (in_state(phase="Running", running={}), None),
    "saw a card": (
        in_state(phase="Succeeded", terminated={"exitCode": 0, "reason": "Completed", "message": wrote(1)}),
        Ending(Verdict.RIGHT, seen=Seen((1,))),
    ),
    "was not begun": (
        in_state(
            phase="Failed", terminated={"exitCode": 128, "reason": "StartError", "message": "nvidia-container-cli"}
        ),
        Ending(Verdict.NOT_CREATED, "StartError: nvidia-container-cli"),
    ),
    "has no shell": (
        in_state(phase="Failed", terminated={"exitCode": 128, "reason": "StartError", "message": NO_SHELL}),
        Ending(Verdict.NOT_RUN, f"StartError: {NO_SHELL}"),
    ),
    "failed": (
        in_state(phase="Failed", terminated={"exitCode": 2, "reason": "Error", "message": "x" * 500}),
        Ending(Verdict.NOT_RUN, f"its command ended with 2 (Error: {'x' * 396} ...)"),
    ),
    "evicted": (in_state(phase="Failed", reason="Evicted"), Ending(Verdict.NOT_RUN, "Evicted")),
}


@pytest.mark.parametrize(("pod", "end"), ENDINGS.values(), ids=ENDINGS)
def test_a_pod_that_gets_no_further_is_told_from_one_that_is_on_its_way(pod: Raw, end: Ending | None) -> None:
    assert ending(pod) == end


def event(reason: str, message: str, kind: str = "Warning") -> Raw:
    return {"type": kind, "reason": reason, "message": message}


SANDBOX = [event("Old", "gone"), event("FailedCreatePodSandBox", 'no runtime for "nvidia" is configured')]
LATE: dict[str, tuple[Raw, list[Raw], Verdict, str]] = {
    "no scheduler": (in_state(""), [], Verdict.NOT_PLACED, "it waits for its node after 9 s: koord-scheduler has said"),
    "a scheduler's error": (unscheduled("SchedulerError", "no answer"), [], Verdict.NOT_PLACED, "9 s: no answer"),
    "a bind that is refused": (
        in_state(""),
        [event("FailedScheduling", "denied"), event("Pulled", "x", "Normal")],
        Verdict.NOT_PLACED,
        "9 s: FailedScheduling: denied",
    ),
    "no kubelet": (in_state(), [], Verdict.NOT_RUN, "the kubelet has said nothing of it"),
    "a slow pull": (in_state(waiting={"reason": "ContainerCreating"}), [], Verdict.NOT_RUN, "9 s: ContainerCreating"),
    "a handler that is not there": (in_state(), SANDBOX, Verdict.NOT_CREATED, "FailedCreatePodSandBox: no runtime for"),
    "a slow command": (in_state(running={}), [], Verdict.NOT_RUN, "its command still runs after 9 s"),
}


@pytest.mark.parametrize(("pod", "events", "verdict", "words"), LATE.values(), ids=LATE)
def test_a_pod_whose_time_is_over_is_told_with_what_was_said_of_it(
    pod: Raw, events: list[Raw], verdict: Verdict, words: str
) -> None:
    end = late(pod, events, 9.4)
    assert end.verdict is verdict
    assert words in end.why


COMPARED: dict[str, tuple[tuple[Share, ...], Seen, Verdict, str]] = {
    "the node of the card": (GIVEN, Seen((1,)), Verdict.RIGHT, ""),
    "the card by UUID too": (GIVEN, Seen((1,), (CARD,)), Verdict.RIGHT, ""),
    "a minor that is an index": (GIVEN, Seen((0,), (CARD,)), Verdict.RIGHT, ""),
    "nothing": (GIVEN, Seen(), Verdict.MISSING, "the container lacks /dev/nvidia1"),
    "another": (GIVEN, Seen((2,)), Verdict.MISSING, "lacks /dev/nvidia1, and sees /dev/nvidia2"),
    "another by UUID": (GIVEN, Seen((1,), (OTHER,)), Verdict.MISSING, f"lacks {CARD}, and sees {OTHER}"),
    "all nodes": (GIVEN, Seen((0, 1, 2)), Verdict.OTHERS, "sees /dev/nvidia0, /dev/nvidia1, /dev/nvidia2"),
    "all by UUID": (GIVEN, Seen((1,), (CARD, OTHER)), Verdict.OTHERS, f"given {CARD}, and sees {CARD}, {OTHER}"),
    "nodes that nvidia-smi may not open": (GIVEN, Seen((0, 1), (CARD,)), Verdict.OTHERS, "sees /dev/nvidia0"),
    "without an allocation": ((), Seen((1,)), Verdict.NOT_GIVEN, "device-allocated names none"),
}


@pytest.mark.parametrize(("given", "seen", "verdict", "words"), COMPARED.values(), ids=COMPARED)
def test_what_a_container_saw_is_compared_with_what_it_was_given(
    given: tuple[Share, ...], seen: Seen, verdict: Verdict, words: str
) -> None:
    one = compared("n1", BY_CLASS, given, Ending(Verdict.RIGHT, seen=seen))
    assert one.verdict is verdict
    assert words in one.why
    assert bool(one.why) is (verdict is not Verdict.RIGHT)


CURES: dict[str, tuple[Chosen, Verdict, str, Level, str]] = {
    "right": (BY_CLASS, Verdict.RIGHT, "", Level.OK, ""),
    "without, by environment": (BY_ENVIRONMENT, Verdict.MISSING, "x", Level.FAILURE, "create RuntimeClass nvidia"),
    "without, by class": (BY_CLASS, Verdict.MISSING, "x", Level.FAILURE, "-envvar-when-unprivileged = false"),
    "without, by NRI": (BY_NRI, Verdict.MISSING, "x", Level.FAILURE, "NRI plugin is not at work"),
    "without, by no way": (NO_WAY, Verdict.MISSING, "x", Level.FAILURE, "the lines about delivery"),
    "others": (BY_CLASS, Verdict.OTHERS, "x", Level.FAILURE, "Pods privileged or mount /dev"),
    "a bare UUID in mode cdi": (BY_CLASS, Verdict.NOT_CREATED, UNRESOLVABLE, Level.FAILURE, "a bare UUID is no name"),
    "no such CDI device": (
        BY_NRI,
        Verdict.NOT_CREATED,
        "unresolvable CDI devices nvidia.com/gpu=GPU-1",
        Level.FAILURE,
        "nvidia-ctk cdi generate",
    ),
    "no handler": (BY_CLASS, Verdict.NOT_CREATED, 'no runtime for "nvidia"', Level.FAILURE, "runtime configure"),
    "an old toolkit": (
        BY_CLASS,
        Verdict.NOT_CREATED,
        "device error: x: unknown device",
        Level.FAILURE,
        "before NVIDIA",
    ),
    "no driver": (
        BY_CLASS,
        Verdict.NOT_CREATED,
        "nvidia-container-cli: x",
        Level.FAILURE,
        "run nvidia-smi on the node",
    ),
    "another failure": (BY_CLASS, Verdict.NOT_CREATED, "x", Level.FAILURE, "logs of kubelet"),
    "no allocation": (BY_CLASS, Verdict.NOT_GIVEN, "x", Level.FAILURE, "which scheduler"),
    "no way": (NO_WAY, Verdict.NOT_PLACED, "1 node-1: the node has a default runtime", Level.UNKNOWN, "create a R"),
    "full": (BY_CLASS, Verdict.NOT_PLACED, "0/1 nodes: full", Level.UNKNOWN, "that is no fault"),
    "no shell": (BY_CLASS, Verdict.NOT_RUN, NO_SHELL, Level.UNKNOWN, "an image that has /bin/sh"),
    "no image": (BY_CLASS, Verdict.NOT_RUN, "ImagePullBackOff: x", Level.UNKNOWN, "that the node can pull"),
    "shadow": (BY_CLASS, Verdict.NOT_RUN, "koordgate leaves Pods of this namespace alone", Level.UNKNOWN, "--try-in"),
    "late": (BY_CLASS, Verdict.NOT_RUN, "its command still runs", Level.UNKNOWN, "kubectl describe node"),
}


@pytest.mark.parametrize(("found", "verdict", "why", "level", "words"), CURES.values(), ids=CURES)
def test_each_outcome_is_told_with_what_to_do(
    found: Chosen, verdict: Verdict, why: str, level: Level, words: str
) -> None:
    one = Outcome("n1", found, verdict, why)
    (told,) = probe_findings([one])
    assert (told.level, told.area) == (level, "probe")
    assert "1 node (n1)" in told.what
    assert why in told.what
    assert words in told.todo == cure(one)
    assert bool(told.todo) is (verdict is not Verdict.RIGHT)


def test_alike_outcomes_are_one_line_and_each_node_is_a_row_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    right = [Outcome(f"n{at}", BY_CLASS, Verdict.RIGHT, "", GIVEN, Seen((1,), (CARD,))) for at in range(3)]
    bad = [
        Outcome("m1", BY_ENVIRONMENT, Verdict.MISSING, "the container lacks /dev/nvidia1", GIVEN, Seen()),
        Outcome("m2", BY_ENVIRONMENT, Verdict.MISSING, "the container lacks /dev/nvidia4", GIVEN, Seen()),
        Outcome("m3", NO_WAY, Verdict.NOT_PLACED, "full"),
    ]
    by_class = "runtimeClass nvidia (its runtime reads the variable), as runtime.nvidia.com/gpu=UUID"
    default = "environment (the default runtime reads the variable)"
    assert [one.what for one in probe_findings([*right, *bad])] == [
        f"a container got the card that it was given, and no other, on 3 nodes (n0, n1, n2), by {by_class}",
        f"a container runs without its card on 2 nodes (m1, m2), by {default}: the container lacks /dev/nvidia1",
        "no Pod could be placed on 1 node (m3): full",
    ]
    show(probe_table([right[0], *bad]))
    rows = capsys.readouterr().out.splitlines()
    assert [row.split() for row in rows] == [
        ["NODE", "WAY", "GIVEN", "SEEN", "VERDICT"],
        ["n0", "runtimeClass", "/dev/nvidia1", CARD, "/dev/nvidia1", CARD, "right"],
        ["m1", "environment", "/dev/nvidia1", CARD, "no", "card", "without", "its", "card"],
        ["m2", "environment", "/dev/nvidia1", CARD, "no", "card", "without", "its", "card"],
        ["m3", "none", "-", "-", "not", "placed"],
    ]
    first, *_, last = data([], 0, [right[0], bad[2]])["probe"]
    assert first == {
        "node": "n0",
        "way": "runtimeClass",
        "runtimeClass": "nvidia",
        "given": [{"minor": 1, "uuid": CARD}],
        "seen": {"minors": [1], "uuids": [CARD]},
        "verdict": "right",
        "why": "",
    }
    assert (last["way"], last["seen"], last["why"]) == (None, None, "full")
    assert "probe" not in data([], 0)


# The run


class Cluster(FakeKube):
    """An API server whose webhooks, scheduler and kubelets act at once on the Pods of probes."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, str] = {}  # of containers, by node; others never run
        self.refused: dict[str, str] = {}  # nodes on which the scheduler places nothing
        self.scheduler = "koord-scheduler"
        self.most = 0  # Pods at a time
        self.created: list[Raw] = []

    def _create(self, where: Where, obj: Raw, *, dry: bool) -> Raw:
        if where.plural == "subjectaccessreviews":
            return {**obj, "status": {"allowed": True}}
        if where.plural != "pods" or dry:
            return super()._create(where, obj, dry=dry)
        (term,) = obj["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        on = term["matchFields"][0]["values"][0]
        obj["spec"] |= {"schedulerName": self.scheduler, "runtimeClassName": "nvidia"}
        if on in self.refused:
            obj |= {"status": unscheduled("Unschedulable", self.refused[on])["status"]}
        else:
            allocated = {"gpu": [{"minor": 1, "id": CARD, "resources": {"kubernetes.io/gpu-memory-ratio": "1"}}]}
            obj["metadata"]["annotations"]["scheduling.koordinator.sh/device-allocated"] = json.dumps(allocated)
            obj["spec"]["nodeName"] = on
            if on in self.messages:
                state = {"terminated": {"exitCode": 0, "reason": "Completed", "message": self.messages[on]}}
                obj["status"] = {"phase": "Succeeded", "containerStatuses": [{"name": "main", "state": state}]}
        made = super()._create(where, obj, dry=dry)
        self.created.append(made)
        self.most = max(self.most, len(self.objects(PODS.path())))
        return made


@dataclass
class Run:
    """A run of probes.

    Attributes:
        fake: the API server.
        kube: its client.
        told: what was told of each node as it came.
    """

    fake: Cluster
    kube: KubeClient
    told: list[tuple[str, int, int]] = field(default_factory=list)

    def probes(self, *nodes: str, timeout: float = 30.0, **about: Raw) -> Probes:
        cluster = right_cluster()
        cluster["nodes"] = [node(name, **about.get(name, {})) for name in nodes]
        cluster["devices"] = [device(name) for name in nodes]
        for name in nodes:
            self.fake.put(NODES.path(), {"metadata": {"name": name}})
        plan = ProbePlan("busybox", "team", timeout, every=0.01)
        tell = self.told.append
        return Probes(self.kube, plan, snapshot(cluster), lambda one, at, of: tell((one.node, at, of)))

    def proof(self, name: str) -> DeliveryProof | None:
        noted = self.fake.get(NODES.path(name))["metadata"].get("annotations") or {}
        return DeliveryProof.read(noted.get(PROVED))


@pytest.fixture
async def run() -> AsyncIterator[Run]:
    async with Cluster() as fake, KubeClient(fake.url) as kube:
        yield Run(fake, kube)
        assert fake.objects(PODS.path()) == []  # whatever a test does, no Pod is left


async def test_each_node_is_probed_recorded_and_cleared(run: Run) -> None:
    run.fake.messages = {"right": wrote(1), "missing": wrote(), "others": wrote(0, 1)}
    run.fake.refused = {"full": "0/1 nodes are available: full"}
    away = {"ready": False}
    probes = run.probes("right", "missing", "others", "full", "away", away=away)
    found = {one.node: one for one in await probes.run()}
    assert {name: one.verdict for name, one in found.items()} == {
        "away": Verdict.NOT_RUN,
        "full": Verdict.NOT_PLACED,
        "missing": Verdict.MISSING,
        "others": Verdict.OTHERS,
        "right": Verdict.RIGHT,
    }
    way = found["right"].found.way
    assert (way.delivery, way.kind) == (BY_CLASS.way.delivery, BY_CLASS.way.kind)
    assert found["right"].given[0].id == CARD
    proofs = {name: run.proof(name) for name in found}
    assert {name: proof.result for name, proof in proofs.items() if proof} == {
        "missing": Result.MISSING,
        "others": Result.OTHERS,
        "right": Result.RIGHT,
    }
    assert proofs["right"] is not None
    assert proofs["right"] == replace(found["right"].proof or pytest.fail("no proof"), at=proofs["right"].at)
    assert (proofs["right"].way, proofs["right"].image) == ("runtimeClass", "busybox")
    assert sorted(one[1:] for one in run.told) == [(at, 5) for at in range(1, 6)]
    assert {Where.of(one.path).namespace for one in run.fake.seen("delete", "pods")} == {"team"}
    assert len({one["metadata"]["labels"]["koordgate.io/probe"] for one in run.fake.created}) == 1
    assert probes.problems == []


async def test_no_more_than_eight_nodes_are_probed_at_a_time(run: Run) -> None:
    names = [f"n{at}" for at in range(20)]
    run.fake.messages = dict.fromkeys(names, wrote(1))
    assert {one.verdict for one in await run.probes(*names).run()} == {Verdict.RIGHT}
    assert run.fake.most <= 8
    assert len(run.fake.created) == 20


async def test_a_pod_whose_time_is_over_is_told_with_its_last_warning(run: Run) -> None:
    probes = run.probes("n1", timeout=0.0)
    fault = hold()
    run.fake.faults.add("list", "events", fault)
    running = asyncio.create_task(probes.run())
    await fault.reached.wait()
    uid = run.fake.created[0]["metadata"]["uid"]
    for at, (who, reason) in enumerate([(uid, "FailedMount"), (uid, "FailedCreatePodSandBox"), ("another", "Failed")]):
        about = {"metadata": {"name": f"e{at}"}, "involvedObject": {"uid": who}, "lastTimestamp": f"2026-01-0{at + 1}"}
        run.fake.put(EVENTS.path(namespace="team"), {**about, **event(reason, f"{reason} of {who}")})
    assert fault.gate is not None
    fault.gate.set()
    (one,) = await running
    assert (one.verdict, one.why) == (Verdict.NOT_CREATED, f"FailedCreatePodSandBox: FailedCreatePodSandBox of {uid}")


async def test_events_that_may_not_be_read_are_left_out(run: Run) -> None:
    run.fake.faults.always("list", "events", answer(403, "not for you"))
    (one,) = await run.probes("n1", timeout=0.0).run()
    assert (one.verdict, one.why) == (
        Verdict.NOT_RUN,
        "its container does not run after 0 s: the kubelet has said nothing of it",
    )


async def test_a_namespace_that_koordgate_leaves_alone_proves_nothing(run: Run) -> None:
    run.fake.scheduler = "default-scheduler"
    (one,) = await run.probes("n1").run()
    assert (one.verdict, one.why) == (Verdict.NOT_RUN, "koordgate leaves Pods of this namespace alone")
    assert run.proof("n1") is None


@pytest.mark.parametrize(
    ("code", "verdict"), [(403, Verdict.NOT_PLACED), (422, Verdict.NOT_PLACED), (500, Verdict.NOT_RUN)]
)
async def test_a_pod_that_cannot_be_created_is_told(run: Run, code: int, verdict: Verdict) -> None:
    run.fake.faults.always("create", "pods", answer(code, "quota"))
    (one,) = await run.probes("n1").run()
    assert one.verdict is verdict
    assert "quota" in one.why


async def test_a_pod_whose_creation_was_not_answered_is_deleted_all_the_same(run: Run) -> None:
    run.fake.faults.add("create", "pods", lose_answer())
    (one,) = await run.probes("n1").run()
    assert one.verdict is Verdict.NOT_RUN
    assert len(run.fake.seen("delete", "pods")) == 1


async def test_a_pod_of_somebody_else_is_not_deleted_though_it_has_the_name(run: Run) -> None:
    fault = hold()
    run.fake.faults.add("create", "pods", fault)
    running = asyncio.create_task(run.probes("n1").run())
    await fault.reached.wait()
    name = json.loads(run.fake.seen("create", "pods")[0].body)["metadata"]["name"]
    run.fake.put(PODS.path(namespace="team"), {"metadata": {"name": name, "labels": {"koordgate.io/probe": "no"}}})
    assert fault.gate is not None
    fault.gate.set()
    (one,) = await running
    assert one.verdict is Verdict.NOT_PLACED
    assert "already exists" in one.why
    assert run.fake.seen("delete", "pods") == []
    run.fake.remove(PODS.path(name, "team"))


async def test_a_pod_that_somebody_deletes_is_told(run: Run) -> None:
    fault = hold()
    run.fake.faults.add("get", "pods", fault)
    running = asyncio.create_task(run.probes("n1").run())
    await fault.reached.wait()
    run.fake.remove(PODS.path(run.fake.created[0]["metadata"]["name"], "team"))
    assert fault.gate is not None
    fault.gate.set()
    (one,) = await running
    assert (one.verdict, one.why) == (Verdict.NOT_RUN, "somebody deleted the Pod")


async def test_no_pod_is_left_when_the_run_is_cancelled(run: Run) -> None:
    running = asyncio.create_task(run.probes(*(f"n{at}" for at in range(10))).run())
    await run.fake.until(lambda: len(run.fake.created) == 8)
    assert len(run.fake.objects(PODS.path())) == 8
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(run.fake.created) == 8
    assert len(run.fake.seen("delete", "pods")) == 8


async def test_what_cannot_be_deleted_or_recorded_is_told_with_what_to_do(run: Run) -> None:
    run.fake.messages = {"n1": wrote(1)}
    run.fake.faults.always("delete", "pods", answer(403, "not for you"))
    run.fake.faults.always("patch", "nodes", answer(403, "not for you"))
    probes = run.probes("n1")
    (one,) = await probes.run()
    assert one.verdict is Verdict.RIGHT
    left, unrecorded = probes.problems
    name = run.fake.created[0]["metadata"]["name"]
    assert left.todo == f"kubectl -n team delete pod {name}"
    assert unrecorded.what == "on n1 it could not be recorded: not for you"
    run.fake.remove(PODS.path(name, "team"))


async def test_what_was_proved_is_seen_by_the_checks_at_once_and_an_old_proof_is_forgotten() -> None:
    cluster = right_cluster()
    cluster["devices"] = [device(name, '{"handlers":["runc","nvidia"]}') for name in ("node-1", "node-2")]
    cluster["runtimes"] = []
    old = '{"time":"2026-01-01T00:00:00Z","way":"environment","result":"right","image":"x"}'
    for one in cluster["nodes"]:
        one["metadata"]["annotations"][PROVED] = old
    proof = DeliveryProof.read(old)
    assert proof is not None
    outcomes = [
        Outcome("node-1", BY_ENVIRONMENT, Verdict.RIGHT, proof=proof),
        Outcome("node-2", BY_ENVIRONMENT, Verdict.MISSING, proof=replace(proof, result=Result.MISSING)),
    ]
    unknown = "it is not known whether containers get their cards on 1 node (node-2)"
    told = [one.what for one in examine(with_proofs(snapshot(cluster), outcomes)) if one.area == "delivery"]
    assert told == [
        "containers get their cards on 1 node (node-1) by environment (the default runtime reads the variable)",
        f"{unknown}; environment is taken for granted: what is told of its runtime does not show it",
        "Pods proved it on 1 of 2 nodes, each at 2026-01-01 00:00 UTC or later",
    ]


async def test_the_command_probes_the_nodes_of_the_cluster(
    run: Run, koordgate: Koordgate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, run.fake.url)))
    run.fake.discovery["/version"] = {"gitVersion": "v1.36.3"}
    settings = {"metadata": {"name": "koordgate"}, "data": {"config.yaml": "mode: enforce\n"}}
    run.fake.put(CONFIG_MAPS.path(namespace="koordgate-system"), settings)
    run.fake.put(RUNTIME_CLASSES.path(), {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
    run.fake.messages = {"n1": wrote(1), "n2": wrote()}
    for name in ("n1", "n2"):
        state = {"conditions": [{"type": "Ready", "status": "True"}]}
        run.fake.put(NODES.path(), {"metadata": {"name": name}, "status": state})
        noted = {"name": name, "annotations": device(name)["metadata"]["annotations"]}
        card = {"type": "gpu", "minor": 1, "id": CARD, "resources": {"koordinator.sh/gpu-memory": "80Gi"}}
        run.fake.put(DEVICES.path(), {"metadata": noted, "spec": {"devices": [card]}})
    said = await koordgate("doctor", "--probe", "busybox", "-o", "json")
    found = json.loads(said.out)
    assert said.status == found["exitStatus"] == 2
    assert [(one["node"], one["verdict"]) for one in found["probe"]] == [("n1", "right"), ("n2", "without its card")]
    probed = [(one["level"], one["what"].partition(" on ")[0]) for one in found["findings"] if one["area"] == "probe"]
    assert probed == [
        ("ok", "a container got the card that it was given, and no other,"),
        ("failure", "a container runs without its card"),
    ]
    lines = [line.removeprefix("koordgate doctor: ") for line in said.err.splitlines()]
    assert lines[0] == "2 nodes with NVIDIA cards to probe, 8 at a time"
    assert sorted(line.partition(": ")[2] for line in lines[1:]) == ["n1: right", "n2: without its card"]
    run.fake.remove(CONFIG_MAPS.path("koordgate", "koordgate-system"))
    said = await koordgate("doctor", "--probe", "busybox", "-o", "json")
    assert "no node was probed" in said.out
    assert "probe" not in json.loads(said.out)
