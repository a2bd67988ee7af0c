"""What is told of a node's runtime, from everything that was read: real nodes as rows of a table."""

import json
from dataclasses import replace
from typing import Any

import pytest
from runtimes import (
    BOTTLEROCKET,
    CONTAINERD,
    CRIO_NVIDIA,
    CRIO_PLAIN,
    K3S,
    MANAGEMENT,
    NVIDIA_LEGACY,
    NVIDIA_OPERATORS,
    OPERATORS_DROP_IN,
    PACKAGES,
    PLUGIN,
    cluster_node,
    policy,
    spec,
)

from allocator.devices.delivery import DeliveryRules, delivery_of
from allocator.vocabulary.delivery import NodeRuntime
from allocator.wire.noderuntime import read_runtime, write_runtime
from reporter import runtimefiles as formats
from reporter.delivery import CardsThere, no_limits, node_runtime, operator_policy, read_version, shown_nothing
from reporter.runtimefiles import UNTOLD, Engine, OperatorPolicy, RuntimeReading

CARDS = CardsThere(frozenset({"GPU-0", "GPU-1"}), limits=True)
ETC, RKE2 = "/etc/containerd", "/var/lib/rancher/rke2/agent/etc/containerd"
OURS, OPERATORS = "/etc/nvidia-container-runtime", "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime"
RULES = DeliveryRules(runtime_class="nvidia", handler="nvidia")


def containerd(*texts: str) -> Engine:
    return formats.containerd([formats.containerd_file(text.encode()) for text in texts], whole=True)


def crio(*texts: str) -> Engine:
    return formats.crio([formats.crio_file(text.encode()) for text in texts], whole=True)


def reading(*specs: str, **over: Any) -> RuntimeReading:
    nvidia = {folder: formats.nvidia_configuration(text.encode()) for folder, text in over.pop("nvidia", {}).items()}
    return RuntimeReading(tuple(formats.cdi_spec(text.encode()) for text in specs), nvidia, cgroup2=True, **over)


