"""The checks of `koordgate doctor` at their bounds, with several nodes, Pods and entries of each kind."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from doctor.test_checks import (
    AGREES,
    AUTHORITY,
    NOW,
    PLUGIN,
    POLICIES,
    SETTINGS,
    SPACE,
    WEBHOOKS,
    device,
    entries,
    leaf,
    meta,
    node,
    pod,
    quota,
    right_cluster,
    secret,
    snapshot,
    workload,
)
from msgspec import structs

from allocator.vocabulary.delivery import Keeping, LimitProvider, MemoryUse
from allocator.vocabulary.dialects import PEERS
from allocator.wire.noderuntime import write_uses
from console.doctor import trials
from console.doctor.checks import examine
from console.doctor.command import data, summary
from console.doctor.findings import Finding, Level, listed
from console.doctor.rights import needed, review
from console.doctor.snapshot import Right
from console.doctor.trials import Came, Expect, Trial, TrialOutcome, translated_by, untouched
from webhook.settings import DialectSettings, Identity, WebhookSettings, parse
from webhook.tls.pki import new_authority, new_certificate

Raw = dict[str, Any]


def told(area: str, cluster: dict[str, list[Raw]] | None = None, **about: Any) -> list[tuple[Level, str]]:
    """What the checks of an area find."""
    return [(one.level, one.what) for one in examine(snapshot(cluster, **about)) if one.area == area]


# Clocks


@pytest.mark.parametrize(
    ("offset", "level", "words"),
    [
        (5.0, Level.OK, "this machine's clock is the API server's"),
        (-5.0, Level.OK, "this machine's clock is the API server's"),
        (5.5, Level.WARNING, "6 s behind"),
        (-5.5, Level.WARNING, "6 s ahead of"),
        (1800.0, Level.WARNING, "1800 s behind"),
        (1800.6, Level.FAILURE, "1801 s behind"),
        (-1800.0, Level.WARNING, "1800 s ahead of"),
    ],
)
def test_five_seconds_are_no_difference_and_half_an_hour_is_no_failure(offset: float, level: Level, words: str) -> None:
    found = [one for one in told("clocks", offset=offset) if "this machine" in one[1]]
    assert [one for one, _ in found] == [level]
    assert words in found[0][1]


def test_kubelets_may_be_15_seconds_ahead_and_60_behind_and_those_that_are_away_do_not_count() -> None:
    cluster = right_cluster()
    renewed = {"away": 600.0, "none": None, "ahead": 15, "far-ahead": 16, "behind": -60, "a-far-behind": -61}
    cluster["nodes"] = [node(name, ready=name != "away") for name in renewed]
    cluster["leases"] = [
        {**meta(name), "renewed": (NOW + timedelta(seconds=at)).isoformat() if at is not None else None}
        for name, at in renewed.items()
    ]
    cluster["leases"].insert(2, {**meta("unknown"), "renewed": (NOW - timedelta(days=1)).isoformat()})
    assert told("clocks", cluster)[1:] == [
        (Level.WARNING, "the clocks of 1 node are ahead of the API server's: far-ahead"),
        (Level.WARNING, "the clocks of 1 node are behind the API server's: a-far-behind"),
        (Level.OK, "the clocks of 2 kubelets are the API server's"),
    ]


# Certificates


@pytest.mark.parametrize(
    ("days", "level", "words"),
    [
        (1.0, Level.FAILURE, "the certificate expired at 2026-03-01 12:00 UTC"),
        (1.01, Level.WARNING, "the certificate expires at 2026-03-01"),
        (6.0, Level.WARNING, "the certificate expires at 2026-03-06"),
        (6.01, Level.OK, "valid until 2026-03-06"),
    ],
)
@pytest.mark.parametrize(("at", "name"), [(0, "koordgate-tls"), (1, "koordgate-extender-tls")])
def test_a_certificate_ends_soon_five_days_before_its_end(
    at: int, name: str, days: float, level: Level, words: str
) -> None:
    cluster = right_cluster()
    cluster["secrets"][at] = secret(name, leaf(days=days), AUTHORITY)
    found = [one for one in told("certificates", cluster) if name in one[1]]
    assert found[0][0] is level
    assert words in found[0][1]
    assert len(found) == (2 if level is Level.WARNING else 1)


@pytest.mark.parametrize(
    ("days", "levels"),
    [
        (6.0, [Level.WARNING, Level.WARNING]),
        (6.01, [Level.OK, Level.WARNING]),
        (91.0, [Level.OK, Level.WARNING]),
        (91.01, [Level.OK, Level.OK]),
    ],
)
def test_the_ca_of_the_extender_ends_soon_ninety_days_before_its_end(days: float, levels: list[Level]) -> None:
    cluster = right_cluster()
    authority = new_authority("koordgate", NOW - timedelta(days=1), days)
    cluster["secrets"] = [
        secret(name, leaf(authority, 6.005), authority) for name in ("koordgate-tls", "koordgate-extender-tls")
    ]
    found = [one for one in told("certificates", cluster) if "the CA expires" in one[1]]
    assert len(found) == levels.count(Level.WARNING)
    assert all(level is Level.WARNING for level, _ in found)
    todo = {one.what.partition(" expires")[0]: one.todo for one in examine(snapshot(cluster)) if "expires" in one.what}
    see = "see the log of deployment/koordgate: clocks, or rights to the Secret"
    assert todo.get("Secret koordgate-extender-tls: the CA", "") == (
        "restart koord-scheduler" if levels[1] is Level.WARNING else ""
    )
    assert {word for what, word in todo.items() if what != "Secret koordgate-extender-tls: the CA"} <= {see}


def test_a_certificate_of_tomorrow_is_not_valid_yet() -> None:
    cluster = right_cluster()
    later = new_certificate(AUTHORITY, ["koordgate.koordgate-system.svc"], [], NOW + timedelta(days=1), 30)
    cluster["secrets"][0] = secret("koordgate-tls", later, AUTHORITY)
    found = [one for one in told("certificates", cluster) if one[0] is Level.FAILURE]
    assert len(found) == 1
    assert "Secret koordgate-tls: the certificate is valid from 2026-03-0" in found[0][1]


def test_each_secret_is_judged_though_another_is_wrong() -> None:
    cluster = right_cluster()
    cluster["secrets"] = [{**meta("koordgate-tls"), "data": {"tls.crt": "!"}}]
    assert [(level, what.partition(":")[0]) for level, what in told("certificates", cluster)][2:] == [
        (Level.FAILURE, "Secret koordgate-tls"),
        (Level.FAILURE, "there is no Secret koordgate-extender-tls"),
    ]
    cluster["secrets"] = [secret("koordgate-extender-tls", leaf(), AUTHORITY)]
    assert [level for level, _ in told("certificates", cluster)][2:] == [Level.FAILURE, Level.OK]


def test_both_configurations_are_judged_though_one_cannot_be_read() -> None:
    cluster = right_cluster()
    cluster["mutating"] = []
    cluster["validating"][0]["webhooks"] = entries(WEBHOOKS["validating"][:1])
    found = told("certificates", cluster)
    assert found[0] == (Level.FAILURE, "there is no mutating webhook configuration koordgate")
    assert found[1] == (
        Level.FAILURE,
        "the validating webhook configuration koordgate lacks guard.validate.koordgate.io, pods.validate.koordgate.io",
    )
    assert found[2] == (Level.OK, "the validating webhook configuration koordgate has 1 entries with a CA")


# Dry runs


@pytest.mark.parametrize(("length", "words"), [(300, "x" * 300), (301, "x" * 296 + " ...")])
def test_300_characters_of_a_message_are_told(length: int, words: str) -> None:
    trial = Trial("a Pod", Expect.TRANSLATED, "team", {})
    outcomes = (TrialOutcome(trial, Came.NO_ANSWER, "x" * length), TrialOutcome(trial, Came.NO_ANSWER, "short"))
    assert told("dry run", outcomes=outcomes) == [
        (Level.UNKNOWN, f"a Pod (team): {words}"),
        (Level.UNKNOWN, "a Pod (team): short"),
    ]


def test_what_a_pod_is_stored_as_tells_whether_it_was_changed() -> None:
    ours: Raw = {"spec": {"schedulerName": "koord-scheduler"}}
    noted: Raw = {"metadata": {"annotations": {"koordgate.io/original-request": "{}"}}}
    assert [translated_by(one, "koord-scheduler") for one in (ours, noted, {}, {"spec": None})] == [True] + [False] * 3
    assert [untouched(one, "koord-scheduler") for one in (ours, noted, {}, {"metadata": None})] == [
        False,
        False,
        True,
        True,
    ]


# What is installed


@pytest.mark.parametrize(
    ("wanted", "ready", "level"),
    [(2, 3, Level.OK), (2, 2, Level.OK), (2, 1, Level.WARNING), (2, 0, Level.FAILURE), (0, 0, Level.FAILURE)],
)
def test_a_workload_is_right_if_all_its_pods_are_ready(wanted: int, ready: int, level: Level) -> None:
    cluster = right_cluster()
    cluster["deployments"][0] |= {"wanted": wanted, "ready": ready}
    found = [one for one in told("installed", cluster) if one[1].startswith("koordgate: ")]
    assert found == [(level, f"koordgate: {ready} of {wanted} Pods are ready")]


def test_why_containers_do_not_start_is_told_of_the_workloads_own_pods() -> None:
    cluster = right_cluster()
    cluster["deployments"][0]["ready"] = 1
    for at, reasons in enumerate((["", "ImagePullBackOff", "CrashLoopBackOff"], ["ImagePullBackOff"], ["Other"])):
        cluster["pods"][at]["waiting"] = reasons
    (todo,) = [one.todo for one in examine(snapshot(cluster)) if one.what == "koordgate: 1 of 2 Pods are ready"]
    assert todo == (
        "kubectl -n koordgate-system get pods; kubectl -n koordgate-system logs deployments/koordgate "
        "(CrashLoopBackOff, ImagePullBackOff)"
    )


def test_queues_are_its_own_if_both_the_level_and_the_schema_are_there() -> None:
    cluster = right_cluster()
    cluster["levels"], cluster["flows"] = cluster["levels"][:1], cluster["flows"][1:]
    assert told("installed", cluster)[-1] == (
        Level.WARNING,
        "no priority level and flow schema of its own: koord-scheduler, koordgate",
    )


# Policies and agreement


def test_pods_of_several_nodes_are_compared_though_one_cannot_be_read() -> None:
    cluster = right_cluster()
    texts = ["{", AGREES, None, '{"u3": {"pod": "team/c", "agrees": false}, "u4": 7, "u5": {"agrees": false}}', "[]"]
    cluster["devices"] = [
        {**meta(f"n{at}", annotations={} if text is None else {"koordgate.io/pod-agreement": text})}
        | {"types": [], "vendors": [], "managers": []}
        for at, text in enumerate(texts)
    ]
    found = [one for one in told("enforcement", cluster) if one[0] is not Level.OK]
    assert found == [
        (Level.WARNING, "annotation koordgate.io/pod-agreement cannot be read on n0, n4"),
        (Level.FAILURE, "Pods with other devices or CPUs than allocated (3): ?, team/b, team/c"),
    ]
    for one in cluster["devices"]:
        one["metadata"]["annotations"] = {"koordgate.io/pod-agreement": AGREES.replace("false", "true")}
    assert told("enforcement", cluster)[-1] == (
        Level.OK,
        "Pods with what was allocated to them, as far as reporters see it: 10",
    )


def limited(*uses: MemoryUse) -> list[tuple[Level, str]]:
    """What is told of a node whose containers have this, beside what is told of any."""
    cluster = right_cluster()
    usual = told("enforcement", cluster)
    cluster["devices"][0]["metadata"]["annotations"]["koordgate.io/memory-limits"] = write_uses(uses)
    return [one for one in told("enforcement", cluster) if one not in usual]


def test_pods_that_are_not_kept_to_their_memory_are_named_once_each() -> None:
    kept = MemoryUse("GPU-0", "team", "a", "main", Keeping.ENFORCED, 1, 10, 10, 10)
    loose = [replace(kept, pod="b", card=card, keeping=Keeping.MISSING, limit=None) for card in ("GPU-0", "GPU-1")]
    greedy = replace(kept, pod="c", keeping=Keeping.ACCOUNTING, limit=None, wanted=None, used=11)
    assert limited(kept, replace(kept, container="side")) == [
        (Level.OK, "containers that the driver keeps to their memory of cards: 2")
    ]
    assert limited(kept, *loose, greedy) == [
        (Level.FAILURE, "Pods not kept to their memory of cards (1): team/b"),
        (Level.WARNING, "Pods that use more memory of cards than they hold (1): team/c"),
    ]
    assert limited(replace(greedy, used=10)) == []
    by_library = replace(kept, keeping=Keeping.INJECTED, provider=LimitProvider.HAMI_CORE)
    assert limited(kept, by_library) == [
        (Level.OK, "containers that the driver keeps to their memory of cards: 1"),
        (Level.OK, "containers started with what keeps well-behaved programs to their part of a card: 1"),
    ]


# Other products


def test_each_place_where_another_product_runs_is_named() -> None:
    cluster = right_cluster()
    cluster["daemonsets"] += [workload("p", "gpu", PLUGIN), workload("q", "gpu", PLUGIN)]
    cluster["deployments"] += [workload("sched", "hami", "docker.io/projecthami/hami:v2")]
    names = ("vgpu.hami.io", "pods.koordinator.sh", "x.koordinator.sh.koordgate.io")
    cluster["mutating"].append({**meta("h"), "webhooks": [{"name": name, "clientConfig": {}} for name in names]})
    assert [what for _, what in told("other products", cluster)][:3] == [
        "NVIDIA's device plugin runs: gpu/p, gpu/q",
        "HAMi runs: hami/sched, webhook vgpu.hami.io",
        "Koordinator's koord-manager runs: webhook pods.koordinator.sh",
    ]
    assert told("other products") == [
        (Level.OK, "none of 9 known products runs here"),
        (Level.OK, "no device plugin offers nvidia.com/gpu on the 2 nodes whose cards koordgate gives"),
    ]


def test_a_koordlet_that_alone_writes_devices_is_right() -> None:
    cluster = right_cluster()
    cluster["daemonsets"] = [workload("koordlet", "k", "koordlet:1")]
    assert told("other products", cluster, reporter={}) == [
        (Level.OK, "Koordinator's koordlet runs: k/koordlet; koordgate reads its objects")
    ]
    cluster["daemonsets"], cluster["deployments"] = [], [workload("koordlet", "k", "koordlet:1")]
    assert told("other products", cluster, reporter={}) == [(Level.WARNING, "Koordinator's koordlet runs: k/koordlet")]


def test_nodes_are_given_twice_where_the_reporter_itself_lists_cards() -> None:
    cluster = right_cluster()
    names = ("theirs", "nics", "zero", "plain", "both-b", "both-a")
    offers = {"theirs": "8", "nics": "8", "zero": "0", "both-a": "8", "both-b": "1"}
    cluster["nodes"] = [
        node(name, allocatable={"nvidia.com/gpu": offers[name]} if name in offers else {}) for name in names
    ]
    cluster["devices"] = [
        device(name, types=["rdma"] if name == "nics" else ["rdma", "gpu"])
        | {"managers": ["koordlet"] if name == "theirs" else ["koordlet", "koordgate-reporter"]}
        for name in names
    ]
    assert (
        Level.WARNING,
        "a device plugin offers nvidia.com/gpu on 2 nodes of koordgate's: both-a, both-b",
    ) in told("other products", cluster)
    assert not [what for _, what in told("other products", cluster, reporter={}) if "offers" in what]


# Nodes


def test_nodes_with_cards_are_known_by_either_label() -> None:
    cluster = right_cluster()
    labels = {
        "a": {"nvidia.com/gpu.present": "true"},
        "b": {"feature.node.kubernetes.io/pci-10de.present": "true"},
        "c": {"nvidia.com/gpu.present": "false"},
        "d": {},
    }
    cluster["nodes"] += [{**node(name), **meta(name, labels=of)} for name, of in labels.items()]
    assert told("nodes", cluster)[0] == (Level.FAILURE, "nodes with NVIDIA cards and no Device object (2): a, b")
    for name in "ab":
        cluster["devices"].append(device(name, managers=["koordlet"]))
        cluster["topologies"].append({**meta(name, annotations={}), "managers": ["koordlet"]})
    assert told("nodes", cluster)[:2] == [
        (Level.OK, "4 of 6 nodes have Device objects"),
        (Level.OK, "a reporter is ready on all 2 ready nodes that it reports"),
    ]


def test_what_is_known_of_a_node_is_fresh_while_its_reporter_is_ready() -> None:
    cluster = right_cluster()
    names = ("n1", "n2", "n3", "n4", "n5")
    cluster["nodes"] = [node(name, ready=name not in {"n2", "n4"}) for name in names]
    managed: Raw = {"managers": ["koordgate-reporter"]}
    cluster["devices"] = [device(name, **managed) for name in (*names, "gone")]
    cluster["topologies"] = [{**meta(name), **managed} for name in names[1:]]
    cluster["pods"] = [pod(f"r-{name}", "koordgate-reporter", name) for name in ("n1", "n2", "n3", "n5")]
    cluster["pods"][2]["ready"] = False
    cluster["pods"].append(pod("other", "koordgate", "n3"))
    assert told("nodes", cluster)[:4] == [
        (Level.WARNING, "Device objects of nodes that do not exist: gone"),
        (Level.OK, "5 of 5 nodes have Device objects"),
        (Level.FAILURE, "what koordgate knows of 1 node is not kept up to date: n3"),
        (Level.WARNING, "nodes with devices that are not ready (2): n2, n4"),
    ]
    assert (Level.WARNING, "nodes without a NodeResourceTopology (2): gone, n1") in told("nodes", cluster)
    cluster["pods"][2]["ready"] = True
    assert (Level.OK, "a reporter is ready on all 3 ready nodes that it reports") in told("nodes", cluster)


def test_kubelets_that_choose_cpus_are_counted() -> None:
    cluster = right_cluster()
    cluster["topologies"] = [
        {**meta(name, annotations={} if policy is None else {"kubelet.koordinator.sh/cpu-manager-policy": policy})}
        | {"managers": []}
        for name, policy in (
            ("a", '{"policy":"static"}'),
            ("b", '{"policy":"none"}'),
            ("c", None),
            ("d", '{"policy":"static"}'),
            ("e", "{}"),
        )
    ]
    assert told("nodes", cluster)[-1] == (
        Level.WARNING,
        "the kubelets of 2 nodes choose CPUs by their static policy",
    )
    cluster["topologies"] = cluster["topologies"][1:3] + cluster["topologies"][4:]
    assert told("nodes", cluster)[-1] == (Level.OK, "the kubelets of 2 nodes choose no CPUs by themselves")


# Quotas and rights


def test_each_quota_that_names_devices_needs_its_mirror() -> None:
    cluster = right_cluster()
    cluster["quotas"] += [
        quota("cpus", {"requests.cpu": "4"}),
        quota("odd", {"requests.nvidia.com/gpu": "4"}),
        quota("wrong", {"requests.nvidia.com/gpu": "0.5"}),
        quota("more", {"requests.nvidia.com/gpu": "1"}, namespace="other"),
    ]
    assert told("quotas", cluster) == [
        (Level.FAILURE, "quotas that name devices and have no right mirror (3): other/more, team/odd, team/wrong")
    ]
    assert told("quotas") == [(Level.OK, "all quotas that name devices have their mirrors (1)")]
    cluster["quotas"] = [quota("cpus", {"requests.cpu": "4"})]
    assert told("quotas", cluster) == [(Level.OK, "no quota names a resource that translation removes")]


def test_rights_are_judged_account_by_account() -> None:
    asked = needed(SETTINGS, reporter=True, configz=False)
    accounts = ("koordgate", "koordgate-reporter")
    counts = {account: sum(one.account == account for one in asked) for account in accounts}
    assert told("rights") == [(Level.OK, f"account {one} has its {counts[one]} rights") for one in accounts]
    lost = [one for one in asked if one.account == "koordgate-reporter"][:2]
    unasked = next(one for one in asked if one.account == "koordgate")
    found = told("rights", rights={**dict.fromkeys(asked, True), **dict.fromkeys(lost, False), unasked: None})
    assert [level for level, _ in found] == [Level.UNKNOWN, Level.FAILURE]
    assert found[1][1] == f"account koordgate-reporter may not {listed([str(one) for one in lost])}"


def test_a_review_names_what_the_right_names() -> None:
    asked = review(Right("koordgate", "get", "apps", "deployments", "one", "there"), "space")["spec"]
    assert asked == {
        "user": "system:serviceaccount:space:koordgate",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:space", "system:authenticated"],
        "resourceAttributes": {
            "verb": "get",
            "group": "apps",
            "resource": "deployments",
            "name": "one",
            "namespace": "there",
        },
    }
    assert str(Right("koordgate", "get", "apps", "deployments", "one")) == "get deployments.apps one"
    assert str(Right("koordgate", "get", "", "pods")) == "get pods"


@pytest.mark.parametrize(
    ("yaml", "resource", "verbs"),
    [
        ("", "devicetaintrules", ""),
        ("dra: {taints: true}", "devicetaintrules", "create delete list watch"),
        ("dra: {enabled: false, taints: true}", "devicetaintrules", ""),
        ("dra: {enabled: false}", "resourceclaims", ""),
        ("", "resourceclaims", "get list watch"),
        ("", "nodes", "list watch"),
        ("headroom: {mode: taint}", "nodes", "get list patch watch"),
        ("", "tokenreviews", ""),
        ("map: {enabled: true}", "tokenreviews", "create"),
        ("quota: {enabled: false}", "resourcequotas", ""),
        ("", "resourcequotas", "create delete get list update watch"),
        ("", "nodeallocations", "create delete get list update watch"),
    ],
)
def test_rights_follow_from_the_settings(yaml: str, resource: str, verbs: str) -> None:
    asked = needed(parse(yaml), reporter=False, configz=True)
    assert sorted(one.verb for one in asked if one.resource == resource) == verbs.split()
    assert {one.account for one in asked} <= {"koordgate"}


@pytest.mark.parametrize(
    ("yaml", "names"),
    [
        ("", ["", "koordgate-extender-tls", "koordgate-scheduler-tls", "koordgate-tls"]),
        ("scheduler: {clientCertificates: false}", ["", "koordgate-extender-tls", "koordgate-tls"]),
        ("certificate: {files: {certificate: /a, key: /b, authority: /c}}", []),
    ],
)
def test_secrets_are_asked_for_where_the_webhook_makes_them(yaml: str, names: list[str]) -> None:
    asked = [one for one in needed(parse(yaml), reporter=False, configz=False) if one.resource == "secrets"]
    assert sorted({one.name for one in asked}) == names
    assert {one.namespace for one in asked} <= {SPACE}


def test_the_reporter_needs_more_where_its_settings_ask_for_more() -> None:
    few, many = (
        {one for one in needed(SETTINGS, reporter=True, configz=more, policies=more) if one.account != "koordgate"}
        for more in (False, True)
    )
    assert {str(one) for one in many - few} == {"get nodes/proxy", "list clusterpolicies.nvidia.com"}
    assert few < many


def test_the_plainest_that_a_dialect_can_say_is_tried() -> None:
    on = {one.name: DialectSettings(True, (), "1Mi" if one.sized else "") for one in PEERS}
    planned, _ = trials.plan(WebhookSettings(dialects=on), "team", dict.fromkeys(POLICIES, "Deny"))
    asked = {
        one.about.removeprefix("a Pod in the dialect ").partition(" (")[0]: (
            one.body["spec"]["containers"][0]["resources"]["limits"] or one.body["metadata"]["annotations"]
        )
        for one in planned
        if "in the dialect" in one.about
    }
    assert asked == {
        "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "50", "nvidia.com/gpumem-percentage": "50"},
        "volcano": {
            "volcano.sh/vgpu-number": "1",
            "volcano.sh/vgpu-cores": "50",
            "volcano.sh/vgpu-memory-percentage": "50",
        },
        "volcano-share": {"volcano.sh/gpu-number": "1"},
        "gpushare": {"aliyun.com/gpu-mem": "8192"},
        "kai": {"gpu-fraction": "0.5"},
        "tencent": {"tencent.com/vcuda-core": "100"},
        "elastic-gpu": {"nano-gpu/gpu-percent": "50"},
        "amd": {"amd.com/gpu": "1"},
        "dcu": {"dcu.com/gpu": "1"},
    }
    refused = {one.about: one.by for one in planned if one.expect is Expect.REFUSED}
    assert refused == {
        "a Pod that claims to hold a device": ("koordgate", "scheduling.koordinator.sh/device-allocated"),
        "a Pod for a GPU that names its node": ("koordgate", "nodeName"),
        "a Pod that shows itself all cards": ("koordgate", "NVIDIA_VISIBLE_DEVICES"),
        "a Binding by another user that brings an allocation": (
            "koordgate",
            "scheduling.koordinator.sh/device-allocated",
        ),
    }
    bindings = [one for one in planned if one.binding]
    assert [(one.user, one.body["target"]["name"], one.body["metadata"]["name"]) for one in bindings] == [
        ("", "koordgate-doctor", "koordgate-doctor"),
        ("system:serviceaccount:koordgate-system:koord-scheduler", "koordgate-doctor", "koordgate-doctor"),
    ]


# Versions and the report


@pytest.mark.parametrize(
    ("version", "level"),
    [
        ("v1.33.13", Level.FAILURE),
        ("v1.34.0", Level.OK),
        ("1.37.9", Level.OK),
        ("v1.38.0", Level.WARNING),
        ("v2.0.0", Level.WARNING),
        ("v0.99", Level.FAILURE),
        ("one", Level.UNKNOWN),
    ],
)
def test_versions_from_1_34_to_1_37_are_right(version: str, level: Level) -> None:
    assert told("versions", version=version)[0][0] is level


def test_images_of_our_own_pods_are_compared() -> None:
    cluster = right_cluster()
    cluster["pods"] += [
        pod("s", "koord-scheduler", "n1", "kube-scheduler:9"),
        {**pod("e", "koordgate", "n1"), "images": []},
    ]
    assert told("versions", cluster)[1] == (Level.OK, "all Pods of koordgate run koordgate:1")
    cluster["pods"][3]["images"] = ["koordgate:2", "sidecar:1"]
    assert told("versions", cluster)[1] == (
        Level.WARNING,
        "Pods of koordgate run 2 images: koordgate:1, koordgate:2",
    )


def test_each_definition_is_judged_though_another_is_wrong() -> None:
    cluster = right_cluster()
    names = [one["metadata"]["name"] for one in cluster["crds"]]
    assert told("versions", cluster)[-1] == (Level.OK, f"definitions are there and served: {', '.join(names)}")
    whole = cluster["crds"]
    cluster["crds"] = whole[1:]
    assert [level for level, _ in told("versions", cluster)][2:] == [Level.FAILURE, Level.OK]
    cluster["crds"] = whole
    shorter = next(one for one in whole if len(one["spec"]["versions"][0].get("additionalPrinterColumns", ())) > 1)
    shorter["spec"]["versions"][0]["additionalPrinterColumns"].append({"name": "more"})
    found = told("versions", cluster)
    assert (Level.WARNING, f"the definition {shorter['metadata']['name']} is not that of this version's chart") in found
    shorter["metadata"]["labels"] = {}
    assert [level for level, _ in told("versions", cluster)][2:] == [Level.OK]


def test_findings_are_counted_by_level() -> None:
    levels = [Level.FAILURE] * 2 + [Level.WARNING] + [Level.UNKNOWN] * 3 + [Level.OK] * 4
    found = [Finding("a", level, f"w{at}", "t") for at, level in enumerate(levels)]
    assert summary(found) == "2 failures, 1 warning, 3 not known, 4 ok"
    assert summary(found[3:]) == "0 failures, 0 warnings, 3 not known, 4 ok"
    assert data(found[:1], 1) == {
        "exitStatus": 1,
        "findings": [{"level": "failure", "area": "a", "what": "w0", "todo": "t"}],
    }


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("edcba", "a, b, c, d, e"),
        ("fedcba", "a, b, c, d, e and 1 more"),
        ("kjihgfedcba", "a, b, c, d, e and 6 more"),
    ],
)
def test_five_names_are_listed(names: str, text: str) -> None:
    assert listed(list(names)) == text


def test_without_settings_nothing_is_judged_by_them() -> None:
    found = examine(snapshot(settings_problem="no ConfigMap", outcomes=()))
    judged = {"versions", "clocks", "installed", "rights", "other products", "nodes", "told"}
    assert {one.area for one in found} == judged


# Names beside those that are looked for


def test_workloads_of_names_and_namespaces_beside_koordgates_are_not_its_own() -> None:
    cluster = right_cluster()
    spaces = ("a", SPACE, "zoo")
    beside = [workload(name, space, wanted=9, ready=0) for name in ("a", "zz") for space in spaces]
    beside += [workload("koordgate", space, wanted=1, ready=0) for space in ("a", "zoo")]
    beside += [workload("koord-scheduler", space, wanted=1, ready=0) for space in ("a", "zoo")]
    cluster["deployments"] = [*beside, *cluster["deployments"], *beside]
    assert [one for one in told("installed", cluster) if one[0] is not Level.OK] == []
    cluster["deployments"] = beside
    assert [what for level, what in told("installed", cluster) if level is not Level.OK] == [
        "there is no koordgate among the deployments of koordgate-system",
        "koord-scheduler is not installed by this chart",
    ]


@pytest.mark.parametrize("label", ["a", "koordgate-other", "zz"])
def test_why_containers_of_others_do_not_start_is_not_told(label: str) -> None:
    cluster = right_cluster()
    cluster["deployments"][0]["ready"] = 1
    cluster["pods"].append({**pod("other", label, "n1"), "waiting": ["Broken"]})
    (todo,) = [one.todo for one in examine(snapshot(cluster)) if one.what == "koordgate: 1 of 2 Pods are ready"]
    assert todo == "kubectl -n koordgate-system get pods; kubectl -n koordgate-system logs deployments/koordgate"


@pytest.mark.parametrize(("wanted", "one"), [(0, False), (1, True), (2, False), (3, False)])
def test_one_replica_is_told_of(wanted: int, *, one: bool) -> None:
    cluster = right_cluster()
    cluster["deployments"][0] |= {"wanted": wanted, "ready": wanted}
    assert ((Level.WARNING, "the webhook has one replica") in told("installed", cluster)) is one


def test_each_configuration_is_looked_for_by_its_own_name() -> None:
    identity = Identity(mutating="the-mutating", validating="the-validating")
    cluster = right_cluster()
    for key in ("mutating", "validating"):
        beside = [{**meta(name), "webhooks": []} for name in ("a", "koordgate", "zz")]
        cluster[key] = [*beside, {**cluster[key][0], **meta(f"the-{key}")}, *beside]
    found = told("certificates", cluster, settings=structs.replace(SETTINGS, identity=identity))
    assert found[:2] == [
        (Level.OK, "the mutating webhook configuration the-mutating has 3 entries with a CA"),
        (Level.OK, "the validating webhook configuration the-validating has 3 entries with a CA"),
    ]


@pytest.mark.parametrize("name", ["a-tls", "zz-tls"])
def test_only_the_webhooks_own_ca_must_be_trusted_by_the_api_server(name: str) -> None:
    other = new_authority("other", NOW - timedelta(days=1), 365)
    cluster = right_cluster()
    cluster["secrets"][1] = secret(name, leaf(other), other)
    certificate = structs.replace(SETTINGS.certificate, extender_secret=name)
    found = told("certificates", cluster, settings=structs.replace(SETTINGS, certificate=certificate))
    assert [level for level, _ in found] == [Level.OK] * 4


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("step", [1, -1])
def test_each_policy_is_judged_by_its_own_binding(at: int, step: int) -> None:
    cluster = right_cluster()
    cluster["policyBindings"][at]["spec"]["validationActions"] = ["Warn"]
    cluster["policyBindings"] = cluster["policyBindings"][::step]
    others = [name for name in POLICIES[:5] if name != POLICIES[at]]
    assert told("enforcement", cluster)[:2] == [
        (Level.WARNING, f"the policy {POLICIES[at]} refuses nothing (Warn)"),
        (Level.OK, f"the API server itself refuses what these policies name: {', '.join(others)}"),
    ]


@pytest.mark.parametrize("label", ["a", "koordgate", "zz"])
def test_only_a_reporter_keeps_what_is_known_of_a_node(label: str) -> None:
    cluster = right_cluster()
    cluster["pods"][2] = pod("other", label, "node-1")
    assert (Level.FAILURE, "what koordgate knows of 1 node is not kept up to date: node-1") in told("nodes", cluster)


# What is tried


TRIED = """
devices: {types: [{name: queue, resource: example.com/queue}]}
dialects:
  hami: {enabled: true, namespaces: [a, b]}
  volcano: {enabled: true}
  kai: {enabled: false}
  amd: {enabled: true}
