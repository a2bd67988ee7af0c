"""What `koordgate doctor` says of how nodes show containers their cards."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from doctor.test_checks import device, meta, node, right_cluster, snapshot
from msgspec import structs

from allocator.vocabulary.delivery import LimitProvider
from allocator.vocabulary.names import ISOLATION_PROVIDER
from console.doctor.checks import examine
from console.doctor.findings import Finding, Level
from console.doctor.snapshot import Snapshot
from console.reading import ReadList
from webhook.settings import DeviceSettings, LimitSettings, WebhookSettings

Raw = dict[str, Any]
LABEL, PROVED, VENDOR = "koordgate.io/delivery", "koordgate.io/delivery-proved", "node.koordinator.sh/gpu-vendor"
CLASSED = '{"handlers":["runc","nvidia"],"showing":["nvidia"],"defaultShows":false,"toolkit":"1.18.0","mode":"cdi"}'
DEFAULT = '{"handlers":["nvidia"],"showing":["nvidia"],"defaultShows":true}'
NRI = '{"handlers":["runc"],"defaultShows":false,"nri":true,"kinds":["nvidia.com/gpu"]}'
NOTHING = '{"handlers":["runc"],"showing":[],"defaultShows":false}'
DEAF = '{"handlers":["nvidia"],"showing":["nvidia"],"defaultShows":true,"unprivileged":false}'
HALF = '{"handlers":["runc","nvidia"]}'
ENFORCED = '{"handlers":["runc"],"defaultShows":false,"enforcer":{"brings":"cdi","provider":"none"}}'
BY_CLASS = "runtimeClass nvidia (its runtime reads the variable), as runtime.nvidia.com/gpu=UUID"
BY_NRI = "nvidia-nri (NVIDIA's NRI plugin reads the annotation), as nvidia.com/gpu=UUID"
MISSING = "a probe showed that a container ran without a card that it was given, on"
OTHERS = "a probe showed that a container saw cards that it was not given, on"
NEEDS_CLASS = "a Pod needs runtimeClassName nvidia there"
NONE_YET = "no Pod has proved it yet on"


def delivery(cluster: Snapshot) -> list[Finding]:
    return [one for one in examine(cluster) if one.area == "delivery"]


def told(
    nodes: Mapping[str, str | None],
    labels: dict[str, str] | None = None,
    proofs: dict[str, str] | None = None,
    classes: tuple[str, ...] = ("nvidia",),
    limits: LimitSettings | None = None,
    reporter: dict[str, Any] | None = None,
    isolation: dict[str, str] | None = None,
    **settings: Any,
) -> list[tuple[Level, str, str]]:
    cluster = right_cluster()
    cluster["nodes"] = [
        {
            **node(name),
            **meta(
                name,
                labels={
                    **({LABEL: labels[name]} if labels and name in labels else {}),
                    **({ISOLATION_PROVIDER: isolation[name]} if isolation and name in isolation else {}),
                },
                annotations={PROVED: proofs[name]} if proofs and name in proofs else {},
            ),
        }
        for name in nodes
    ]
    cluster["devices"] = [device(name, runtime) for name, runtime in nodes.items()]
    cluster["runtimes"] = [{**meta(name), "handler": name} for name in classes]
    chosen = structs.replace(WebhookSettings(), devices=DeviceSettings(**settings), limits=limits or LimitSettings())
    return [
        (one.level, one.what, one.todo) for one in delivery(snapshot(cluster, settings=chosen, reporter=reporter or {}))
    ]


def proof(result: str = "right", way: str = "runtimeClass", time: str = "2026-11-27T03:50:00Z") -> str:
    return f'{{"time":"{time}","way":"{way}","result":"{result}","image":"busybox"}}'


def test_nodes_that_show_cards_alike_are_one_line() -> None:
    found = told({f"n{at}": CLASSED for at in range(7)} | {"by-nri": NRI.replace('["runc"]', '["runc","nvidia"]')})
    assert found == [
        (
            Level.OK,
            f"containers get their cards on 1 node (by-nri) by {BY_NRI}",
            "",
        ),
        (Level.OK, f"containers get their cards on 7 nodes (n0, n1, n2, n3, n4 and 2 more) by {BY_CLASS}", ""),
        (Level.OK, f"{NONE_YET} 8 nodes (by-nri, n0, n1, n2, n3 and 3 more): koordgate doctor --probe IMAGE does", ""),
    ]


ONE: dict[str, tuple[str | None, dict[str, Any], Level, str, str]] = {
    "a default runtime of NVIDIA's": (DEFAULT, {"classes": ()}, Level.OK, "by environment (the default runtime", ""),
    "nothing is told": (None, {}, Level.WARNING, "environment is taken for granted: no reporter tells", "reporter"),
    "what is told cannot be read": ("[7]", {}, Level.WARNING, "annotation koordgate.io/runtime: ", "reporter"),
    "half is told": (HALF, {"classes": ()}, Level.WARNING, "what is told of its runtime does not show it", "--probe"),
    "half is told, and a Pod proved it": (
        HALF,
        {"classes": (), "proofs": {"n1": proof(way="environment")}},
        Level.OK,
        "by environment",
        "",
    ),
    "half is told, and a Pod proved another way": (
        HALF,
        {"classes": (), "proofs": {"n1": proof()}},
        Level.WARNING,
        "does not show it",
        "--probe",
    ),
    "unknown nodes are refused": (
        None,
        {"delivery_unknown": "refuse", "classes": ()},
        Level.FAILURE,
        "Pods get no cards on 1 node (n1): each is not known to show containers their cards",
        "reporter",
    ),
    "no RuntimeClass": (CLASSED, {"classes": ()}, Level.FAILURE, "has a default runtime that shows", "RuntimeClass"),
    "another RuntimeClass": (
        CLASSED,
        {"runtime_class_name": "gpus"},
        Level.FAILURE,
        "has a default runtime that shows containers no cards",
        "devices.runtimeClassName",
    ),
    "no handler": (NOTHING, {}, Level.FAILURE, "has a default runtime that shows containers no cards", "NRI plugin"),
    "a runtime that ignores the variable": (DEAF, {}, Level.FAILURE, "ignores the variable", "set that to true"),
    "an administrator's way that is not there": (
        CLASSED,
        {"delivery": "nvidia-nri"},
        Level.FAILURE,
        "has no CDI specification",
        "nvidia-ctk cdi generate",
    ),
    "a label that goes before the settings": (
        CLASSED,
        {"delivery": "nvidia-nri", "labels": {"n1": "runtimeClass"}},
        Level.OK,
        f"by {BY_CLASS}",
        "",
    ),
}


@pytest.mark.parametrize(("runtime", "about", "level", "words", "todo"), ONE.values(), ids=ONE)
def test_how_a_node_shows_cards_is_told_with_the_cure(
    runtime: str | None, about: dict[str, Any], level: Level, words: str, todo: str
) -> None:
    found = [one for one in told({"n1": runtime}, **about) if "proved it" not in one[1]]
    assert [one[0] for one in found] == [level]
    assert words in found[0][1]
    assert todo in found[0][2]
    assert bool(found[0][2]) is bool(todo)


def test_a_node_that_works_only_without_the_runtime_class_that_pods_get_is_a_warning() -> None:
    found = told({"a": CLASSED, "b": CLASSED, "c": DEFAULT.replace('["nvidia"],"showing', '["runc"],"showing')})
    assert [(level, what.partition(":")[0]) for level, what, _ in found[:2]] == [
        (Level.OK, f"containers get their cards on 2 nodes (a, b) by {BY_CLASS}"),
        (Level.WARNING, "Pods get no cards on 1 node (c)"),
    ]
    assert "has no runtime handler nvidia" in found[1][1]


def test_a_node_that_needs_the_runtime_class_which_pods_do_not_get_is_a_warning_with_what_pods_must_state() -> None:
    found = told({"a": CLASSED, "b": NRI})
    assert found[:2] == [
        (
            Level.WARNING,
            "Pods get no cards on 1 node (a): each has a default runtime that shows containers no cards",
            f"{NEEDS_CLASS}: create it again, and state that where koordgate does not add it",
        ),
        (Level.OK, f"containers get their cards on 1 node (b) by {BY_NRI}", ""),
    ]


ONE_KEEPS = {
    "keeps": CLASSED.replace("}", ',"noLimits":""}'),
    "old-1": CLASSED.replace("}", ',"noLimits":"it has an old driver: install a newer one"}'),
    "old-2": CLASSED.replace("}", ',"noLimits":"it has an old driver: install a newer one"}'),
    "silent": CLASSED,
    "without-cards": NOTHING,
}
NONE_KEEPS = {name: runtime for name, runtime in ONE_KEEPS.items() if name != "keeps"}
PLACED = "no Pod that requires memory limits is placed on"
KEEPING: dict[str, tuple[dict[str, str | None], tuple[str, ...], Level]] = {
    "one node keeps them": ({**ONE_KEEPS}, ("*",), Level.WARNING),
    "no node keeps them, and all Pods must have them": ({**NONE_KEEPS}, ("*",), Level.FAILURE),
    "no node keeps them, and authors may ask for them": ({**NONE_KEEPS}, (), Level.WARNING),
}


@pytest.mark.parametrize(("nodes", "require", "level"), KEEPING.values(), ids=KEEPING)
def test_which_nodes_keep_memory_limits_is_told_with_the_cure(
    nodes: dict[str, str | None], require: tuple[str, ...], level: Level
) -> None:
    limits = LimitSettings(LimitProvider.NVIDIA_TOOLKIT, require)
    assert [one for one in told(nodes, limits=limits) if "memory limits" in one[1]] == [
        *[(Level.OK, "memory limits are kept on 1 node (keeps)", "") for name in nodes if name == "keeps"],
        (level, f"{PLACED} 2 nodes (old-1, old-2): it has an old driver", "install a newer one"),
        (
            level,
            f"{PLACED} 1 node (silent): it is not known whether its driver and container toolkit keep them",
            "let koordgate's reporter run there, in a version that tells it",
        ),
    ]
    assert [one for one in told(nodes) if "memory limits" in one[1]] == []


def test_nodes_whose_label_names_what_keeps_limits_are_judged_by_that() -> None:
    ready = ENFORCED.replace('"none"', '"cgroup","noLimits":""')
    nodes: dict[str, str | None] = {"ready": ready, "away": DEFAULT, "plain": DEFAULT}
    labels = {"ready": "cgroup", "away": "cgroup"}
    found = [one for one in told(nodes, isolation=labels) if "memory limits" in one[1]]
    away = (
        "set enforcement.enabled, and see why the container enforcer of koordgate's reporter is not ready on this node"
    )
    assert found == [
        (Level.OK, "memory limits are kept on 1 node (ready)", ""),
        (
            Level.WARNING,
            f"{PLACED} 1 node (away): koordgate's enforcer is not known to run there",
            away,
        ),
    ]
    by_setting = LimitSettings(LimitProvider.CGROUP)
    without = told({"a": ready}, isolation={"a": "none"}, limits=by_setting)
    why = f"its label {ISOLATION_PROVIDER} is none, so that nothing keeps them there"
    assert [one for one in without if "memory limits" in one[1]] == [
        (
            Level.WARNING,
            f"{PLACED} 1 node (a): {why}",
            "remove that label, or let it name what is to keep them",
        )
    ]


def test_where_the_enforcer_is_to_run_the_nodes_on_which_it_is_not_are_told() -> None:
    nodes: dict[str, str | None] = {"a": ENFORCED, "b": CLASSED}
    found = told(nodes, reporter={"enforcement": {"enabled": True}})
    at_work = [(level, what) for level, what, _ in found if "enforcer is" in what]
    assert at_work == [
        (Level.OK, "the enforcer is at work on 1 node (a)"),
        (Level.FAILURE, "the enforcer is not at work on 1 node (b)"),
    ]
    idle = ENFORCED.replace('"brings":"cdi"', '"whyNot":"has no specification: let nvidia-ctk write one"')
    later = ENFORCED.replace('"cdi"', '"dra"')
    found_idle = told({"c": idle, "d": later}, reporter={"enforcement": {"enabled": True}})
    assert [one for one in found_idle if "the enforcer" in one[1]] == [
        (
            Level.WARNING,
            "the enforcer can bring no cards on 1 node (c): each has no specification",
            "let nvidia-ctk write one",
        ),
        (
            Level.WARNING,
            "the enforcer can bring no cards on 1 node (d), and does not say why in words that this version knows",
            "let webhook and reporters have the same version",
        ),
    ]
    assert [what for _, what, _ in found if "nri (koordgate's enforcer brings them)" in what]
    assert [what for _, what, _ in told(nodes) if "enforcer is" in what] == []


@pytest.mark.parametrize(
    ("label", "meant"),
    [("nvidia-nr", "; did you mean nvidia-nri?"), ("runtimeclass", "; did you mean runtimeClass?"), ("xyz", "")],
)
def test_a_label_that_names_no_way_is_told_with_what_may_be_meant(label: str, meant: str) -> None:
    found = told({"a": CLASSED, "b": CLASSED, "c": CLASSED}, labels={"a": label, "b": label, "c": "runtimeClass"})
    assert found[0] == (
        Level.WARNING,
        f"label koordgate.io/delivery is '{label}', which is no way and counts for nothing, on 2 nodes (a, b)",
        f"write one of environment, runtimeClass, nvidia-nri, nri, or remove it{meant}",
    )
    assert [one for one in found[1:] if "label" in one[1]] == []


def test_when_pods_proved_it_is_told_and_what_they_showed_wrong() -> None:
    proofs = {
        "a": proof(time="2026-11-27T03:50:00Z"),
        "b": proof(time="2026-11-26T01:02:03Z"),
        "c": proof("others"),
        "d": proof("missing", time="2026-11-25T00:00:00Z"),
        "e": proof("missing"),
        "f": "{",
        "g": proof("fine"),
        "h": proof(time="yesterday"),
        "i": proof() + " " * 4096,
    }
    found = told(dict.fromkeys(proofs, CLASSED), proofs=proofs)
    assert [(level, what) for level, what, _ in found[1:]] == [
        (Level.FAILURE, f"{MISSING} 2 nodes (d, e), last at 2026-11-27 03:50 UTC"),
        (Level.FAILURE, f"{OTHERS} 1 node (c), last at 2026-11-27 03:50 UTC"),
        (Level.OK, "Pods proved it on 2 of 9 nodes, each at 2026-11-26 01:02 UTC or later"),
    ]


def test_only_nodes_with_nvidias_cards_are_judged() -> None:
    cluster = right_cluster()
    labels = {"theirs": {VENDOR: "Other"}, "ours": {VENDOR: "NVIDIA"}, "silent": {}}
    cluster["nodes"] = [{**node(name), **meta(name, labels=of)} for name, of in labels.items()]
    cluster["devices"] = [device(name, vendors=[""]) for name in labels]
    cluster["devices"] += [device("gone"), device("nics", vendors=[], types=["rdma"])]
    cluster["nodes"] += [node("nics"), node("bare")]
    found = delivery(snapshot(cluster))
    assert found[0].what == f"containers get their cards on 2 nodes (ours, silent) by {BY_CLASS}"
    cluster["devices"] = []
    assert delivery(snapshot(cluster)) == []


def test_without_settings_or_runtime_classes_nothing_is_claimed() -> None:
    assert delivery(snapshot(settings_problem="none")) == []
    whole = snapshot()
    unread = {**whole.read, "runtimes": ReadList(error="nobody may list it")}
    assert delivery(replace(whole, read=unread)) == []
    (found,) = [one for one in examine(replace(whole, read=unread)) if "nobody may list it" in one.what]
    assert (found.level, found.what) == (Level.UNKNOWN, "RuntimeClasses cannot be read: nobody may list it")
    for key in ("nodes", "devices"):
        assert delivery(replace(whole, read={**whole.read, key: ReadList(cut=True)})) == []