BOTH = ("GPU-0", "GPU-1")
OPERATOR_2510 = reading(
    spec(PLUGIN, *BOTH), spec(MANAGEMENT, "all"), engines={ETC: containerd(CONTAINERD, OPERATORS_DROP_IN)}, own=True
)
NO_LIMITS_1_18 = (
    "it has NVIDIA Container Toolkit 1.18.1, which sets no memory limits: "
    "install NVIDIA Container Toolkit 1.20.1 or later"
)
NODES: dict[str, tuple[RuntimeReading, dict[str, Any], OperatorPolicy, str, NodeRuntime, tuple[str, str]]] = {
    "operator 25.10 with its defaults": (
        OPERATOR_2510,
        cluster_node("runc", "nvidia", "nvidia-cdi"),
        operator_policy([policy()]),
        "nvidia",
        NodeRuntime(
            handlers=("runc", "nvidia", "nvidia-cdi"),
            showing=("nvidia", "nvidia-cdi"),
            default_shows=False,
            kinds=(PLUGIN,),
            nri=False,
            toolkit=(1, 18, 1),
            mode="cdi",
            unprivileged=True,
            no_limits=NO_LIMITS_1_18,
        ),
        ("", "runtimeClass"),
    ),
    "operator 25.10 of which no file is seen": (
        reading(),
        cluster_node("runc", "nvidia"),
        operator_policy([policy()]),
        "",
        NodeRuntime(
            handlers=("runc", "nvidia"),
            default_shows=False,
            nri=False,
            toolkit=(1, 18, 1),
            mode="cdi",
            no_limits=NO_LIMITS_1_18,
        ),
        ("", "runtimeClass"),
    ),
    "operator 26.3 with its NRI plugin": (
        reading(
            spec(PLUGIN, *BOTH, hook="apply-cuda-memory-limits"),
            spec("nvidia.com/gpu", "0", "1", *BOTH, "all", hook="apply-cuda-memory-limits"),
            engines={ETC: containerd(CONTAINERD)},
            own=False,
        ),
        cluster_node("runc"),
        operator_policy([policy("v26.3.0", "v1.20.2-ubi9", cdi={"enabled": True, "nriPluginEnabled": True})]),
        "",
        NodeRuntime(
            handlers=("runc",),
            default_shows=False,
            kinds=(PLUGIN, "nvidia.com/gpu"),
            nri=True,
            toolkit=(1, 20, 2),
            mode="cdi",
            no_limits="",
        ),
        ("nvidia-nri", ""),
    ),
    "operator 25.3, whose runtime is the default": (
        reading(
            engines={ETC: containerd(CONTAINERD, OPERATORS_DROP_IN.replace('"runc"', '"nvidia"').replace("3", "2", 1))},
            nvidia={OPERATORS: NVIDIA_LEGACY.replace("legacy", "auto"), OURS: NVIDIA_LEGACY},
            own=True,
        ),
        cluster_node("runc", "nvidia", "nvidia-cdi"),
        operator_policy([policy("v25.3.0", "v1.17.8-ubuntu20.04", cdi={"enabled": False})]),
        "",
        NodeRuntime(
            handlers=("runc", "nvidia", "nvidia-cdi"),
            showing=("nvidia", "nvidia-cdi"),
            default_shows=True,
            nri=False,
            toolkit=(1, 17, 8),
            mode="auto",
            unprivileged=True,
            no_limits=NO_LIMITS_1_18.replace("1.18.1", "1.17.8"),
        ),
        ("environment", "runtimeClass"),
    ),
    "packages with NVIDIA's runtime as the default": (
        reading(
            spec("nvidia.com/gpu", "0", "1", *BOTH, "all", hook="apply-cuda-memory-limits"),
            engines={ETC: containerd(PACKAGES)},
            nvidia={OURS: NVIDIA_LEGACY.replace("legacy", "auto")},
            own=True,
        ),
        cluster_node("runc", "nvidia"),
        UNTOLD,
        "",
        NodeRuntime(
            handlers=("runc", "nvidia"),
            showing=("nvidia",),
            default_shows=True,
            kinds=("nvidia.com/gpu",),
            toolkit=(1, 20, 1),
            mode="auto",
            unprivileged=True,
            no_limits="",
        ),
        ("environment", "runtimeClass"),
    ),
    "packages in mode legacy, and a toolkit of the operator that was": (
        reading(engines={ETC: containerd(PACKAGES)}, nvidia={OURS: NVIDIA_LEGACY, OPERATORS: NVIDIA_OPERATORS}),
        cluster_node("runc", "nvidia"),
        UNTOLD,
        "",
        NodeRuntime(
            handlers=("runc", "nvidia"),
            showing=("nvidia",),
            default_shows=True,
            mode="legacy",
            unprivileged=True,
            no_limits="it has NVIDIA's runtime in mode legacy, which sets no memory limits: set its mode to auto",
        ),
        ("environment", "runtimeClass"),
    ),
    "k3s": (
        reading(
            engines={"/var/lib/rancher/k3s/agent/etc/containerd": containerd(K3S), ETC: containerd(PACKAGES)},
            nvidia={OURS: ""},
        ),
        cluster_node("runc", "nvidia", version="containerd://2.1.4-k3s1"),
        UNTOLD,
        "",
        NodeRuntime(
            handlers=("runc", "nvidia"), showing=("nvidia",), default_shows=False, mode="auto", unprivileged=True
        ),
        ("", "runtimeClass"),
    ),
    "RKE2 whose folder is not mounted": (
        reading(engines={ETC: containerd(PACKAGES)}),
        cluster_node("runc", "nvidia", version="containerd://2.1.4-k3s2"),
        UNTOLD,
        "",
        NodeRuntime(handlers=("runc", "nvidia")),
        ("environment", "runtimeClass"),
    ),
    "CRI-O with NVIDIA's runtime as the default": (
        reading(engines={"/etc/crio": crio(CRIO_PLAIN, CRIO_NVIDIA), ETC: containerd(CONTAINERD)}),
        cluster_node("crun", "nvidia", version="cri-o://1.34.1"),
        UNTOLD,
        "",
        NodeRuntime(handlers=("crun", "nvidia"), showing=("nvidia",), default_shows=True),
        ("environment", "runtimeClass"),
    ),
    "containerd without anything of NVIDIA's": (
        reading(engines={ETC: containerd(CONTAINERD)}, own=False),
        cluster_node("runc"),
        UNTOLD,
        "",
        NodeRuntime(handlers=("runc",), default_shows=False),
        ("", ""),
    ),
    "Bottlerocket, whose runtime is the default and deaf": (
        reading(engines={ETC: containerd(PACKAGES)}, nvidia={OURS: BOTTLEROCKET}, own=False),
        cluster_node("runc", "nvidia"),
        UNTOLD,
        "",
        NodeRuntime(
            handlers=("runc", "nvidia"), showing=("nvidia",), default_shows=True, mode="auto", unprivileged=False
        ),
        ("", ""),
    ),
    "nothing is known": (reading(), {}, UNTOLD, "", NodeRuntime(), ("environment", "runtimeClass")),
    "cards that are shown to us by the default runtime of which no file is seen": (
        reading(own=True),
        cluster_node(),
        UNTOLD,
        "",
        NodeRuntime(default_shows=True, unprivileged=True),
        ("environment", "runtimeClass"),
    ),
    "cards that are shown to us by a RuntimeClass of which no file is seen": (
        reading(own=True),
        cluster_node("nvidia"),
        UNTOLD,
        "nvidia",
        NodeRuntime(handlers=("nvidia",), showing=("nvidia",), unprivileged=True),
        ("environment", "runtimeClass"),
    ),
    "a RuntimeClass that shows us nothing": (
        reading(own=False),
        cluster_node("nvidia"),
        UNTOLD,
        "nvidia",
        NodeRuntime(handlers=("nvidia",)),
        ("environment", "runtimeClass"),
    ),
    "NVIDIA's fractioning operator": (
        reading(),
        cluster_node(
            "runc", conditions=[{"type": "Ready"}, {"type": "gpu-sharing.nvidia.com/Ready", "status": "True"}]
        ),
        UNTOLD,
        "",
        NodeRuntime(handlers=("runc",), fractions=True),
        ("environment", ""),
    ),
    "a fractioning operator that is not ready": (
        reading(),
        cluster_node("runc", conditions=[{"type": "gpu-sharing.nvidia.com/Ready", "status": "False"}]),
        UNTOLD,
        "",
        NodeRuntime(handlers=("runc",)),
        ("environment", ""),
    ),
}


