"""How a card reaches a container on a real node: NVIDIA's own runtime in each mode, its NRI plugin, or not at all.

The Pods are made by hand, with the variable or the annotation that a bind writes.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import pytest_asyncio
from node import images
from node.harness import Node
from node.nvidia import (
    CARDS,
    CONTROL,
    HANDLER,
    MANAGEMENT_KIND,
    MIGS,
    PLUGIN_KIND,
    REFRESHED_KIND,
    CgroupVersion,
    Toolkit,
    limits_in,
    nodes_of_mig,
)

from localplane.admin import AdminClient, JsonObject
from localplane.waiting import until

MIB = 2**20
NONE: frozenset[str] = frozenset()
CARD_NODES = frozenset({"nvidia0", "nvidia1", "nvidia2"})
ONE = frozenset({"nvidia1", *CONTROL})
TWO = frozenset({"nvidia1", "nvidia2", *CONTROL})
MIG = nodes_of_mig(1) | CONTROL
JIT = "runtime.nvidia.com/gpu"  # the kind of which the runtime itself makes a spec, for each container
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
GIVEN = "example.com/devices"
# First it lists what it has of NVIDIA's. Then it makes each card's node by itself, and tries to open it.
TELL = """
echo nodes $(find /dev -type c -name 'nvidia*' | sed 's|.*/||')
for card in 0 1 2; do mknod /card$card c 195 $card; (: < /card$card) 2>&1; done | grep -c 'Operation not permitted'
"""


def by(kind: str, *ids: str) -> str:
    return ",".join(f"{kind}={one}" for one in ids)


@dataclass(frozen=True)
class Seen:
    """What a container has: device nodes of NVIDIA's, and how many of the cards it may not open."""

    nodes: frozenset[str]
    refused: int


@dataclass(frozen=True)
class Case:
    """A container: what the bind gives it, and the device nodes that it is to have.

    Attributes:
        variable: Its NVIDIA_VISIBLE_DEVICES; None: it has none.
        annotations: On its Binding.
    """

    nodes: frozenset[str]
    variable: str | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


UNASKED = {
    "void": Case(NONE, "void"),
    "an empty variable, of a Pod bound around the webhook": Case(NONE, ""),
    "no variable": Case(NONE),
}
QUALIFIED = {
    "one card, qualified": Case(ONE, by(JIT, CARDS[1])),
    "two cards, qualified": Case(TWO, by(JIT, CARDS[1], CARDS[2])),
    "a MIG device, qualified": Case(MIG, by(JIT, MIGS[1])),
}
BARE = {
    "one card": Case(ONE, CARDS[1]),
    "two cards": Case(TWO, f"{CARDS[1]},{CARDS[2]}"),
    "a MIG device": Case(MIG, MIGS[1]),
}


def annotated(nodes: frozenset[str], value: str) -> Case:
    return Case(nodes, "void", {"nvidia.cdi.k8s.io/container.main": value})


BY_PLUGIN = {
    "one card": annotated(ONE, by(PLUGIN_KIND, CARDS[1])),
    "two cards": annotated(TWO, by(PLUGIN_KIND, CARDS[1], CARDS[2])),
    "a MIG device": annotated(MIG, by(PLUGIN_KIND, MIGS[1])),
    "another container's card": Case(NONE, "void", {"nvidia.cdi.k8s.io/container.other": by(PLUGIN_KIND, CARDS[1])}),
    "a card of the kind for management, in a namespace without that right": annotated(NONE, by(MANAGEMENT_KIND, "all")),
    **UNASKED,
}
UNREAD = {name: replace(case, nodes=NONE) for name, case in {**BARE, **QUALIFIED, **BY_PLUGIN}.items()}


def from_annotation(name: str, annotation: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}


def pod(name: str, case: Case, runtime_class: str | None) -> JsonObject:
    env = [] if case.variable is None else [from_annotation(VISIBLE, GIVEN)]
    container = {
        "name": "main",
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", TELL],
        "env": env,
    }
    spec = {"restartPolicy": "Never", "schedulerName": "nobody", "containers": [container]}
    spec |= {"runtimeClassName": runtime_class} if runtime_class else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def running(body: JsonObject) -> JsonObject:
    """The Pod, whose container runs until it is ended."""
    (main,) = body["spec"]["containers"]
    main["command"] = ["/bin/sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"]
    return body