"""
SCHEDULER = "system:serviceaccount:koordgate-system:koord-scheduler"


@pytest.mark.parametrize("action", ["Audit", "Deny", "Warn"])
def test_what_is_tried_follows_from_the_settings(action: str) -> None:
    actions = dict.fromkeys(("koordgate-preset-node", "koordgate-visible-devices", "koordgate-bindings"), action)
    planned, untried = trials.plan(parse(TRIED), "team", actions)
    denied = [
        ("a Pod for a GPU that names its node", "refused", "team", ""),
        ("a Pod that shows itself all cards", "refused", "team", ""),
        ("a Binding by another user that brings an allocation", "refused", "team", ""),
    ]
    assert [(one.about, str(one.expect), one.namespace, one.user) for one in planned] == [
        ("a Pod that asks for nvidia.com/gpu", "translated", "team", ""),
        ("a Pod that asks for kubernetes.io/gpu-core", "translated", "team", ""),
        ("a Pod that asks for koordinator.sh/gpu-core", "translated", "team", ""),
        ("a Pod that asks for example.com/queue", "answered", "team", ""),
        ("a Pod with CPUs of its own", "translated", "team", ""),
        ("a Pod in the dialect hami (HAMi)", "translated", "a", ""),
        ("a Pod in the dialect volcano (Volcano vGPU)", "translated", "team", ""),
        ("a Pod in the dialect amd (AMD's device plugin)", "translated", "team", ""),
        ("a Pod that asks for nothing of koordgate's", "left alone", "team", ""),
        ("a Pod for a GPU in the exempt namespace kube-system", "left alone", "kube-system", ""),
        ("a Pod for a GPU in the exempt namespace koordgate-system", "left alone", "koordgate-system", ""),
        ("a Pod that claims to hold a device", "refused", "team", ""),
        *(denied if action == "Deny" else []),
        (f"a Binding by {SCHEDULER}", "answered", "team", SCHEDULER),
    ]
    assert [one.about for one in planned if one.binding] == [
        *(["a Binding by another user that brings an allocation"] if action == "Deny" else []),
        f"a Binding by {SCHEDULER}",
    ]
    assert untried == []