@pytest.mark.parametrize(("read", "node", "said", "own", "told", "ways"), NODES.values(), ids=NODES)
def test_what_is_told_of_a_node_follows_from_what_was_read_of_it(
    read: RuntimeReading, node: dict[str, Any], said: OperatorPolicy, own: str, told: NodeRuntime, ways: tuple[str, str]
) -> None:
    found = node_runtime(read, node, said, CARDS, own)

    assert found == told
    assert read_runtime(write_runtime(found)) == (told, "")
    decided = delivery_of(found, "", RULES)
    assert tuple(way.delivery or "" for way in (decided.plain, decided.classed)) == ways


# Kinds


@pytest.mark.parametrize(
    ("specs", "names", "kinds"),
    [
        ((spec("nvidia.com/gpu", "GPU-0"), spec("nvidia.com/gpu", "GPU-1", "0")), BOTH, ("nvidia.com/gpu",)),
        ((spec("nvidia.com/gpu", "GPU-0", "all", "0", "1"),), BOTH, ()),
        (
            tuple(spec(kind, *BOTH) for kind in ("z.io/gpu", "nvidia.com/gpu", "a.io/gpu", PLUGIN, MANAGEMENT)),
            BOTH,
            (PLUGIN, "nvidia.com/gpu", "a.io/gpu", "z.io/gpu"),
        ),
        ((spec(PLUGIN, "GPU-0", "MIG-1", "MIG-2"),), ("GPU-0", "MIG-1", "MIG-2"), (PLUGIN,)),
        ((spec(PLUGIN, "GPU-0", "MIG-1"),), ("GPU-0", "MIG-1", "MIG-2"), ()),
        ((spec(PLUGIN, "GPU-0"),), (), ()),
    ],
    ids=["in two files", "a card by index alone", "the preferred one first", "MIG", "a part is missing", "no card"],
)
def test_a_kind_counts_if_it_names_every_card_by_its_uuid(
    specs: tuple[str, ...], names: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    assert node_runtime(reading(*specs), {}, UNTOLD, CardsThere(frozenset(names))).kinds == kinds


def test_of_a_flood_of_handlers_and_kinds_so_many_are_told_as_can_be_read_again() -> None:
    many = [f"h{number:03d}" for number in range(70)]
    engine = Engine("runc", dict.fromkeys(many, "/nvidia-container-runtime"))
    read = reading(*(spec(f"{name}.io/gpu", *BOTH) for name in many), engines={ETC: engine})

    found = node_runtime(read, cluster_node(*many), UNTOLD, CARDS)

    assert tuple(map(len, (found.handlers, found.showing, found.kinds))) == (64, 64, 64)
    assert read_runtime(write_runtime(found)) == (found, "")


@pytest.mark.parametrize("name", ["x" * 257, "\ud800", "a\nb", "\u00e9", "", 5, None], ids=ascii)
def test_what_can_be_no_name_of_a_handler_or_a_kind_is_not_told(name: object) -> None:
    node = {"status": {"runtimeHandlers": [{"name": name}, {"name": "x" * 256}, 7]}}
    spec_of = json.dumps({"kind": "nvidia.com/gpu", "devices": [{"name": name}, {"name": "GPU-0"}]})

    found = node_runtime(reading(spec_of), node, UNTOLD, CardsThere(frozenset({"GPU-0"})))

    assert (found.handlers, found.kinds) == (("x" * 256,), ("nvidia.com/gpu",))
    assert formats.cdi_spec(spec_of.encode()).names == {"GPU-0"}
    with pytest.raises(ValueError, match="is no CDI specification"):
        formats.cdi_spec(json.dumps({"kind": name, "devices": []}).encode())


# What our own container was shown


@pytest.mark.parametrize(
    ("own", "handler", "says"),
    [
        (None, "", ""),
        (True, "", ""),
        (True, "nvidia", ""),
        (False, "", "default runtime shows the reporter's container no card: set reporter.gpus.runtimeClassName"),
        (False, "gpu", "handler gpu shows the reporter's container no card: correct reporter.gpus.runtimeClassName"),
    ],
    ids=["unknown", "by the default", "by a class", "not by the default", "not by a class"],
)
def test_a_container_that_sees_no_card_is_told_with_the_cure(own: Any, handler: str, says: str) -> None:
    told = shown_nothing(RuntimeReading(own=own), handler)

    assert says in told
    assert bool(told) is bool(says)


# Configurations that compete


@pytest.mark.parametrize(
    ("engines", "version", "shows"),
    [
        ({ETC: Engine("runc"), "/opt/containerd": Engine("runc")}, "containerd://2", False),
        ({ETC: Engine("runc"), "/opt/containerd": Engine("crun")}, "containerd://2", None),
        ({ETC: None, RKE2: Engine("runc")}, "containerd://2", None),
        ({ETC: None, RKE2: Engine("runc")}, "containerd://2-k3s1", False),
        ({"/etc/crio": Engine("runc")}, "containerd://2", None),
        ({"/etc/crio": Engine("runc")}, "cri-o://1", False),
    ],
    ids=["alike", "different", "unusable", "of k3s alone", "of another runtime", "of CRI-O"],
)
def test_the_configuration_counts_that_belongs_to_the_runtime_of_the_node(
    engines: dict[str, Engine | None], version: str, shows: Any
) -> None:
    found = node_runtime(RuntimeReading(engines=engines), cluster_node(version=version), UNTOLD, CARDS)

    assert found.default_shows is shows


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        (OperatorPolicy(), "legacy"),
        (OperatorPolicy(brings_toolkit=False), "legacy"),
        (OperatorPolicy(brings_toolkit=True), ""),
    ],
    ids=["no operator", "an operator without its toolkit", "the operator's toolkit"],
)
def test_the_configuration_of_packages_says_nothing_about_the_operators_runtime(
    said: OperatorPolicy, mode: str
) -> None:
    assert node_runtime(reading(nvidia={OURS: NVIDIA_LEGACY}), {}, said, CARDS).mode == mode


