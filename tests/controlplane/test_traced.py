"""A bind on a real API server: its audit log names the review and what was decided, and its traces hold ours."""

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from controlplane.gpu_cluster import add_gpu_node, bound, create, pod
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from localplane import chart
from localplane.admin import ApiError, JsonObject
from localplane.binaries import Binaries
from localplane.koord import start_koord_scheduler
from localplane.plane import ControlPlane
from localplane.replicas import Replicas
from localplane.waiting import until

TEAM = "team"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "rules": [
        {
            "level": "Metadata",
            "omitStages": ["RequestReceived"],
            "resources": [{"group": "", "resources": ["pods", "pods/binding"]}],
        },
        {"level": "None"},
    ],
}
TRACING = {
    "apiVersion": "apiserver.config.k8s.io/v1beta1",
    "kind": "TracingConfiguration",
    "endpoint": "127.0.0.1:1",  # nobody is there: what matters is what it tells its webhooks
    "samplingRatePerMillion": 1_000_000,
}


class Traced:
    """An API server with an audit log and traces, a replica that sends its traces, and what came of both."""

    def __init__(self, folder: Path) -> None:
        self.audit_log = folder / "audit.log"
        self.spans: list[Span] = []
        self.replicas: Replicas
        self.uid = ""

    def events(self, name: str, subresource: str = "") -> list[JsonObject]:
        """The finished requests about a Pod, without those that failed."""
        lines = self.audit_log.read_text().splitlines() if self.audit_log.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [
            one
            for one in found
            if one["stage"] == "ResponseComplete"
            and one["verb"] == "create"
            and one["objectRef"].get("name") == name
            and one["objectRef"].get("subresource", "") == subresource
        ]

    async def logged(self, *reviews: str) -> list[JsonObject]:
        """What the replica has logged, once it has logged these reviews; it does so after its answer."""

        async def there() -> list[JsonObject]:
            lines = self.replicas.settings_file(0).with_suffix(".log").read_text().splitlines()
            found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
            return found if {*reviews} <= {one.get("review") for one in found} else []

        return await until(there, f"the log has {reviews}")

    async def receive(self, http: web.Request) -> web.Response:
        message = ExportTraceServiceRequest()
        message.ParseFromString(await http.read())
        self.spans += [span for of in message.resource_spans for scope in of.scope_spans for span in scope.spans]
        return web.Response()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def traced(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Traced]:
    folder = tmp_path_factory.mktemp("traced")
    made = Traced(folder)
    (folder / "policy.yaml").write_text(yaml.safe_dump(POLICY))
    (folder / "tracing.yaml").write_text(yaml.safe_dump(TRACING))
    told = (
        f"--audit-policy-file={folder / 'policy.yaml'}",
        f"--audit-log-path={made.audit_log}",
        f"--tracing-config-file={folder / 'tracing.yaml'}",
    )
    app = web.Application()
    app.router.add_post("/v1/traces", made.receive)
    objects = chart.render(binaries)
    async with (
        TestServer(app) as collector,
        ControlPlane(binaries, apiserver_args=told) as plane,
        contextlib.AsyncExitStack() as stack,
    ):
        await plane.ensure_namespace(TEAM)
        await chart.install(plane, objects)
        made.replicas = await Replicas.installed(
            plane,
            objects,
            folder,
            count=1,
            overrides={"tracing": {"endpoint": f"http://127.0.0.1:{collector.port}", "samplingPercent": 0}},
        )
        await stack.enter_async_context(made.replicas)
        await start_koord_scheduler(plane, objects, made.replicas.extender)
        async with plane.admin() as admin:
            await add_gpu_node(plane, admin, "n1", gpus=2)
            await create(admin, [pod("p", TEAM, {"nvidia.com/gpu": "1"})])
            await bound(admin, TEAM, "p")
            wrong = pod("wrong", TEAM, {"kubernetes.io/gpu": "150"})
            with contextlib.suppress(ApiError):
                await create(admin, [wrong])
            made.uid = (await admin.get(f"/api/v1/namespaces/{TEAM}/pods/p"))["metadata"]["uid"]
        yield made


def of(event: JsonObject, webhook: str) -> dict[str, str]:
    prefix = f"{webhook}.koordgate.io/"
    return {key.removeprefix(prefix): value for key, value in event["annotations"].items() if key.startswith(prefix)}


async def test_the_audit_event_of_a_bind_says_what_was_given_and_by_which_review(traced: Traced) -> None:
    async def finished() -> Any:
        return traced.events("p", "binding")

    await until(finished, "the audit log has the bind")
    (event,) = traced.events("p", "binding")
    told = of(event, "bindings.mutate")
    assert told.pop("held").startswith("gpu:")
    review = told.pop("review")
    assert told == {
        "node": "n1",
        "pod-uid": traced.uid,
        "preference": "fragmentation",
        "reason": "the filter found this node the best for the Pod",
        "recorded": "yes",
    }
    (line,) = (one for one in await traced.logged(review) if one.get("review") == review)
    assert (line["pod_uid"], line["node"], line["outcome"]) == (traced.uid, "n1", "patched")


async def test_the_audit_event_of_a_pod_ties_its_translation_to_its_uid(traced: Traced) -> None:
    async def finished() -> Any:
        return traced.events("p")

    await until(finished, "the audit log has the Pod")
    (event,) = traced.events("p")
    translated, validated = of(event, "pods.mutate"), of(event, "pods.validate")
    assert translated["requested"].startswith("main: 1 gpu")
    assert validated["pod-uid"] == traced.uid
    logged = await traced.logged(translated["review"], validated["review"])
    reviews = {one["review"]: one for one in logged if one["message"] == "a review was answered"}
    assert reviews[translated["review"]]["path"] == "/mutate-pod"
    assert reviews[validated["review"]]["pod_uid"] == traced.uid


async def test_spans_of_a_bind_are_in_the_trace_that_the_api_server_states(traced: Traced) -> None:
    async def came() -> Any:
        return {"/mutate-pod", "/mutate-binding", "ledger write"} <= {span.name for span in traced.spans}

    await until(came, "the collector has the bind")
    (bind,) = (span for span in traced.spans if span.name == "/mutate-binding")
    assert len(bind.parent_span_id) == 8, "the API server's span"

    async def told() -> list[JsonObject]:
        return [one for one in await traced.logged() if one.get("path") == "/mutate-binding" and "held" in one]

    (line,) = await until(told, "the log has the bind")
    assert line["trace_id"] == bind.trace_id.hex()
    (write,) = (span for span in traced.spans if span.name == "ledger write")
    assert write.trace_id == bind.trace_id
