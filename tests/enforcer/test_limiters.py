"""What keeps a container to its part of its cards, by provider; and what happens where nothing does."""

from dataclasses import replace
from typing import Any

import pytest
from enforcing import CARDS, FACTS, NVIDIA_CDI, ONE, RULES, TWO, container, sandbox
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from trials import examples

from reporter.enforcer.decide import devices, rules_of
from reporter.enforcer.limits import Rules
from reporter.enforcer.mirror import Mirror
from reporter.enforcer.model import Answer, CardLimit, Mount, MpsShare
from reporter.exchange import CardState, Facts
from reporter.settings import parse

MIB = 2**20
REQUIRE = {"koordgate.io/limits": "require"}
REQUEST, LIMIT, CORE = (
    "nvidia-gpu-memory-request.koordgate.io",
    "nvidia-gpu-memory-limit.koordgate.io",
    "gpu-core-limit.koordgate.io",
)


def facts(provider: str, **rest: Any) -> Facts:
    return structs.replace(FACTS, provider=provider, kinds=NVIDIA_CDI, **rest)


CGROUP, HAMI, MPS = facts("cgroup"), facts("HAMi-core"), facts("mps")


def part(name: str = "main", cards: str = ONE, mib: int = 1024, request: int = 0, core: int = 0) -> dict[str, str]:
    """The annotations of a container with a part of its cards, which only the enforcer brings."""
    found = {f"nri.koordgate.io/{name}": cards, f"visible-devices.koordgate.io/{name}": "void"}
    found |= {f"{LIMIT}/{name}": str(mib), f"{REQUEST}/{name}": str(request)} if mib else {}
    return found | ({f"{CORE}/{name}": str(core)} if core else {})


def holds(card: str, mib: int) -> dict[str, str]:
    """The annotation of a Pod that holds a part of a card."""
    entry = f'{{"minor":0,"resources":{{"kubernetes.io/gpu-memory":"{mib}Mi"}},"id":"{card}"}}'
    return {"scheduling.koordinator.sh/device-allocated": f'{{"gpu":[{entry}]}}'}


def created(
    told: Facts, annotations: dict[str, str], rules: Rules = RULES, stated: dict[str, str] | None = None
) -> Answer:
    pod = sandbox(more=annotations)
    environment = {"NVIDIA_VISIBLE_DEVICES": "void"} | (stated or {})
    return Mirror(rules).created(pod, container(pod, environment=environment), told)


# the driver's limits of cgroups

POD = "/sys/fs/cgroup/kubepods/burstable/podu1"
OF_POD = {
    "one container: its limit": ({**part(), **holds(ONE, 1024)}, {ONE: 1024}),
    "two cards: the limit of each": (part(cards=f"{ONE},{TWO}"), {ONE: 1024, TWO: 1024}),
    "two containers: both": ({**part(), **part("log", mib=512)}, {ONE: 1536}),
    "two containers at once: both": ({**part(), **part("log", mib=512), **holds(ONE, 1536)}, {ONE: 1536}),
    "two containers one after another: what the Pod holds": (
        {**part(), **part("init", mib=512), **holds(ONE, 1024)},
        {ONE: 1024},
    ),
    "no less than a container's own": ({**part(), **part("init", mib=512), **holds(ONE, 100)}, {ONE: 1024}),
    "with limits above what is held: all that they may use": (
        {**part(mib=2048, request=1024), **part("log", mib=512), **holds(ONE, 1536)},
        {ONE: 2560},
    ),
    "no more than the card has": (
        {**part(mib=50 * 1024, request=1), **part("log", mib=50 * 1024, request=1)},
        {ONE: 80 * 1024},
    ),
    "of another's cards nothing": ({**part(), **part("log", cards=TWO, mib=512)}, {ONE: 1024}),
    "beside a container that only shows the card": (
        {**part(), "visible-devices.koordgate.io/log": ONE, f"{LIMIT}/log": "256"},
        {ONE: 1280},
    ),
}


