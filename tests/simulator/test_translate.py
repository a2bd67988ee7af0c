"""`koordgate translate`: manifests in every form, outcomes, dialects and exit statuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from console.simulator.translate import TARGETS
from koordgate.cli import main

Raw = dict[str, Any]
HAMI = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}
PATHS: dict[str, tuple[str, ...]] = {
    "Pod": (),
    "PodTemplate": ("template",),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"), ("spec", "template")),
    "ReplicationController": ("spec", "template"),
}
KINDS = tuple(PATHS)
GROUPS = {"Job": "batch/v1", "CronJob": "batch/v1"}
CORE = ("Pod", "PodTemplate", "ReplicationController")
SCALED = ("ReplicationController", "Deployment", "StatefulSet", "ReplicaSet")


def pod(limits: Raw, name: str = "p", **metadata: Any) -> Raw:
    spec = {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}], "hostname": "h"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}


def workload(kind: str, limits: Raw) -> Raw:
    """An object of a kind whose Pods have these limits; a template has labels and no name."""
    inner = pod(limits, labels={"app": "x"})
    inner["spec"] |= {"restartPolicy": "Never"} if kind in GROUPS else {}
    if kind == "Pod":
        return inner
    made: Raw = {"metadata": {"labels": {"app": "x"}}, "spec": inner["spec"]}
    for key in reversed(PATHS[kind]):
        made = {key: made, **({"replicas": 3} if key == "template" and kind in SCALED else {})}
    version = "v1" if kind in CORE else GROUPS.get(kind, "apps/v1")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "w", "namespace": "team"}, **made}


def template(obj: Raw) -> Raw:
    found = obj
    for key in PATHS[obj["kind"]]:
        found = found[key]
    return found


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run the command on objects; returns the exit status, the objects printed, and what is told."""

    def ran(*objects: Any, arguments: tuple[str, ...] = (), settings: str | None = None) -> tuple[int, list[Raw], str]:
        file = tmp_path / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        more = list(arguments)
        if settings is not None:
            (tmp_path / "settings.yaml").write_text(settings)
            more += ["--config", str(tmp_path / "settings.yaml")]
        status = main(["translate", "-f", str(file), *more])
        out, err = capsys.readouterr()
        return status, [one for one in yaml.safe_load_all(out) if one is not None], err

    return ran


def limits(obj: Raw) -> Raw:
    found: Raw = template(obj)["spec"]["containers"][0]["resources"].get("limits", {})
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_pods_of_every_kind_become_what_admission_makes_of_them(run: Any, kind: str) -> None:
    status, (made,), told = run(workload(kind, HAMI))
    assert (status, told) == (0, "")
    asked = {name: text for name, text in limits(made).items() if name.startswith("kubernetes.io/")}
    assert asked == {"kubernetes.io/gpu-core": "60", "kubernetes.io/gpu-memory": "8Gi"}
    inner = template(made)
    assert inner["spec"]["schedulerName"] == "koord-scheduler"
    assert inner["spec"]["hostname"] == "h"
    assert inner["metadata"]["labels"] == {"app": "x"}
    assert inner["metadata"]["annotations"]["koordgate.io/dialect"] == "hami; memory unit 1Mi"
    assert kind == "Pod" or set(inner["metadata"]) == {"labels", "annotations"}
    assert made["metadata"] == workload(kind, HAMI)["metadata"] or kind == "Pod"
    assert "uid" not in made["metadata"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_in_another_dialect(run: Any, kind: str) -> None:
    status, (made,), told = run(workload(kind, HAMI), arguments=("--to", "koordinator"))
    assert (status, told) == (0, "")
    wanted = {"koordinator.sh/gpu.shared": "2", "koordinator.sh/gpu-core": "60", "koordinator.sh/gpu-memory": "8Gi"}
    expected = workload(kind, HAMI)
    template(expected)["spec"]["containers"][0]["resources"]["limits"] = wanted
    assert made == expected
    _, (back,), _ = run(made, arguments=("--to", "hami"))
    assert back == workload(kind, {name: str(amount) for name, amount in HAMI.items()})


def test_all_objects_of_lists_and_documents_are_printed_and_others_as_they_are(run: Any) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}}
    listed = {"apiVersion": "v1", "kind": "List", "items": [service, pod({"cpu": 1}, "plain")]}
    status, made, told = run(listed, pod({"kubernetes.io/gpu": 50}, "ours"))
    assert (status, told) == (0, "")
    assert made[:2] == [service, pod({"cpu": 1}, "plain")]
    assert "koordgate.io/original-request" in made[2]["metadata"]["annotations"]


def test_what_is_refused_is_left_out_and_told_with_status_1(run: Any) -> None:
    status, made, told = run(pod({"kubernetes.io/gpu": 150}, "bad"), pod({"kubernetes.io/gpu": 50}, "good"))
    assert status == 1
    assert [one["metadata"]["name"] for one in made] == ["good"]
    assert "Pod default/bad: refused: spec.containers[0]" in told
    assert "ask 100 or 200" in told


