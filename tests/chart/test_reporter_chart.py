"""What the Helm chart renders for the node reporter."""

from collections.abc import Callable
from typing import Any

import pytest

from localplane.admin import JsonObject
from localplane.chart import ChartError, find
from reporter import settings

Render = Callable[..., list[JsonObject]]
NAME = "koordgate-reporter"
KINDS = (
    *("ClusterRole", "ClusterRoleBinding", "ConfigMap", "DaemonSet", "ServiceAccount"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)


def pod(objects: list[JsonObject]) -> JsonObject:
    spec: JsonObject = find(objects, "DaemonSet", NAME)["spec"]["template"]["spec"]
    return spec


def container(objects: list[JsonObject], name: str = "reporter") -> JsonObject:
    (only,) = (one for one in pod(objects)["containers"] if one["name"] == name)
    return dict(only)


def mounts(objects: list[JsonObject], name: str = "reporter") -> dict[str, tuple[str, bool]]:
    """Host folder -> its mount point in a container, and whether it is writable."""
    hosts = {one["name"]: one["hostPath"]["path"] for one in pod(objects)["volumes"] if "hostPath" in one}
    return {
        hosts[one["name"]]: (one["mountPath"], not one.get("readOnly", False))
        for one in container(objects, name)["volumeMounts"]
        if one["name"] in hosts
    }


def read(objects: list[JsonObject]) -> settings.ReporterSettings:
    return settings.parse(find(objects, "ConfigMap", NAME)["data"]["config.yaml"])


@pytest.mark.parametrize(
    ("values", "domain"),
    [
        ({}, "kubernetes.io"),
        ({"domain": "koordinator.sh"}, "koordinator.sh"),
        ({"domain": "koordinator.sh", "reporter": {"domain": "kubernetes.io"}}, "kubernetes.io"),
    ],
    ids=str,
)
def test_device_objects_are_in_the_domain_of_requests_unless_set_otherwise(
    render: Render, values: dict[str, Any], domain: str
) -> None:
    assert read(render(values)).domain == domain


@pytest.mark.parametrize(
    ("proof", "added"),
    [
        ({"environment": True}, {"add": ["DAC_READ_SEARCH", "SYS_PTRACE"]}),
        ({"enabled": False, "environment": True}, {}),
        ({"enabled": False}, {}),
    ],
    ids=["environments", "environments without a proof", "no proof"],
)
def test_capabilities_are_added_only_where_environments_are_read(
    render: Render, proof: dict[str, Any], added: dict[str, list[str]]
) -> None:
    rendered = render({"reporter": {"proof": proof}})

    assert container(rendered)["securityContext"]["capabilities"] == {"drop": ["ALL"], **added}


@pytest.mark.parametrize(
    ("reporter", "shared"),
    [
        ({}, True),
        ({"gpus": {"enabled": False}}, False),
        ({"gpus": {"enabled": False}, "proof": {"environment": True}}, True),
        ({"proof": {"enabled": False, "environment": True}}, False),
    ],
    ids=["processes on cards", "no cards", "environments", "no proof"],
)
def test_the_hosts_processes_are_seen_only_where_a_proof_looks_at_them(
    render: Render, reporter: dict[str, Any], *, shared: bool
) -> None:
    assert pod(render({"reporter": reporter})).get("hostPID", False) is shared


RUNTIME = ("/etc/cdi", "/var/run/cdi", "/etc/containerd", "/etc/nvidia-container-runtime")


def test_folders_about_the_container_runtime_are_made_where_they_are_missing_and_can_be_chosen(
    render: Render, objects: list[JsonObject]
) -> None:
    """A mount of a folder that is missing would keep the reporter from starting."""
    volumes = {one["hostPath"]["path"]: one["hostPath"]["type"] for one in pod(objects)["volumes"] if "hostPath" in one}
    assert {volumes[folder] for folder in RUNTIME} == {"DirectoryOrCreate"}
    chosen = ["/etc/crio", "/usr/local/nvidia/toolkit/.config/nvidia-container-runtime"]
    rendered = render({"reporter": {"runtime": {"directories": chosen}}})

    assert read(rendered).runtime.directories == tuple(chosen)
    assert {folder for folder in mounts(rendered) if folder.startswith(("/etc", "/var/run", "/usr"))} == set(chosen)


def test_a_reporter_that_sees_cards_by_nvidias_nri_plugin_proves_nothing_about_the_runtime(render: Render) -> None:
    rendered = render({"reporter": {"gpus": {"byNri": True}}})
    template = find(rendered, "DaemonSet", NAME)["spec"]["template"]

    shown = template["metadata"]["annotations"]["nvidia.cdi.k8s.io/container.reporter"]
    assert (shown, container(rendered)["name"]) == ("management.nvidia.com/gpu=all", "reporter")
    assert {one["name"] for one in container(rendered)["env"]} == {"NODE_NAME"}
    assert read(rendered).runtime.own_handler is None


HIDDEN = ("pods", "pki", "plugins", "plugins_registry")


def covered(objects: list[JsonObject]) -> set[str]:
    """The folders over which an empty one is mounted."""
    empty = {one["name"] for one in pod(objects)["volumes"] if one.get("emptyDir") == {}}
    mounted = [one for one in container(objects)["volumeMounts"] if one["name"] in empty]
    assert all(one["readOnly"] for one in mounted)
    return {one["mountPath"] for one in mounted}


def test_the_secrets_of_pods_and_the_kubelets_keys_are_not_seen(render: Render) -> None:
    rendered = render({"reporter": {"kubelet": {"directory": "/data/kubelet"}}})

    assert mounts(rendered)["/data/kubelet"] == ("/data/kubelet", False)
    assert covered(rendered) == {f"/data/kubelet/{folder}" for folder in HIDDEN}


def test_every_hidden_folder_is_there_before_something_is_mounted_over_it(objects: list[JsonObject]) -> None:
    """A mount over a folder that is missing would keep the reporter from starting."""
    (first,) = pod(objects)["initContainers"]
    made = {one["name"]: one["hostPath"] for one in pod(objects)["volumes"] if "hostPath" in one}
    folders = [made[one["name"]] for one in first["volumeMounts"] if one["name"] in made]

    assert folders == [{"path": f"/var/lib/kubelet/{name}", "type": "DirectoryOrCreate"} for name in HIDDEN]
    assert first["command"] == container(objects)["command"]
    assert first["args"] == [*container(objects)["args"], "--check"]
    assert first["securityContext"] == container(objects)["securityContext"]


def test_what_is_hidden_can_be_chosen(render: Render) -> None:
    assert covered(render({"reporter": {"kubelet": {"hidden": ["pods"]}}})) == {"/var/lib/kubelet/pods"}
    rendered = render({"reporter": {"kubelet": {"hidden": []}}})
    assert covered(rendered) == set()
    assert "initContainers" not in pod(rendered)


@pytest.mark.parametrize("mode", ["leave", "write", "undo"])
def test_an_installation_that_still_sets_the_take_over_is_told_what_to_do(render: Render, mode: str) -> None:
    with pytest.raises(ChartError, match=r"reporter\.cpus\.takeOver is no longer there.*enforcement\.enabled"):
        render({"reporter": {"cpus": {"takeOver": mode}}})


def test_it_runs_on_every_node_or_on_selected_ones(render: Render, objects: list[JsonObject]) -> None:
    assert pod(objects)["tolerations"] == [{"operator": "Exists"}]
    assert "nodeSelector" not in pod(objects)
    chosen = {"nodeSelector": {"gpu": "yes"}, "tolerations": [], "affinity": {"nodeAffinity": {}}}
    placed = pod(render({"reporter": {**chosen, "gpus": {"runtimeClassName": "nvidia"}}}))

    assert placed["nodeSelector"] == {"gpu": "yes"}
    assert "tolerations" not in placed
    assert placed["runtimeClassName"] == "nvidia"
    assert "runtimeClassName" not in pod(objects)
    assert placed["affinity"] == {"nodeAffinity": {}}


def daemon_sets(objects: list[JsonObject]) -> dict[str, JsonObject]:
    return {one["metadata"]["name"]: one["spec"] for one in objects if one["kind"] == "DaemonSet"}


CARD_NODES = {"nvidia.com/gpu.present": "true"}


def test_nodes_with_cards_have_the_runtime_class_and_all_others_a_reporter_without_it(render: Render) -> None:
    gpus = {"runtimeClassName": "nvidia", "runtimeClassNodes": CARD_NODES}
    rendered = render({"reporter": {"gpus": gpus, "nodeSelector": {"zone": "a"}}})
    made = daemon_sets(rendered)
    plain, cards = (made[name]["template"]["spec"] for name in (NAME, f"{NAME}-gpu"))

    assert set(made) == {NAME, f"{NAME}-gpu"}
    assert (plain.get("runtimeClassName"), cards["runtimeClassName"]) == (None, "nvidia")
    assert (plain["nodeSelector"], cards["nodeSelector"]) == ({"zone": "a"}, {"zone": "a", **CARD_NODES})
    apart = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
    assert required(plain) == [{"matchExpressions": [apart]}]
    assert "affinity" not in cards
    data = find(rendered, "ConfigMap", NAME)["data"]
    handlers = {key: settings.parse(text).runtime.own_handler for key, text in data.items()}
    assert handlers == {"config.yaml": "", "gpu.yaml": "nvidia"}
    (first,), (second,) = (one["containers"] for one in (plain, cards))
    assert [one["args"][3] for one in (first, second)] == ["/etc/koordgate/config.yaml", "/etc/koordgate/gpu.yaml"]


def required(spec: JsonObject) -> Any:
    return spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]