# The operator's policy


@pytest.mark.parametrize(
    ("items", "read"),
    [
        (None, UNTOLD),
        ([], UNTOLD),
        ([7, policy()], OperatorPolicy(True, False, True, (1, 18, 1), (25, 10, 0))),
        ([policy()], OperatorPolicy(True, False, True, (1, 18, 1), (25, 10, 0))),
        (
            [{**policy("v25.3.0"), "status": {"state": "ignored"}}, policy("v26.3.1", "v1.20.2-ubi9")],
            OperatorPolicy(True, False, True, (1, 20, 2), (26, 3, 1)),
        ),
        ([policy("", "sha256:0123")], OperatorPolicy(True, False, True, (), ())),
        (
            [policy(cdi={"enabled": False, "nriPluginEnabled": True}, toolkit={"enabled": False})],
            OperatorPolicy(False, True, False, (), (25, 10, 0)),
        ),
        ([policy(cdi=[], toolkit="x")], OperatorPolicy(None, False, True, (), (25, 10, 0))),
        (
            [policy(cdi={"enabled": "yes", "nriPluginEnabled": 1})],
            OperatorPolicy(None, None, True, (1, 18, 1), (25, 10, 0)),
        ),
        ([{"metadata": {"labels": {"app.kubernetes.io/version": 25}}}], OperatorPolicy(None, False, True, (), ())),
    ],
    ids=[
        "no list",
        "none",
        "no object",
        "one",
        "one that the operator ignores",
        "no versions",
        "CDI off, its own toolkit off",
        "parts of wrong kinds",
        "values of wrong kinds",
        "a label that is no text",
    ],
)
def test_of_a_policy_is_read_what_it_says(items: object, read: OperatorPolicy) -> None:
    assert operator_policy(items) == read


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("v1.18.1", (1, 18, 1)),
        ("1.18", (1, 18)),
        ("v1.17.8-ubi8", (1, 17, 8)),
        ("v25.10.0-rc.1", (25, 10, 0)),
        ("v1.18.1+build", (1, 18, 1)),
        ("1", ()),
        ("main-latest", ()),
        ("sha256:1.2.3", ()),
        ("v1.18.1.1.1", ()),
        ("v99999.1", ()),
        ("", ()),
        (None, ()),
        (1.18, ()),
    ],
    ids=str,
)
def test_a_version_is_read_from_an_images_tag(text: object, read: tuple[int, ...]) -> None:
    assert read_version(text) == read