def test_warnings_are_told_with_status_0(run: Any) -> None:
    status, made, told = run(pod({"kubernetes.io/gpu-memory": 4096}))
    assert (status, len(made)) == (0, 1)
    assert "Pod default/p: warning: spec.containers[0].resources.limits[kubernetes.io/gpu-memory]: 4096 is" in told


def test_settings_say_which_dialects_are_read_where_and_in_which_unit(run: Any) -> None:
    text = "dialects: {gpushare: {enabled: true, memoryUnit: 1Mi, namespaces: [team]}}"
    ours, other = pod({"aliyun.com/gpu-mem": 512}, namespace="team"), pod({"aliyun.com/gpu-mem": 512})
    status, made, told = run(ours, other, settings=text)
    assert status == 0
    assert limits(made[0])["kubernetes.io/gpu-memory"] == "512Mi"
    assert made[1] == other
    assert "Pod default/p: warning: spec.containers[0]: aliyun.com/gpu-mem is of the dialect gpushare" in told


def test_the_defaults_of_the_settings_count_where_a_container_states_no_amount(run: Any) -> None:
    text = "dialects: {hami: {enabled: true, defaultMemory: 4Gi, defaultCores: 30, namespaces: [default]}}"
    status, (cores, memory), _ = run(pod({"nvidia.com/gpucores": 50}), pod({"nvidia.com/gpumem": 1024}), settings=text)
    assert status == 0
    for made, amounts in ((cores, ("50", "4Gi")), (memory, ("30", "1Gi"))):
        assert (limits(made)["kubernetes.io/gpu-core"], limits(made)["kubernetes.io/gpu-memory"]) == amounts
    status, (made,), _ = run(pod({"kubernetes.io/gpu-memory": "1Gi"}), settings=text, arguments=("--to", "hami"))
    assert status == 0
    assert limits(made)["nvidia.com/gpucores"] == "0", "its default would limit the compute"


def test_a_form_of_a_dialect_that_is_not_read_is_refused_as_in_a_cluster(run: Any) -> None:
    asked = pod({})
    asked["metadata"]["annotations"] = {"nvidia.com/container.main.gpu-compute.request": "0.5"}
    status, made, told = run(asked)
    assert (status, made) == (1, [])
    assert "is not read; gpu-fraction states compute and memory alike" in told
    assert run(asked, settings="{}")[:2] == (0, [asked])


def test_what_a_dialect_cannot_say_is_told_with_status_1(run: Any) -> None:
    status, made, told = run(pod(HAMI), arguments=("--to", "gpushare"))
    assert (status, made) == (1, [])
    assert "refused: container main: gpushare (Alibaba Cloud gpushare) states no compute (30 % here)" in told
    assert "states no shares of several cards (2 here)" in told


def test_the_unit_of_the_target_is_that_of_the_settings(run: Any) -> None:
    text = "dialects: {elastic-gpu: {memoryUnit: 1Gi}, hami: {enabled: true}}"
    asked = {"nvidia.com/gpumem": 4096}
    status, (made,), _ = run(pod(asked), settings=text, arguments=("--to", "elastic-gpu"))
    assert (status, limits(made)) == (0, {"elasticgpu.io/gpu-memory": "4"})
    status, _, told = run(pod(asked), arguments=("--to", "elastic-gpu"))
    assert status == 2
    assert "its unit of memory has no default; state dialects.elastic-gpu.memoryUnit in --config" in told


def test_selections_go_along_and_what_others_do_not_read_is_told(run: Any) -> None:
    hint = "scheduling.koordinator.sh/device-allocate-hint"
    chosen = {"nvidia.com/use-gputype": "A100", "nvidia.com/use-gpuuuid": "GPU-1", "example.com/x": "y", hint: "{}"}
    status, (made,), told = run(pod(HAMI, annotations=chosen), arguments=("--to", "volcano"))
    assert status == 0
    assert made["metadata"]["annotations"] == {
        "example.com/x": "y",
        hint: "{}",
        "nvidia.com/use-gputype": "A100",
        "volcano.sh/vgpu-use-gpuuuid": "GPU-1",
    }
    assert f"warning: Volcano vGPU does not read the annotation {hint}" in told
    status, _, told = run(pod(HAMI, annotations=chosen), arguments=("--to", "koordinator"))
    assert status == 1
    assert "koordinator.sh cannot select devices by koordgate.io/model as this Pod does" in told


def test_a_translated_pod_is_written_back_without_what_admission_added_to_its_resources(run: Any) -> None:
    _, (translated,), _ = run(pod(HAMI))
    status, (back,), _ = run(translated, arguments=("--to", "hami"))
    assert status == 0
    assert limits(back).keys() == HAMI.keys()
    assert "annotations" not in back["metadata"]


@pytest.mark.parametrize("to", TARGETS)
def test_a_pod_without_devices_stays_as_it_is(run: Any, to: str) -> None:
    settings = "dialects: {elastic-gpu: {memoryUnit: 1Mi}}"
    status, (made,), told = run(pod({"cpu": 1}), arguments=("--to", to), settings=settings)
    assert (status, made, told) == (0, pod({"cpu": 1}), "")