def test_pods_of_the_two_kinds_are_told_apart_by_their_labels(render: Render) -> None:
    made = daemon_sets(render({"reporter": {"gpus": {"runtimeClassName": "gpu", "runtimeClassNodes": CARD_NODES}}}))
    labels = {name: one["template"]["metadata"]["labels"] for name, one in made.items()}

    assert made[f"{NAME}-gpu"]["selector"]["matchLabels"].items() <= labels[f"{NAME}-gpu"].items()
    assert not made[f"{NAME}-gpu"]["selector"]["matchLabels"].items() <= labels[NAME].items()
    assert {one["app.kubernetes.io/name"] for one in labels.values()} == {NAME}


def test_the_administrators_affinity_holds_beside_staying_off_nodes_with_cards(render: Render) -> None:
    mine = {"key": "a", "operator": "Exists"}
    terms: list[JsonObject] = [
        {"matchExpressions": [mine]},
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
    ]
    affinity = {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}},
        "podAffinity": {},
    }
    gpus = {"runtimeClassName": "nvidia", "runtimeClassNodes": CARD_NODES}
    made = daemon_sets(render({"reporter": {"gpus": gpus, "affinity": affinity}}))
    plain, cards = (made[name]["template"]["spec"] for name in (NAME, f"{NAME}-gpu"))

    apart = {"key": "nvidia.com/gpu.present", "operator": "NotIn", "values": ["true"]}
    assert required(plain) == [{"matchExpressions": [mine, apart]}, {**terms[1], "matchExpressions": [apart]}]
    assert plain["affinity"]["podAffinity"] == {}
    assert cards["affinity"] == affinity