@pytest.mark.parametrize(
    ("said", "shows", "mode"),
    [
        (OperatorPolicy(True, False, True, (1, 18, 0)), False, "cdi"),
        (OperatorPolicy(True, False, True, (1, 17, 9)), None, ""),
        (OperatorPolicy(True, False, True, (1, 17, 9), (25, 10)), False, "cdi"),
        (OperatorPolicy(True, False, True, (1, 18, 0), (25, 9)), None, ""),
        (OperatorPolicy(True, False, True), None, ""),
        (OperatorPolicy(False, False, True, (1, 18, 0)), None, ""),
        (OperatorPolicy(True, False, False, (1, 18, 0)), None, ""),
        (OperatorPolicy(None, False, True, (1, 18, 0)), None, ""),
    ],
    ids=[
        "by its toolkit",
        "an older toolkit",
        "by its own version",
        "an older version",
        "no version",
        "CDI off",
        "not its toolkit",
        "CDI unknown",
    ],
)
def test_operators_since_25_10_leave_the_default_runtime_alone_where_cdi_is_on(
    said: OperatorPolicy, shows: Any, mode: str
) -> None:
    found = node_runtime(RuntimeReading(), {}, said, CARDS)

    assert (found.default_shows, found.mode) == (shows, mode)


def test_what_containerds_configuration_says_goes_before_what_the_operator_usually_does() -> None:
    read = reading(engines={ETC: containerd(PACKAGES)})

    assert node_runtime(read, {}, operator_policy([policy()]), CARDS).default_shows is True