@dataclass(frozen=True)
class Here:
    """The node, and a namespace for a test's Pods."""

    node: Node
    admin: AdminClient
    namespace: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def start(self, name: str, case: Case, runtime_class: str | None = HANDLER) -> None:
        await self.bind(pod(name, case, runtime_class), case)

    async def bind(self, body: JsonObject, case: Case) -> None:
        """Create a Pod, and bind it with what the case gives."""
        given = {} if case.variable is None else {GIVEN: case.variable}
        made = await self.admin.create(self.pods, body)
        await self.node.bind(made, {**given, **case.annotations})

    async def seen(self, cases: Mapping[str, Case], runtime_class: str | None = HANDLER) -> dict[str, Seen]:
        """What a container of each case has, by the case's name."""
        names = {f"case-{number}": name for number, name in enumerate(cases)}
        for pod_name, name in names.items():
            await self.start(pod_name, cases[name], runtime_class)
        return {name: await self._seen(pod_name) for pod_name, name in names.items()}

    async def _seen(self, pod_name: str) -> Seen:
        await self.node.phase(self.namespace, pod_name, "Succeeded", "Failed")
        nodes, refused = (await self.node.logs(self.namespace, pod_name, "main")).splitlines()
        return Seen(frozenset(nodes.split()[1:]), int(refused))

    async def failure(self, name: str) -> str:
        """Why a container was not created."""

        async def told() -> str:
            status = (await self.admin.get(f"{self.pods}/{name}"))["status"]
            kinds = ("initContainerStatuses", "containerStatuses")
            states = [one["state"] for kind in kinds for one in status.get(kind) or ()]
            return "".join(found.get("message", "") for state in states for found in state.values())

        return await until(told, f"{name} fails")


@pytest.fixture
def here(node: Node, node_admin: AdminClient, node_namespace: str) -> Here:
    return Here(node, node_admin, node_namespace)


pytestmark = pytest.mark.usefixtures("nvidia_class")


@pytest.fixture
def cgroups(nvidia_toolkit: Toolkit) -> Iterator[Callable[[CgroupVersion], None]]:
    """Set which version of cgroups NVIDIA's hook finds; v2 but for a test that says otherwise."""
    yield nvidia_toolkit.cgroups
    nvidia_toolkit.cgroups("v2")


@pytest_asyncio.fixture(loop_scope="session")
async def plugin(node: Node, nvidia_toolkit: Toolkit) -> AsyncIterator[None]:
    """NVIDIA's NRI plugin, connected to containerd."""
    async with nvidia_toolkit.nri_plugin(node.nri_socket):
        yield


def expected(cases: Mapping[str, Case]) -> dict[str, Seen]:
    return {name: Seen(case.nodes, len(CARDS) - len(CARD_NODES & case.nodes)) for name, case in cases.items()}


@pytest.mark.parametrize(
    ("mode", "default_kind", "cases"),
    [
        pytest.param("auto", REFRESHED_KIND, {**BARE, **QUALIFIED, **UNASKED}, id="auto"),
        pytest.param("cdi", MANAGEMENT_KIND, {**QUALIFIED, **UNASKED}, id="cdi, as the GPU operator sets it"),
        pytest.param("cdi", REFRESHED_KIND, BARE, id="cdi, with a kind that names cards"),
    ],
)
async def test_a_container_of_nvidias_runtime_has_the_cards_of_its_variable_and_cannot_open_others(
    here: Here, nvidia_toolkit: Toolkit, mode: str, default_kind: str, cases: dict[str, Case]
) -> None:
    nvidia_toolkit.configure(mode, default_kind)
    assert await here.seen(cases) == expected(cases)


async def test_a_runtime_that_reads_no_variable_of_unprivileged_containers_shows_no_card(
    here: Here, nvidia_toolkit: Toolkit
) -> None:
    nvidia_toolkit.configure("auto", unprivileged=False)
    cases = {name: replace(case, nodes=NONE) for name, case in {**BARE, **QUALIFIED}.items()}
    assert await here.seen(cases) == expected(cases)


async def test_in_mode_cdi_a_bare_card_fails_the_creation_under_the_operators_default_kind(
    here: Here, nvidia_toolkit: Toolkit
) -> None:
    nvidia_toolkit.configure("cdi", MANAGEMENT_KIND)
    await here.start("bare", BARE["one card"])
    assert f"unresolvable CDI devices {MANAGEMENT_KIND}={CARDS[1]}" in await here.failure("bare")