@pytest.mark.parametrize(("annotations", "hard"), OF_POD.values(), ids=OF_POD)
def test_the_pods_cgroup_gets_a_limit_before_its_container_is_created(annotations, hard) -> None:
    answer = created(CGROUP, annotations)
    assert answer.limits == tuple(CardLimit(card, POD, 0, mib * MIB) for card, mib in hard.items())
    assert dict(answer.edits.environment) == {}
    assert answer.edits.cdi == tuple(f"nvidia.com/gpu={card}" for card in hard)
    own = CardState("cgroup", "enforced", 1024 * MIB)
    if not any(key.startswith(REQUEST) and value != "0" for key, value in annotations.items()):
        assert dict(answer.kept) == {"s1-main-0": dict.fromkeys(hard, own)}


@pytest.mark.parametrize("require", [{}, REQUIRE], ids=["not required", "required"])
@pytest.mark.parametrize(("request_mib", "soft"), [(0, 0), (512, 512), (1024, 0), (2048, 0)])
def test_a_containers_own_cgroup_gets_its_limit_as_it_starts_and_loses_its_soft_one_as_it_stops(
    require, request_mib, soft
) -> None:
    mirror, pod = Mirror(RULES), sandbox(more={**part(cards=f"{ONE},{TWO}", request=request_mib), **require})
    mirror.created(pod, container(pod), CGROUP)
    answer = mirror.started(container(pod, pid=7), CGROUP)
    path = f"{POD}/s1-main-0"
    assert answer.limits == tuple(CardLimit(card, path, soft * MIB, 1024 * MIB) for card in (ONE, TWO))
    assert answer.required == bool(require)
    assert set(answer.kept["s1-main-0"]) == {ONE, TWO}
    cleared = tuple(CardLimit(card, path, 0, 1024 * MIB) for card in (ONE, TWO)) if soft else ()
    assert mirror.stopped("s1-main-0") == cleared
    assert mirror.stopped("s1-main-0") == ()
    assert mirror.stopped("another") == ()


def test_systemds_names_lead_to_the_same_cgroups() -> None:
    pod = replace(sandbox(more=part()), cgroup="kubepods-burstable-podu1.slice")
    mirror = Mirror(RULES)
    one = replace(container(pod), cgroup="kubepods-burstable-podu1.slice:cri-containerd:abc")
    above = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podu1.slice"
    assert [limit.cgroup for limit in mirror.created(pod, one, CGROUP).limits] == [above]
    assert [limit.cgroup for limit in mirror.started(one, CGROUP).limits] == [f"{above}/cri-containerd-abc.scope"]


def test_running_containers_get_their_limits_when_the_runtime_tells_of_them() -> None:
    mirror = Mirror(RULES)
    first, plain = sandbox(1, more={**part(request=512), **part("log", mib=256)}), sandbox(2)
    second = sandbox(3, more=part(cards=TWO))
    found = [
        container(first, pid=1),
        container(first, "log", pid=2),
        container(plain, pid=3),
        container(second),  # It has not started: it gets its limits when it does.
    ]
    answer = mirror.synchronized([first, plain, second], found, CGROUP)
    assert set(answer.limits) == {
        CardLimit(ONE, POD, 0, 1280 * MIB),
        CardLimit(ONE, f"{POD}/s1-main-0", 512 * MIB, 1024 * MIB),
        CardLimit(ONE, f"{POD}/s1-log-0", 0, 256 * MIB),
    }
    assert len(answer.limits) == 3
    assert set(answer.kept) == {"s1-main-0", "s1-log-0"}
    assert mirror.stopped("s1-main-0") == (CardLimit(ONE, f"{POD}/s1-main-0", 0, 1024 * MIB),)


def test_no_cgroup_is_limited_where_only_cores_are() -> None:
    answer = created(CGROUP, part(mib=0, core=50))
    assert (answer.limits, answer.kept, answer.remarks) == ((), {}, ())


# HAMi-core