def test_the_operators_own_kind_shows_that_its_runtime_is_in_mode_cdi() -> None:
    assert node_runtime(reading(spec(MANAGEMENT, "all")), {}, UNTOLD, CARDS).mode == "cdi"


# Limits


@pytest.mark.parametrize(
    ("cards", "over", "says"),
    [
        (CARDS, {}, ""),
        (CARDS, {"hook": True, "toolkit": ()}, ""),
        (CARDS, {"toolkit": ()}, None),
        (replace(CARDS, limits=None), {}, None),
        (replace(CARDS, limits=False), {}, "driver that keeps no memory limits: install R615"),
        (CARDS, {"cgroup2": False}, "cgroup v1, with which the driver keeps no memory limits: start it with cgroup v2"),
        (replace(CARDS, mig=True), {}, "a card in MIG mode"),
        (CARDS, {"mode": "legacy"}, "mode legacy, which sets no memory limits: set its mode to auto"),
        (CARDS, {"toolkit": (1, 20, 0)}, "Toolkit 1.20.0, which sets no memory limits: install"),
        (CARDS, {"toolkit": (1, 20, 0), "hook": True}, "Toolkit 1.20.0"),
        (CARDS, {"hook": False}, "a CDI specification without the hook"),
        (replace(CARDS, limits=None), {"cgroup2": False}, "cgroup v1"),
    ],
    ids=[
        "kept",
        "kept by the hook in a file",
        "toolkit unknown",
        "driver unknown",
        "an old driver",
        "cgroup v1",
        "MIG",
        "legacy",
        "an old toolkit",
        "an old toolkit with a file of a newer one",
        "a file without the hook",
        "one reason is enough",
    ],
)
def test_why_limits_are_not_kept_is_told_with_the_cure(
    cards: CardsThere, over: dict[str, Any], says: str | None
) -> None:
    conditions: dict[str, Any] = {"cgroup2": True, "mode": "auto", "toolkit": (1, 20, 1), "hook": None}

    found = no_limits(cards, **{**conditions, **over})

    if says:
        assert found is not None
        assert says in found
        assert found.startswith("it has ")
    else:
        assert found == says


@pytest.mark.parametrize(("nri", "kept"), [(True, False), (False, True)])
def test_the_first_kinds_hook_matters_where_cards_come_from_its_file(nri: Any, kept: Any) -> None:
    read = reading(spec(PLUGIN, *BOTH), spec("nvidia.com/gpu", *BOTH, hook="apply-cuda-memory-limits"))
    said = OperatorPolicy(True, nri, True, (1, 20, 2))

    assert (node_runtime(read, {}, said, CARDS).no_limits == "") is kept