def task(name: str, limits: Raw) -> Raw:
    inner = pod(limits)
    return {"name": name, "replicas": 2, "template": {"metadata": {"labels": {"app": name}}, "spec": inner["spec"]}}


def volcano_job(*tasks: Raw) -> Raw:
    spec = {"minAvailable": 1, "schedulerName": "volcano", "tasks": list(tasks)}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}, "spec": spec}


def test_every_template_of_an_object_of_any_kind_is_translated(run: Any) -> None:
    job = volcano_job(task("a", {"cpu": 1}), task("b", {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}))
    status, (made,), told = run(job)
    assert (status, told) == (0, "")
    first, second = made["spec"]["tasks"]
    assert first == job["spec"]["tasks"][0]
    assert second["template"]["spec"]["containers"][0]["resources"]["limits"]["kubernetes.io/gpu-memory"] == "3000Mi"
    assert second["template"]["metadata"]["labels"] == {"app": "b"}
    assert (second["replicas"], made["spec"]["schedulerName"]) == (2, "volcano")


def test_a_template_that_its_own_controller_completes_is_left_as_it_is(run: Any) -> None:
    spec = {"containers": [{"image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    service = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "s"}}
    service["spec"] = {"template": {"spec": spec}}
    status, out, err = run(service)
    assert (status, out) == (0, [service])
    assert "warning: spec.template is left as it is: spec.containers[0].name is missing" in err


def test_an_object_is_left_out_if_one_of_its_templates_is_refused_and_the_template_is_named(run: Any) -> None:
    job = volcano_job(task("a", {"kubernetes.io/gpu": 50}), task("b", {"kubernetes.io/gpu": 150}))
    status, made, told = run(job)
    assert (status, made) == (1, [])
    assert "Job default/v: refused: spec.tasks[1].template: spec.containers[0]" in told
    assert "tasks[0]" not in told


WHOLE: dict[str, Raw] = {
    "koordinator": {"koordinator.sh/gpu": "100"},
    "kubernetes": {"kubernetes.io/gpu": "100"},
    "nvidia": {"nvidia.com/gpu": "1"},
    "hami": {"nvidia.com/gpu": "1"},
    "volcano": {
        "volcano.sh/vgpu-number": "1",
        "volcano.sh/vgpu-cores": "100",
        "volcano.sh/vgpu-memory-percentage": "100",
    },
    "volcano-share": {"volcano.sh/gpu-number": "1"},
    "gpushare": {},
    "kai": {},
    "tencent": {"tencent.com/vcuda-core": "100"},
    "elastic-gpu": {"elasticgpu.io/gpu-core": "100"},
    "amd": {"amd.com/gpu": "1"},
    "dcu": {"dcu.com/gpu": "1"},
}


@pytest.mark.parametrize("to", TARGETS)
def test_a_whole_card_is_asked_for_in_the_names_of_the_target_whatever_the_settings_turn_on(run: Any, to: str) -> None:
    units = "elastic-gpu: {memoryUnit: 1Gi, namespaces: [team]}, gpushare: {memoryUnit: 1Gi}"
    whole = pod({"kubernetes.io/gpu": "100"})
    for on in ("", ", hami: {enabled: true, namespaces: [team]}, kai: {enabled: true}"):
        status, made, _ = run(whole, arguments=("--to", to), settings=f"dialects: {{{units}{on}}}")
        assert (status, [limits(one) for one in made]) == ((0, [WHOLE[to]]) if WHOLE[to] else (1, []))


def test_a_reader_that_goes_away_ends_it_as_a_tool_of_unix(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps(pod({"cpu": 1})))
    argv = (sys.executable, "-m", "koordgate", "translate", "-f", str(file))
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


UNUSABLE = {
    "no Pod spec": (
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {}},
        "has no Pod spec",
    ),
    "no containers": ({**pod({}), "spec": {"containers": 3}}, "the API server would refuse it"),
    "no kind": ({"metadata": {"name": "x"}}, "the object has no kind"),
    "no object": ("text", "str where a Kubernetes object must be"),
}


@pytest.mark.parametrize(("obj", "told"), UNUSABLE.values(), ids=UNUSABLE)
def test_what_is_no_manifest_is_status_2(run: Any, obj: Any, told: str) -> None:
    status, made, error = run(obj)
    assert (status, made) == (2, [])
    assert told in error


def test_wrong_settings_are_status_2(run: Any) -> None:
    status, _, told = run(pod(HAMI), settings="dialects: {x: {enabled: true}}")
    assert status == 2
    assert "there is no such dialect" in told


def test_json_is_one_object_or_a_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    for objects in ([pod({"cpu": 1})], [pod({"cpu": 1}), pod({"cpu": 2}, "q")]):
        file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}))
        assert main(["translate", "-f", str(file), "-o", "json"]) == 0
        made = json.loads(capsys.readouterr().out)
        assert (made["items"] if len(objects) > 1 else [made]) == objects