HAMI_MOUNTS = (
    Mount("/opt/hami/libvgpu.so", "/usr/local/vgpu/libvgpu.so"),
    Mount("/state/ld.so.preload", "/etc/ld.so.preload"),
    Mount("/state/caches/s1-main-0", "/usr/local/vgpu/cache", writable=True),
)
ALWAYS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/cache/shared"}
INJECTED = {
    "memory": (part(), {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m"}),
    "memory of two cards": (
        part(cards=f"{TWO},{ONE}"),
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_MEMORY_LIMIT_1": "1024m"},
    ),
    "memory and cores": (
        part(core=30),
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_SM_LIMIT_0": "30"},
    ),
    "cores of two cards": (
        part(mib=0, cards=f"{TWO},{ONE}", core=30),
        {"CUDA_DEVICE_SM_LIMIT_0": "30", "CUDA_DEVICE_SM_LIMIT_1": "30"},
    ),
    "more cores than a card has": (
        part(core=300),
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m", "CUDA_DEVICE_SM_LIMIT_0": "100"},
    ),
}


@pytest.mark.parametrize(("annotations", "variables"), INJECTED.values(), ids=INJECTED)
def test_hami_core_is_told_a_containers_part_of_each_card(annotations, variables) -> None:
    answer = created(HAMI, annotations)
    assert dict(answer.edits.environment) == ALWAYS | variables
    assert answer.edits.mounts == HAMI_MOUNTS
    assert answer.caches == ("/state/caches/s1-main-0",)
    assert (answer.limits, answer.mps, answer.refusal, answer.remarks) == ((), None, "", ())
    cards = annotations["nri.koordgate.io/main"].split(",")
    state = CardState("HAMi-core", "injected", 1024 * MIB if f"{LIMIT}/main" in annotations else None)
    assert dict(answer.kept) == {"s1-main-0": dict.fromkeys(cards, state)}


STATED = {
    "CUDA_DEVICE_MEMORY_LIMIT": ("0", ""),
    "CUDA_DEVICE_MEMORY_LIMIT_0": ("80g", "1024m"),
    "CUDA_DEVICE_MEMORY_LIMIT_1": ("80g", ""),
    "CUDA_DEVICE_SM_LIMIT": ("100", ""),
    "CUDA_DEVICE_MEMORY_SHARED_CACHE": ("/tmp/mine", "/usr/local/vgpu/cache/shared"),
    "CUDA_DEVICE_ORDER": ("FASTEST_FIRST", "PCI_BUS_ID"),
    "GPU_CORE_UTILIZATION_POLICY": ("disable", ""),
    "ACTIVE_OOM_KILLER": ("1", ""),
    "CUDA_REDIRECT": ("/mine/libvgpu.so", ""),
    "CUDA_TASK_PRIORITY": ("0", ""),
    "CUDA_DISABLE_CONTROL": ("true", ""),
    "CUDA_MPS_PIPE_DIRECTORY": ("/mine", ""),
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": ("100", ""),
    "LD_PRELOAD": ("/mine/libvgpu.so", ""),
}


def test_the_switches_of_hami_core_and_mps_are_overwritten_where_author_or_image_set_them() -> None:
    answer = created(HAMI, part(), stated={name: value for name, (value, _) in STATED.items()})
    to = {name: value for name, (_, value) in STATED.items()}
    assert {name: answer.edits.environment.get(name) for name in STATED} == to


@pytest.mark.parametrize(
    ("stated", "left"),
    [
        ("/usr/lib/libjemalloc.so", None),
        ("/usr/lib/libjemalloc.so:/x/libvgpu.so.1 /usr/lib/other.so", "/usr/lib/libjemalloc.so /usr/lib/other.so"),
    ],
)
def test_of_other_libraries_that_are_preloaded_none_is_lost(stated, left) -> None:
    assert created(HAMI, part(), stated={"LD_PRELOAD": stated}).edits.environment.get("LD_PRELOAD") == left


@pytest.mark.parametrize("name", ["CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "PATH"])
def test_other_variables_are_left_as_they_are(name) -> None:
    for told in (HAMI, MPS, CGROUP):
        assert name not in created(told, part(), stated={name: "1"}).edits.environment


# MPS


def test_a_container_is_a_client_of_the_administrators_daemon() -> None:
    answer = created(MPS, part(core=40))
    assert dict(answer.edits.environment) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
    }
    assert answer.edits.mounts == (
        Mount("/run/mps", "/tmp/nvidia-mps", writable=True),
        Mount("/run/mps-shm", "/dev/shm", writable=True),
    )
    assert (answer.mps, answer.limits, answer.caches) == (MpsShare("", 40), (), ())
    assert dict(answer.kept) == {"s1-main-0": {ONE: CardState("mps", "injected")}}


@pytest.mark.parametrize(("core", "percent"), [(40, 40), (0, 100)])
def test_where_the_daemon_makes_namespaces_a_container_has_one(core, percent) -> None:
    answer = created(facts("mps", mps_namespaces="/run/mps/ns"), part(core=core))
    assert answer.mps == MpsShare("koordgate_s1-main-0", percent)
    assert answer.edits.mounts[0] == Mount("/run/mps/ns/koordgate_s1-main-0", "/tmp/nvidia-mps", writable=True)
    assert answer.edits.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percent)


def test_variables_of_mps_are_overwritten_where_author_or_image_set_them() -> None:
    """CUDA_MPS_PINNED_DEVICE_MEM_LIMIT with a card that is not there would drop every limit."""
    stated = {
        "CUDA_MPS_PIPE_DIRECTORY": "/mine",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "9=1G",
        "CUDA_MPS_LOG_DIRECTORY": "/mine",
    }
    environment = created(MPS, part(core=40), stated=stated).edits.environment
    assert {name: environment[name] for name in stated} == {
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "",
        "CUDA_MPS_LOG_DIRECTORY": "",
    }


@pytest.mark.parametrize("told", [HAMI, MPS], ids=["HAMi-core", "mps"])
def test_what_was_not_there_at_a_containers_creation_is_told_as_missing(told) -> None:
    mirror, pod = Mirror(RULES), sandbox(more={**part(), **part("late")})
    destinations = tuple(one.destination for one in mirror.created(pod, container(pod), told).edits.mounts)
    found = [container(pod, pid=1, mounts=("/data", *destinations)), container(pod, "late", pid=2, mounts=("/data",))]
    kept = mirror.synchronized([pod], found, told).kept
    assert {one: states[ONE].keeping for one, states in kept.items()} == {
        "s1-main-0": "injected",
        "s1-late-0": "missing",
    }


# where nothing keeps limits

LACKS = {
    "cgroup, not ready": (facts("cgroup", no_limits="its driver is too old: update it"), RULES, "update it"),
    "HAMi-core, not ready": (facts("HAMi-core", no_limits="no library: put it there"), RULES, "put it there"),
    "HAMi-core without its library": (HAMI, replace(RULES, library=""), "enforcement.hamiCore.library"),
    "mps without its daemon": (MPS, replace(RULES, pipe=""), "enforcement.mps.pipe"),
    "mps, not ready": (facts("mps", no_limits="the daemon is silent: start it"), RULES, "start it"),
}


@pytest.mark.parametrize(("told", "rules", "cure"), LACKS.values(), ids=LACKS)
def test_without_its_limiter_a_container_is_refused_if_that_is_required_and_starts_otherwise(told, rules, cure) -> None:
    refused = created(told, {**part(), **REQUIRE}, rules)
    assert refused.refusal.startswith("container main requires limits of its cards: ")
    assert cure in refused.refusal
    assert (refused.edits.cdi, refused.edits.environment, refused.limits) == ((), {}, ())
    starts = created(told, part(), rules)
    assert (starts.refusal, starts.edits.cdi, starts.edits.mounts) == ("", (f"nvidia.com/gpu={ONE}",), ())
    (remark,) = starts.remarks
    assert (remark.reason, remark.uid, remark.namespace, remark.name) == ("LimitMissing", "u1", "ns", "p1")
    assert cure in remark.message
    assert starts.kept["s1-main-0"][ONE] == CardState(told.provider, "missing", 1024 * MIB)


REQUIRED_ALONE = {
    "nothing keeps limits": (facts("none"), part(), "limits.provider"),
    "an unknown provider": (facts("unheard-of"), part(), "limits.provider"),
    "NVIDIA's toolkit, not ready": (facts("nvidia-toolkit", no_limits="too old: update it"), part(), "update it"),
    "no limit was stated": (CGROUP, part(mib=0), "delete the Pod"),
    "no limit of HAMi-core's was stated": (HAMI, part(mib=0, core=10), "delete the Pod"),
    "a limit that is none": (HAMI, {**part(), f"{LIMIT}/main": "1Gi"}, "delete the Pod"),
    "a limit of nothing": (HAMI, {**part(), f"{LIMIT}/main": "0"}, "delete the Pod"),
}


@pytest.mark.parametrize(("told", "annotations", "cure"), REQUIRED_ALONE.values(), ids=REQUIRED_ALONE)
def test_a_container_that_requires_limits_is_refused_if(told, annotations, cure) -> None:
    assert cure in created(told, {**annotations, **REQUIRE}).refusal
    starts = created(told, annotations)
    assert (starts.refusal, starts.remarks) == ("", ())


@pytest.mark.parametrize("provider", ["nvidia-toolkit", "nvidia-fractions"])
def test_what_nvidias_software_keeps_is_left_to_it(provider) -> None:
    answer = created(facts(provider), {**part(core=10), **REQUIRE})
    assert (answer.refusal, answer.limits, answer.edits.mounts, answer.kept) == ("", (), (), {})
    assert answer.edits.cdi == (f"nvidia.com/gpu={ONE}",)


@pytest.mark.parametrize("told", [CGROUP, HAMI, MPS])
def test_whole_cards_are_not_limited(told) -> None:
    answer = created(told, part(mib=0))
    assert (answer.limits, answer.edits.mounts, answer.kept, answer.remarks) == ((), (), {}, ())


def test_limits_follow_cards_that_the_runtime_shows_too() -> None:
    shown = {"visible-devices.koordgate.io/main": ONE, f"{LIMIT}/main": "1024", **REQUIRE}
    pod = sandbox(more=shown)
    answer = devices(pod, container(pod, environment={"NVIDIA_VISIBLE_DEVICES": ONE}), CGROUP, RULES)
    assert [one.card for one in answer.limits] == [ONE]
    assert (answer.required, answer.edits.cdi) == (True, ())


def test_a_cgroup_that_is_none_is_refused_where_limits_are_required() -> None:
    pod = replace(sandbox(more={**part(), **REQUIRE}), cgroup="/kubepods/../x")
    assert "names a cgroup" in Mirror(RULES).created(pod, container(pod), CGROUP).refusal


# properties

NUMBERS = st.sampled_from(["", "0", "00", "1", "1024", "-1", "1Gi", "9" * 40, "\u0661"])


@given(
    st.sampled_from(["none", "nvidia-toolkit", "nvidia-fractions", "cgroup", "HAMi-core", "mps", "x"]),
    st.booleans(),
    st.sampled_from(["", "why: cure"]),
    st.sampled_from([RULES, Rules()]),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.lists(st.sampled_from([*CARDS]), min_size=1, max_size=3, unique=True),
)
@settings(max_examples=examples(400), deadline=None)
def test_a_card_whose_limit_is_required_never_comes_without_a_limiter(
    provider, must, no_limits, rules, request_mib, limit, core, cards
) -> None:
    annotations = {
        **part(cards=",".join(cards)),
        f"{REQUEST}/main": request_mib,
        f"{LIMIT}/main": limit,
        f"{CORE}/main": core,
        **(REQUIRE if must else {}),
    }
    answer = created(facts(provider, no_limits=no_limits), annotations, rules)
    environment = answer.edits.environment
    limited = {
        "cgroup": bool(answer.limits),
        "HAMi-core": len([name for name in environment if name.startswith("CUDA_DEVICE_MEMORY_LIMIT_")]) == len(cards)
        and len(answer.edits.mounts) == 3,
        "mps": "CUDA_MPS_PIPE_DIRECTORY" in environment,
        "nvidia-toolkit": not no_limits,
        "nvidia-fractions": not no_limits,
    }.get(provider, False)
    if must:
        assert bool(answer.refusal) != limited
        assert bool(answer.edits.cdi) == limited
    assert answer.required == (must and not answer.refusal)
    for name, value in environment.items():
        if name.startswith(("CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_SM_LIMIT")):
            assert int(value.removesuffix("m")) > 0
    assert all(0 <= one.soft < (one.hard or 0) for one in answer.limits)


def test_the_settings_say_what_the_rules_are() -> None:
    settings = parse(
        """
        roots: {state: /var/lib/koordgate}
        cpus: {enforce: false}
        enforcement:
          closed: true
          exemptNamespaces: [kube-system]
          hamiCore: {library: /opt/libvgpu.so}
          mps: {pipe: /run/mps, shm: /run/shm}
        """
    )
    assert rules_of(settings) == Rules(
        cpus=False,
        closed=True,
        exempt=frozenset({"kube-system"}),
        library="/opt/libvgpu.so",
        preload="/var/lib/koordgate/enforcer/ld.so.preload",
        caches="/var/lib/koordgate/enforcer/caches",
        pipe="/run/mps",
        shm="/run/shm",
    )