async def test_in_mode_legacy_the_hook_asks_for_what_the_variable_names(here: Here, nvidia_toolkit: Toolkit) -> None:
    nvidia_toolkit.configure("legacy")
    await here.seen({**BARE, **QUALIFIED, **UNASKED})
    named = [case.variable for case in (*BARE.values(), *QUALIFIED.values())]  # the latter libnvidia-container refuses
    assert sorted(nvidia_toolkit.asked()) == sorted(filter(None, named))


@pytest.mark.parametrize("mode", ["auto", "cdi"])
async def test_a_container_without_cards_is_what_it_would_be_under_runc(
    here: Here, nvidia_toolkit: Toolkit, mode: str
) -> None:
    nvidia_toolkit.configure(mode, MANAGEMENT_KIND)
    parts = []
    for name, runtime_class in (("plain", None), ("nvidia", HANDLER)):
        await here.bind(running(pod(name, UNASKED["void"], runtime_class)), UNASKED["void"])
        await here.node.phase(here.namespace, name, "Running")
        spec = await here.node.oci_spec(here.namespace, name, "main")
        linux = spec["linux"]
        mounts = [mount["destination"] for mount in spec["mounts"]]
        parts.append((spec.get("hooks"), linux.get("devices"), linux["resources"]["devices"], mounts))
    plain, by_nvidia = parts
    assert by_nvidia == plain


async def test_runc_shows_no_card_whatever_the_pod_says(here: Here) -> None:
    assert await here.seen(UNREAD, None) == expected(UNREAD)


async def test_where_nvidias_runtime_is_the_default_a_pod_needs_no_runtime_class(
    here: Here, nvidia_toolkit: Toolkit
) -> None:
    nvidia_toolkit.configure("auto")
    cases = {**BARE, **QUALIFIED, "void": UNASKED["void"]}
    async with here.node.defaulting_to(HANDLER):
        assert await here.seen(cases, None) == expected(cases)


@pytest.mark.parametrize("runtime_class", [None, HANDLER])
async def test_a_container_has_the_cards_that_nvidias_nri_plugin_reads_in_the_pods_annotation(
    here: Here, nvidia_toolkit: Toolkit, plugin: None, runtime_class: str | None
) -> None:
    nvidia_toolkit.configure("cdi", MANAGEMENT_KIND)
    assert await here.seen(BY_PLUGIN, runtime_class) == expected(BY_PLUGIN)


async def test_the_nri_plugin_fails_the_creation_for_a_card_that_no_spec_has(here: Here, plugin: None) -> None:
    await here.start("unknown", annotated(NONE, by(PLUGIN_KIND, "GPU-unknown")), None)
    assert f"unresolvable CDI devices {PLUGIN_KIND}=GPU-unknown" in await here.failure("unknown")


# Limits of memory, which NVIDIA's hook has the driver keep: the variables are those that a bind fills.

MEMORY = {
    "NVIDIA_GPU_MEMORY_REQUEST": "example.com/memory-request",
    "NVIDIA_GPU_MEMORY_REQUESTS": "example.com/memory-request",
    "NVIDIA_GPU_MEMORY_LIMIT": "example.com/memory-limit",
    "NVIDIA_GPU_MEMORY_LIMITS": "example.com/memory-limit",
}
TELL_LIMITS = "(echo start; cat /told/limits) >> /kept/starts"
ONCE_MORE = f"{TELL_LIMITS}; [ -e /kept/ran ] || {{ touch /kept/ran; exit 1; }}; cat /kept/starts"


def limited(case: Case, request: int | str, limit: int | str) -> Case:
    """A container that has limits of each of its cards, in MiB."""
    amounts = {"example.com/memory-request": str(request), "example.com/memory-limit": str(limit)}
    return replace(case, annotations={**case.annotations, **amounts})


def limited_pod(name: str, case: Case, runtime_class: str | None, told: Path) -> JsonObject:
    """A Pod of an init container and of a container that fails once; it tells the limits there were at each start."""
    made = pod(name, case, runtime_class)
    spec = made["spec"]
    (main,) = spec["containers"]
    main["command"] = ["/bin/sh", "-c", ONCE_MORE]
    main["env"] += [from_annotation(name, annotation) for name, annotation in MEMORY.items()]
    main["volumeMounts"] = [{"name": mounted, "mountPath": f"/{mounted}"} for mounted in ("told", "kept")]
    spec["volumes"] = [{"name": "told", "hostPath": {"path": str(told)}}, {"name": "kept", "emptyDir": {}}]
    spec["initContainers"] = [{**main, "name": "first", "command": ["/bin/sh", "-c", TELL_LIMITS]}]
    spec["restartPolicy"] = "OnFailure"
    return made