@pytest.mark.parametrize(
    "gpus",
    [{}, {"runtimeClassNodes": CARD_NODES}, {"runtimeClassName": "nvidia"}],
    ids=["nothing stated", "nodes without a class", "a class for all nodes"],
)
def test_otherwise_there_is_one_kind_of_reporters(render: Render, gpus: dict[str, Any]) -> None:
    assert set(daemon_sets(render({"reporter": {"gpus": gpus}}))) == {NAME}


def test_a_change_of_settings_replaces_the_pods(render: Render, objects: list[JsonObject]) -> None:
    sums = [
        find(rendered, "DaemonSet", NAME)["spec"]["template"]["metadata"]["annotations"]["koordgate.io/config-checksum"]
        for rendered in (objects, render({"reporter": {"roundSeconds": 3}}))
    ]

    assert sums[0] != sums[1]


def test_without_it_nothing_of_it_is_left(render: Render, objects: list[JsonObject]) -> None:
    assert [one["kind"] for one in sorted(objects, key=lambda one: one["kind"]) if one["metadata"]["name"] == NAME] == (
        list(KINDS)
    )

    assert all(one["metadata"]["name"] != NAME for one in render({"reporter": {"enabled": False}}))


@pytest.mark.parametrize(
    "values",
    [
        {"port": 0},
        {"roundSeconds": 0},
        {"domain": "nvidia.com"},
        {"gpus": {"discoveryLabels": "yes"}},
        {"gpus": {"runtimeClassNodes": {"a": "b", "c": "d"}}},
        {"gpus": {"runtimeClassName": "nvidia", "byNri": True}},
        {"kubelet": {"directory": "var/lib/kubelet"}},
        {"kubelet": {"directory": "/var/lib/kubelet/"}},
        {"kubelet": {"hidden": ["pods/.."]}},
        {"runtime": {"directories": ["/etc/docker"]}},
        {"runtime": {"directories": ["etc/cdi"]}},
        {"runtime": {"directories": ["/etc/cdi", "/etc/cdi"]}},
        {"pci": [{"type": "dsp"}]},
        {"pci": [{"type": "dsp", "vendor": "10ee"}]},
        {"cpu": {}},
        {"cpus": {"enforce": "now"}},
    ],
    ids=[
        "port",
        "round",
        "no domain of ours",
        "no switch",
        "two labels",
        "two ways to see cards",
        "no absolute path",
        "slash at the end",
        "no folder in it",
        "a folder of another name",
        "no absolute path of a folder",
        "a folder twice",
        "no vendor",
        "no hexadecimal number",
        "misspelt",
        "no mode",
    ],
)
def test_a_wrong_value_is_refused(render: Render, values: dict[str, Any]) -> None:
    with pytest.raises(ChartError, match="reporter"):
        render({"reporter": values})


