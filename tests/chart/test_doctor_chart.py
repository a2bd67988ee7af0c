"""`helm test` and `koordgate doctor`: the chart's rights are those that the command uses and asks about."""

from collections.abc import Iterator

import pytest
from chart.conftest import Render

from console.doctor import policies, reader, rights
from console.doctor.snapshot import Right
from localplane import chart
from localplane.admin import JsonObject
from localplane.binaries import Binaries
from localplane.chart import find, settings_text
from webhook import settings

NAME = "koordgate-doctor"
HOOK = "helm.sh/hook"
EVERYTHING = {
    "gangs": {"allOrNothing": True},
    "dra": {"taints": True},
    "headroom": {"mode": "taint"},
    "map": {"enabled": True},
    "reporter": {"kubelet": {"configz": True}},
}


@pytest.fixture(scope="module")
def tested(binaries: Binaries) -> list[JsonObject]:
    """The hooks of `helm test`, with values of their own."""
    values = {"doctor": {"tryIn": "team-a", "strict": True}, "nodeSelector": {"role": "system"}}
    rendered = chart.render(binaries, values, tests=True)
    return [one for one in rendered if HOOK in (one["metadata"].get("annotations") or {})]


def rules(roles: list[JsonObject]) -> Iterator[Right]:
    for role in roles:
        for rule in role["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            space = role["metadata"].get("namespace", "")
                            yield Right(role["metadata"]["name"], verb, group, resource, name, space)


@pytest.mark.parametrize("values", [{}, EVERYTHING, {"quota": {"enabled": False}, "dra": {"enabled": False}}])
def test_each_right_of_the_chart_is_asked_about_and_no_other(values: JsonObject, render: Render) -> None:
    objects = render(values)
    accounts = ("koordgate", "koordgate-reporter")
    roles = [one for one in objects if one["kind"] in {"Role", "ClusterRole"} and one["metadata"]["name"] in accounts]
    configz = bool(values.get("reporter"))
    asked = rights.needed(settings.parse(settings_text(objects)), reporter=True, configz=configz, policies=True)
    assert len(set(asked)) == len(asked)
    assert set(asked) == set(rules(roles))


def test_a_review_asks_for_the_account_and_the_subresource() -> None:
    asked = rights.review(Right("koordgate", "patch", "", "nodes/status"), "space")["spec"]
    assert asked["user"] == "system:serviceaccount:space:koordgate"
    assert asked["resourceAttributes"] == {"verb": "patch", "group": "", "resource": "nodes", "subresource": "status"}


def test_the_test_is_a_pod_that_runs_the_command(tested: list[JsonObject]) -> None:
    pod = find(tested, "Pod", NAME)
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["koordgate"]
    assert container["args"] == ["doctor", "--installed-in", chart.NAMESPACE, "--try-in", "team-a", "--strict"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["nodeSelector"] == {"role": "system"}
    assert pod["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation"  # its log is read


def test_all_of_it_is_a_test_hook_and_the_rights_go_with_it(tested: list[JsonObject]) -> None:
    assert {one["metadata"]["annotations"][HOOK] for one in tested} == {"test"}
    for one in tested:
        if one["kind"] != "Pod":
            assert one["metadata"]["annotations"]["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
            assert int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
        assert one["metadata"]["labels"]["app.kubernetes.io/part-of"] == "koordgate"


def test_the_test_may_read_what_the_command_reads_but_no_secret(tested: list[JsonObject]) -> None:
    roles = [one for one in tested if one["kind"] in {"Role", "ClusterRole"}]
    given = {(one.group, one.resource, one.verb) for one in rules(roles)}
    used = {
        (one.resource.group, one.resource.plural, "get" if one.names else "list")
        for one in reader.wanted(chart.NAMESPACE, settings.WebhookSettings())
    }
    of_kubernetes = "admissionregistration.k8s.io"
    used |= {(of_kubernetes, "mutatingadmissionpolicies", "list")}
    used |= {(group, "*", "list") for group in policies.READ if group != of_kubernetes}
    writes = {
        ("", "pods", "create"),
        ("", "pods/binding", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }
    assert given == (used - {("", "secrets", "get")}) | {("", "configmaps", "get")} | writes


def test_pods_are_tried_in_three_namespaces_and_bindings_in_one(tested: list[JsonObject]) -> None:
    roles = [one for one in tested if one["kind"] == "Role" and one["metadata"]["name"] == f"{NAME}-tries"]
    resources = {one["metadata"]["namespace"]: one["rules"][0]["resources"] for one in roles}
    assert resources == {
        "team-a": ["pods", "pods/binding"],
        "kube-system": ["pods"],
        chart.NAMESPACE: ["pods"],
    }


def test_its_account_is_limited_to_dry_runs_even_without_a_test(objects: list[JsonObject]) -> None:
    policy = find(objects, "ValidatingAdmissionPolicy", NAME)["spec"]
    account = f"system:serviceaccount:{chart.NAMESPACE}:{NAME}"
    assert policy["matchConditions"][0]["expression"] == f"request.userInfo.username == '{account}'"
    assert policy["validations"][0]["expression"] == "request.dryRun"
    assert find(objects, "ValidatingAdmissionPolicyBinding", NAME)["spec"]["validationActions"] == ["Deny"]
    assert not [one for one in objects if one["kind"] == "Pod"]


IMAGE = "registry.example.com/busybox:1.37"


@pytest.fixture(scope="module")
def probing(binaries: Binaries) -> list[JsonObject]:
    """All objects with the hooks, where the test also probes."""
    return chart.render(binaries, {"doctor": {"tryIn": "team-a", "probe": IMAGE}}, tests=True)


def test_a_probing_test_has_the_rights_that_the_probe_uses_and_time_for_it(
    probing: list[JsonObject], tested: list[JsonObject]
) -> None:
    def given(objects: list[JsonObject]) -> set[tuple[str, str, str]]:
        hooks = [one for one in objects if HOOK in (one["metadata"].get("annotations") or {})]
        roles = [one for one in hooks if one["kind"] in {"Role", "ClusterRole"}]
        return {(one.verb, one.resource, one.namespace) for one in rules(roles)}

    assert given(probing) - given(tested) == {
        ("get", "pods", "team-a"),
        ("delete", "pods", "team-a"),
        ("list", "events", "team-a"),
        ("patch", "nodes", ""),
    }
    pod, plain = find(probing, "Pod", NAME)["spec"], find(tested, "Pod", NAME)["spec"]
    assert pod["containers"][0]["args"][-2:] == ["--probe", IMAGE]
    assert (plain["activeDeadlineSeconds"], pod["activeDeadlineSeconds"]) == (300, 3600)


@pytest.mark.parametrize("image", ["a b", "-x", "busybox'", "a\nb"])
def test_a_probe_of_what_is_no_image_is_refused(image: str, render: Render) -> None:
    with pytest.raises(chart.ChartError, match="probe"):
        render({"doctor": {"probe": image}})