@pytest.mark.parametrize(
    ("case", "runtime_class", "cards"),
    [
        pytest.param(QUALIFIED["one card, qualified"], HANDLER, {1}, id="one card"),
        pytest.param(QUALIFIED["two cards, qualified"], HANDLER, {1, 2}, id="two cards"),
        pytest.param(BY_PLUGIN["two cards"], None, {1, 2}, id="two cards by the NRI plugin"),
        pytest.param(QUALIFIED["a MIG device, qualified"], HANDLER, set(), id="a MIG device, whose memory is its own"),
        pytest.param(UNASKED["void"], HANDLER, set(), id="no card"),
    ],
)
async def test_the_driver_keeps_a_containers_limits_before_its_first_instruction_and_after_a_restart(
    here: Here,
    nvidia_toolkit: Toolkit,
    plugin: None,
    case: Case,
    runtime_class: str | None,
    cards: set[int],
) -> None:
    nvidia_toolkit.configure("cdi", MANAGEMENT_KIND)
    for_init = {key.replace(".main", ".first"): value for key, value in case.annotations.items()}
    given = limited(replace(case, annotations={**case.annotations, **for_init}), 1024, 2048)

    before = (nvidia_toolkit.told / "limits").read_text()

    await here.bind(limited_pod("limited", given, runtime_class, nvidia_toolkit.told), given)
    await here.node.phase(here.namespace, "limited", "Succeeded")
    starts = (await here.node.logs(here.namespace, "limited", "main")).split("start\n")

    told = [set(limits_in(text)) for text in (before, *starts[1:])]
    new = [later - earlier for earlier, later in pairwise(told)]
    kept = {(card, 1024 * MIB, 2048 * MIB) for card in cards}
    assert [{(one.card, one.soft, one.hard) for one in limits} for limits in new] == [kept] * 3
    assert len({one.cgroup for limits in new for one in limits}) == (3 if cards else 0)


@pytest.mark.parametrize(
    ("version", "asked", "limit", "words"),
    [
        pytest.param("v1", "1024", "2048", "only supported in cgroup v2", id="cgroup v1"),
        pytest.param("v2", "", "", "failed to parse NVIDIA_GPU_MEMORY_REQUEST", id="no amounts"),
        pytest.param("v2", "2048", "1024", "memory request (2048 MiB) exceeds memory limit (1024 MiB)", id="crossed"),
        pytest.param("v2", "0", "90000", "failed to set memory limits", id="more than the card"),
    ],
)
async def test_a_container_whose_limits_cannot_be_kept_is_not_created(
    here: Here,
    nvidia_toolkit: Toolkit,
    cgroups: Callable[[CgroupVersion], None],
    version: CgroupVersion,
    asked: str,
    limit: str,
    words: str,
) -> None:
    nvidia_toolkit.configure("cdi", MANAGEMENT_KIND)
    cgroups(version)
    given = limited(QUALIFIED["one card, qualified"], asked, limit)
    await here.bind(limited_pod("refused", given, HANDLER, nvidia_toolkit.told), given)
    assert words in await here.failure("refused")


async def test_the_oci_spec_that_the_runtime_wrote_has_the_hook_for_each_card_and_the_amounts(
    here: Here, nvidia_toolkit: Toolkit
) -> None:
    nvidia_toolkit.configure("cdi", MANAGEMENT_KIND)
    given = limited(QUALIFIED["two cards, qualified"], 0, 2048)
    made = limited_pod("runs", given, HANDLER, nvidia_toolkit.told)

    await here.bind(running(made), given)
    await here.node.phase(here.namespace, "runs", "Running")
    spec = await here.node.oci_spec(here.namespace, "runs", "main")

    hooks = [hook["args"] for hook in spec["hooks"]["createRuntime"] if "apply-cuda-memory-limits" in hook["args"]]
    assert sorted(args[args.index("--gpu-id") + 1] for args in hooks) == sorted(CARDS[1:])
    env = dict(entry.split("=", 1) for entry in spec["process"]["env"])
    assert {name: env[name] for name in MEMORY} == {name: "2048" if "LIMIT" in name else "0" for name in MEMORY}
    assert env[VISIBLE] == "void"  # NVIDIA's edit replaces what the container was given