@pytest.mark.parametrize("values", [{}, {"cpus": {"enforce": False}}, {"kubelet": {"directory": "/data/kubelet"}}])
def test_what_is_mounted_below_a_folder_that_is_only_read_is_only_read(render: Render, values: dict[str, Any]) -> None:
    read_only = [one for one in container(render({"reporter": values}))["volumeMounts"] if one.get("readOnly")]

    of_the_host = [one for one in read_only if one["name"] not in {"config", "nothing"}]
    assert of_the_host
    assert {one.get("recursiveReadOnly") for one in of_the_host} == {"IfPossible"}


def test_the_device_managers_folder_is_there_wherever_the_kubelets_is(render: Render) -> None:
    rendered = render({"reporter": {"kubelet": {"directory": "/data/kubelet"}}})

    assert mounts(rendered)["/var/lib/kubelet/device-plugins"] == ("/var/lib/kubelet/device-plugins", False)


ENFORCING = {"enforcement": {"enabled": True}}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def test_by_default_there_is_no_enforcer_and_the_token_is_mounted_as_usual(objects: list[JsonObject]) -> None:
    assert [one["name"] for one in pod(objects)["containers"]] == ["reporter"]
    assert "automountServiceAccountToken" not in pod(objects)


def test_the_enforcer_has_no_token_and_no_capability_and_what_it_sees_of_the_host_is_listed(render: Render) -> None:
    objects = render(ENFORCING)

    assert pod(objects)["automountServiceAccountToken"] is False
    assert TOKEN in {one["mountPath"] for one in container(objects)["volumeMounts"]}
    assert container(objects, "enforcer")["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert mounts(objects, "enforcer") == {
        "/var/run/nri": ("/var/run/nri", False),
        "/var/lib/kubelet/device-plugins": ("/var/lib/kubelet/device-plugins", False),
        "/var/lib/koordgate/enforcer": ("/var/lib/koordgate/enforcer", True),
    }
    assert find(objects, "DaemonSet", NAME)["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0


def test_for_limits_of_the_driver_it_may_administrate_and_has_the_hosts_cgroups(render: Render) -> None:
    objects = render(ENFORCING | {"limits": {"provider": "cgroup"}})

    assert container(objects, "enforcer")["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    assert mounts(objects, "enforcer")["/sys/fs/cgroup"] == ("/sys/fs/cgroup", True)
    assert "add" not in container(objects)["securityContext"]["capabilities"]
    assert read(objects).enforcement.provider == "cgroup"


def test_what_the_administrator_brings_is_seen_by_reporter_and_enforcer(render: Render) -> None:
    values = ENFORCING["enforcement"] | {"hamiCore": {"library": "/opt/hami/libvgpu.so"}, "mps": {"pipe": "/run/mps"}}
    objects = render({"enforcement": values})

    assert {mounts(objects)[path] for path in ("/opt/hami", "/run/mps")} == {("/opt/hami", False), ("/run/mps", False)}
    assert mounts(objects, "enforcer")["/opt/hami"] == ("/opt/hami", False)
    assert mounts(objects, "enforcer")["/run/mps"] == ("/run/mps", True)


def test_its_own_namespace_is_never_closed(render: Render) -> None:
    exempt = {"visibleDevices": {"exemptNamespaces": ["gpu-operator"]}}
    closed = read(render(ENFORCING | {"devices": {"closed": True}, "policies": exempt})).enforcement

    assert closed.closed
    assert closed.exempt_namespaces == ("gpu-operator", "koordgate-system")


@pytest.mark.parametrize(
    ("values", "cure"),
    [
        ({"limits": {"provider": "cgroup"}}, "set enforcement.enabled"),
        ({"devices": {"delivery": "nri"}}, "set enforcement.enabled"),
        ({"devices": {"closed": True}}, "set enforcement.enabled"),
        (ENFORCING | {"reporter": {"enabled": False}}, "set reporter.enabled to true"),
        (ENFORCING | {"limits": {"provider": "cgroup"}, "reporter": {"enabled": False}}, "reporter.enabled to true"),
        (ENFORCING | {"limits": {"provider": "HAMi-core"}}, "state its path as enforcement.hamiCore.library"),
        (ENFORCING | {"limits": {"provider": "mps"}}, "state its pipe directory as enforcement.mps.pipe"),
    ],
    ids=["a provider", "a delivery", "closed", "alone", "no reporter", "no library", "no daemon"],
)
def test_what_only_the_enforcer_does_is_refused_without_it(render: Render, values: dict[str, Any], cure: str) -> None:
    with pytest.raises(ChartError, match=cure):
        render(values)
