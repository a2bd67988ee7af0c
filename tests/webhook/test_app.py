"""The HTTP edge: limits, deadlines, bugs, readiness, the end; no request body breaks or bypasses it."""

import asyncio
import base64
import copy
import gzip
import io
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import ClientSession, TCPConnector
from aiohttp.test_utils import TestClient, TestServer
from builders import GIB, container, pod
from fake_kube import hold
from world import (
    World,
    asks,
    binding,
    binds,
    body,
    gpu_pod,
    plain_pod,
    review,
)
from yarl import URL

from localplane.waiting import until
from webhook import edge
from webhook.app import listen, make_app, make_extender
from webhook.assembly import Parts
from webhook.edge import Draining
from webhook.review import RefusalReason, Request, Response, allowed
from webhook.settings import Certificate, ServeSettings, WebhookSettings
from webhook.tls.certs import MemorySource

Raw = dict[str, Any]
Client = TestClient[Any, Any]
REVIEWS = ["/mutate-pod", "/validate-pod", "/warn-pod", "/mutate-binding", "/validate-binding"]
JSON = {"Content-Type": "application/json"}
EXTENDER = ["/scheduler/filter", "/scheduler/prioritize", "/scheduler/preempt"]


def of(parts: Parts, **changes: Any) -> Parts:
    changed = copy.copy(parts)
    vars(changed).update(changes)
    return changed


@asynccontextmanager
async def serving(
    parts: Parts, unready: Callable[[], list[str]] = list, draining: Draining | None = None, *, path: str = ""
) -> AsyncIterator[Client]:
    """A client of the application that has this path."""
    app = make_extender(parts, draining) if path in EXTENDER else make_app(parts, unready, draining)
    async with TestClient(TestServer(app), headers=JSON) as client:
        yield client


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    async with serving(world.parts) as made:
        yield made


@pytest.fixture
async def extender(world: World) -> AsyncIterator[Client]:
    async with serving(world.parts, path="/scheduler/filter") as made:
        yield made


def impatient(parts: Parts, seconds: float = 0.3) -> Parts:
    return of(parts, settings=WebhookSettings(serve=ServeSettings(deadline_seconds=seconds)))


def metric(parts: Parts, name: str, **labels: str) -> float:
    return parts.metrics._registry.get_sample_value(name, labels) or 0.0


def answered(data: bytes, uid: str = "review-1") -> Raw:
    """The response inside a review, which must answer our request."""
    answer = orjson.loads(data)
    assert answer["kind"] == "AdmissionReview"
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["response"]["uid"] == uid
    return dict(answer["response"])


def told(data: bytes, code: int) -> str:
    """The message of an HTTP failure: of a Status, because the API server quotes no other body."""
    status = orjson.loads(data)
    assert (status["apiVersion"], status["kind"], status["status"]) == ("v1", "Status", "Failure")
    assert status["code"] == code
    assert status["reason"]
    return str(status["message"])


# --- reviews


async def test_a_review_is_answered_in_its_version_with_its_uid(client: Client) -> None:
    http = await client.post("/mutate-pod", data=body(asks(gpu_pod("p", admit=False))))
    assert http.status == 200
    assert http.content_type == "application/json"
    response = answered(await http.read())
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    operations = orjson.loads(base64.b64decode(response["patch"]))
    assert {"op": "add", "path": "/spec/schedulerName", "value": "koord-scheduler"} in operations


async def test_nothing_to_say_is_a_short_answer(client: Client) -> None:
    http = await client.post("/mutate-pod", data=body(asks(plain_pod("p"))))
    assert answered(await http.read()) == {"uid": "review-1", "allowed": True}


@pytest.mark.parametrize(("more", "warned"), [(0, False), (1, True)])
async def test_memory_that_no_known_gpu_has_is_warned_of(world: World, more: int, *, warned: bool) -> None:
    asked = {"kubernetes.io/gpu-core": "10", "kubernetes.io/gpu-memory": str(80 * GIB + more)}
    made = pod(container("first"), container("main", limits=asked, requests=asked), name="p")
    told = [one for one in world.parts.pods.mutate(asks(made)).warnings if "no known GPU" in one]
    expected = (
        "spec.containers[1].resources: no known GPU has the requested memory; the largest has 80 GiB, and the Pod "
        "waits until a larger one joins"
    )
    assert told == warned * [expected]


async def test_a_refusal_is_a_200_with_a_status_inside(client: Client) -> None:
    http = await client.post("/validate-pod", data=body(asks(gpu_pod("p", nodeName="n1"))))
    assert http.status == 200
    response = answered(await http.read())
    assert response["allowed"] is False
    assert response["status"]["code"] == 422
    assert response["status"]["reason"] == "Invalid"
    assert "spec.nodeName" in response["status"]["message"]


async def test_a_bind_goes_through_all_of_it(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    http = await client.post("/mutate-binding?timeout=5s", data=body(binds(binding("p", "n1"))))
    assert answered(await http.read())["auditAnnotations"]["held"] == "gpu:0:GPU-n1-0"
    assert world.holders() == ["p"]


@pytest.mark.parametrize("path", REVIEWS)
@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
async def test_a_review_is_sent_as_json(client: Client, path: str, content_type: str) -> None:
    http = await client.post(path, data=body(asks(plain_pod("p"))), headers={"Content-Type": content_type})
    assert http.status != 415


@pytest.mark.parametrize("path", REVIEWS)
@pytest.mark.parametrize("content_type", ["text/plain", "application/yaml", "application/jsonx", "x" * 500, "", None])
async def test_what_is_sent_as_anything_else_is_a_415_that_says_so(
    world: World, path: str, content_type: str | None
) -> None:
    parts = world.parts
    headers = {} if content_type is None else {"Content-Type": content_type}
    async with TestClient(TestServer(make_app(parts, list))) as client:
        http = await client.post(
            path, data=body(asks(plain_pod("p"))), headers=headers, skip_auto_headers=["Content-Type"]
        )
        assert http.status == 415
        told = await http.text()
    stated = "none" if content_type is None else content_type
    assert f"must have Content-Type application/json, not {stated[:100]}" in told
    assert "x" * 101 not in told
    assert metric(parts, "koordgate_requests_total", path=path, outcome="bad") == 1


BAD: dict[str, Any] = {
    "no JSON": b"{",
    "nothing": b"",
    "not UTF-8": b'{"kind":"\xff"}',
    "a list": b"[]",
    "another kind": orjson.dumps({**review(asks(plain_pod("p"))), "kind": "Pod"}),
    "an old version": orjson.dumps({**review(asks(plain_pod("p"))), "apiVersion": "admission.k8s.io/v1beta1"}),
    "no version": orjson.dumps({"kind": "AdmissionReview", "request": {"uid": "u"}}),
    "no request": orjson.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}),
    "no uid": orjson.dumps({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {}}),
    "very deep": b"[" * 200_000,
}


def with_request(**members: Any) -> bytes:
    made = review(asks(plain_pod("p")))
    made["request"] |= members
    return orjson.dumps(made)


ILL_TYPED: list[dict[str, Any]] = [
    {"uid": 5},
    {"uid": ""},
    {"object": []},
    {"oldObject": "text"},
    {"userInfo": 7},
    {"userInfo": {"username": ["root"]}},
    {"userInfo": {"username": "u", "groups": 5}},
    {"userInfo": {"username": "u", "groups": True}},
    {"resource": "pods"},
    {"operation": 1},
    {"namespace": {}},
]


@pytest.mark.parametrize("path", REVIEWS)
@pytest.mark.parametrize(
    "data", [*BAD.values(), *(with_request(**one) for one in ILL_TYPED)], ids=[*BAD, *(str(one) for one in ILL_TYPED)]
)
async def test_what_is_no_review_is_a_400_that_says_why(world: World, client: Client, path: str, data: bytes) -> None:
    http = await client.post(path, data=data)
    assert http.status == 400
    assert told(await http.read(), 400)
    assert metric(world.parts, "koordgate_requests_total", path=path, outcome="bad") == 1


@pytest.mark.parametrize("path", EXTENDER)
@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"{}", b"null", b'{"Pod":{},"NodeNames":[]}'])
async def test_what_is_no_extender_call_is_a_400_that_says_why(extender: Client, path: str, data: bytes) -> None:
    http = await extender.post(path, data=data)
    assert http.status == 400
    assert orjson.loads(await http.read())["Error"]


@pytest.mark.parametrize("path", [*REVIEWS, *EXTENDER])
async def test_a_body_above_the_limit_is_a_413(world: World, path: str) -> None:
    parts = of(world.parts, settings=WebhookSettings(serve=ServeSettings(body_limit_bytes=2000)))
    async with serving(parts, path=path) as client:
        http = await client.post(path, data=b"x" * 2001)
        assert http.status == 413
        assert path in EXTENDER or "2000" in told(await http.read(), 413)
        assert metric(parts, "koordgate_requests_total", path=path, outcome="bad") == 1
        assert (await client.post(path, data=b" " * 1999 + b"{")).status == 400


@pytest.mark.parametrize("path", [*REVIEWS, *EXTENDER, "/healthz", "/readyz", "/metrics"])
async def test_a_compressed_request_is_a_415_on_every_path(world: World, path: str) -> None:
    source = MemorySource(Certificate(ip_addresses=("127.0.0.1",)))
    await source.start()
    app = make_extender(world.parts) if path in EXTENDER else make_app(world.parts, list)
    serve = ServeSettings(host="127.0.0.1", port=0)
    trust = ssl.create_default_context(cadata=source.ca_bundle.decode())
    async with listen(app, serve, source.context) as port, ClientSession(connector=TCPConnector(ssl=trust)) as session:
        headers = {**JSON, "Content-Encoding": "gzip"}
        async with session.post(f"https://127.0.0.1:{port}{path}", data=gzip.compress(b"{}"), headers=headers) as http:
            assert http.status == 415
            assert told(await http.read(), 415) == "Content-Encoding: no body is decompressed; send it plain"


@pytest.mark.parametrize("value", [b"{}", b"[]", b"1", b'{"a":[]}', b"[[[]]]"])
async def test_a_review_of_very_many_values_is_not_parsed(client: Client, value: bytes) -> None:
    data = b'{"values":[' + b",".join([value] * (500_001 // (value.count(b"[") + value.count(b"{") + 1))) + b"]}"
    http = await client.post("/mutate-pod", data=io.BytesIO(data))
    assert told(await http.read(), 400) == "the AdmissionReview has more than 500000 values"


async def test_a_review_of_many_values_is_parsed(client: Client) -> None:
    data = b'{"values":[' + b",".join([b"{}"] * 249_990) + b"]}"
    http = await client.post("/mutate-pod", data=io.BytesIO(data))
    assert told(await http.read(), 400) == "the body is not an AdmissionReview"


@pytest.mark.parametrize("path", [*REVIEWS, *EXTENDER])
async def test_only_posts_are_answered(world: World, path: str) -> None:
    async with serving(world.parts, path=path) as client:
        assert (await client.get(path)).status == 405
        assert (await client.post(path + "/more", data=b"{}")).status == 404


async def test_each_port_has_its_own_paths_and_none_of_the_other(client: Client, extender: Client) -> None:
    for path in EXTENDER:
        assert (await client.post(path, data=b"{}")).status == 404
    for path in REVIEWS:
        assert (await extender.post(path, data=b"{}")).status == 404
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await client.get(path)).status == 200
        assert (await extender.get(path)).status == 404


# --- deadlines


@pytest.mark.parametrize(
    ("parameter", "seconds"),
    [
        ("", 4.0),
        ("?timeout=2s", 1.75),
        ("?timeout=2.5s", 2.25),
        ("?timeout=2", 1.75),
        ("?timeout=30s", 4.0),
        ("?timeout=0s", 0.2),
        ("?timeout=0.1s", 0.2),
        ("?timeout=-5s", 4.0),
        ("?timeout=soon", 4.0),
        ("?timeout=nan", 4.0),
        ("?timeout=infs", 4.0),
        ("?timeout=" + "9" * 500 + "s", 4.0),
        ("?timeout=%C2%B2s", 4.0),
        ("?timeout=1s&timeout=9s", 0.75),
    ],
)
async def test_the_api_servers_patience_is_the_deadline_less_a_margin(
    world: World, parameter: str, seconds: float
) -> None:
    class Seen:
        deadline = 0.0

        async def mutate(self, _request: Request, deadline: float) -> Response:
            self.deadline = deadline
            return allowed()

        validate = mutate

    seen = Seen()
    async with serving(of(world.parts, bindings=seen)) as client:
        http = await client.post("/mutate-binding" + parameter, data=body(binds(binding("p", "n1"))))
        assert http.status == 200
    assert seconds - 0.15 < seen.deadline <= seconds


async def test_a_review_that_takes_too_long_is_a_5xx_that_says_so(world: World) -> None:
    held = hold()
    world.fake.faults.add("get", "pods", held)  # the Pod is not seen, so it is read
    async with serving(impatient(world.parts)) as client:
        http = await client.post("/mutate-binding", data=body(binds(binding("p", "n1"))))
        assert http.status >= 500
        assert "no decision in 0.3 s" in told(await http.read(), http.status)
    assert held.gate
    held.gate.set()


HEAD = "POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


@pytest.mark.parametrize("path", ["/mutate-pod", "/mutate-binding", "/scheduler/filter"])
async def test_a_body_that_never_comes_is_a_408(world: World, path: str) -> None:
    parts = impatient(world.parts)
    async with serving(parts, path=path) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        writer.write(HEAD.format(path, 10).encode() + b"{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()
        await writer.wait_closed()
    assert metric(parts, "koordgate_requests_total", path=path, outcome="bad") == 1


async def test_what_the_body_took_is_no_longer_there_to_decide(world: World) -> None:
    class Endless:
        deadline = 0.0

        async def mutate(self, _request: Request, deadline: float) -> Response:
            self.deadline = deadline
            await asyncio.Event().wait()
            return allowed()

        validate = mutate

    endless, whole = Endless(), 1.0
    async with serving(of(impatient(world.parts, whole), bindings=endless)) as client:
        reader, writer = await asyncio.open_connection(client.host, client.port)
        data = body(binds(binding("p", "n1")))
        writer.write(HEAD.format("/mutate-binding", len(data)).encode() + data[:10])
        assert (await client.get("/healthz")).status == 200  # by now the server waits for the rest
        writer.write(data[10:])
        assert b" 504 " in await asyncio.wait_for(reader.readline(), 10)
        assert 0 < endless.deadline < whole
        writer.close()
        await writer.wait_closed()


# --- our own failures


class Buggy:
    """Every handler of every part, with one bug."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def sync(self, _request: Any) -> Any:
        raise self._error

    async def later(self, _request: Any, _deadline: float) -> Response:
        raise self._error


def buggy(parts: Parts, error: Exception) -> Parts:
    bug = Buggy(error)

    class Pods:
        mutate = validate = warn = staticmethod(bug.sync)

    class Bindings:
        mutate = validate = staticmethod(bug.later)

    class Extender:
        async def filter_patiently(self, args: Any) -> Any:
            return bug.sync(args)

        prioritize_patiently = preempt_patiently = filter_patiently

    return of(parts, pods=Pods(), bindings=Bindings(), extender=Extender())


MISSHAPEN: dict[str, Any] = {
    "a spec that is text": {"spec": "x"},
    "no containers": {"spec": {}},
    "a container that is a number": {"spec": {"containers": [0]}},
    "requests that are a list": {"spec": {"containers": [{"name": "a", "resources": {"requests": [1]}}]}},
    "a variable that is text": {
        "spec": {"containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}, "env": ["1"]}]}
    },
    "labels that are a list": {"metadata": {"labels": ["a"]}},
    "annotations that are text": {"metadata": {"annotations": "a"}},
}


@pytest.mark.parametrize("path", ["/mutate-pod", "/validate-pod"])
@pytest.mark.parametrize("part", MISSHAPEN.values(), ids=MISSHAPEN)
async def test_a_pod_that_no_api_server_sends_is_the_callers_fault_and_no_bug(
    world: World, client: Client, path: str, part: Any
) -> None:
    made = {**plain_pod("p"), **part}
    http = await client.post(
        path, data=body(asks(plain_pod("p"))).replace(orjson.dumps(plain_pod("p")), orjson.dumps(made))
    )
    assert http.status < 500
    response = answered(await http.read())
    if not response["allowed"]:
        assert response["status"]["code"] in {400, 403, 422}
    assert metric(world.parts, "koordgate_bugs_total", path=path) == 0


async def test_what_is_wrong_in_a_pod_that_no_api_server_sends_is_said(client: Client) -> None:
    made = {**plain_pod("p"), "spec": {"containers": [0]}}
    http = await client.post("/mutate-pod", data=body(asks(made)))
    response = answered(await http.read())
    assert response["status"]["code"] == 400
    assert "Expected `object`, got `int` - at `$.spec.containers[0]`" in response["status"]["message"]


REFUSED: dict[RefusalReason, tuple[str, Request]] = {
    RefusalReason.TRANSLATION: ("/mutate-pod", asks(pod(container(limits={"kubernetes.io/gpu": "150"})))),
    RefusalReason.VALIDATION: ("/validate-pod", asks(gpu_pod("new", admit=False))),
    RefusalReason.TOO_LARGE: ("/mutate-pod", asks(pod(*(container(f"c{number}") for number in range(2000))))),
    RefusalReason.NO_ROOM: ("/mutate-binding", binds(binding("p", "nowhere"))),
    RefusalReason.OTHER_SCHEDULER: ("/validate-binding", binds(binding("p", "n1"), username="system:kube-scheduler")),
    RefusalReason.UNTRANSLATED: ("/validate-binding", binds(binding("plugin", "n1"), username="system:kube-scheduler")),
    RefusalReason.FORGED: ("/validate-binding", binds(binding("p", "n1"))),
    RefusalReason.OUTDATED: ("/mutate-binding", binds(binding("gone", "n1"))),
    RefusalReason.UNREADABLE: ("/mutate-binding", binds(binding("odd", "n1"))),
    RefusalReason.MALFORMED: ("/mutate-binding", binds({**binding("p", "n1"), "target": {}})),
}


@pytest.mark.parametrize("why", REFUSED)
async def test_a_refusal_is_counted_by_its_reason(world: World, client: Client, why: RefusalReason) -> None:
    world.add_pod(gpu_pod("p"))
    world.add_pod(pod(container(limits={"nvidia.com/gpu": "1"}), name="plugin", uid="uid-plugin"))
    odd = gpu_pod("odd")
    odd["metadata"].setdefault("annotations", {})["scheduling.koordinator.sh/device-allocate-hint"] = "nonsense"
    world.show(odd)
    path, question = REFUSED[why]
    http = await client.post(path, data=body(question))
    assert answered(await http.read())["allowed"] is False
    assert counted_refusals(world.parts) == {(path, str(why)): 1}


async def test_failures_of_ours_are_counted_as_refusals_too(world: World) -> None:
    asked = body(binds(binding("p", "n1")))
    async with serving(buggy(world.parts, ZeroDivisionError("oops"))) as client:
        await client.post("/validate-binding", data=asked)
    async with serving(world.parts) as client:
        await world.fake.stop()
        await client.post("/mutate-binding?timeout=1s", data=asked)
    (first, second) = sorted(counted_refusals(world.parts))
    assert first[1] in {RefusalReason.UNAVAILABLE, RefusalReason.LATE}
    assert second == ("/validate-binding", RefusalReason.BUG)


def counted_refusals(parts: Parts) -> dict[tuple[str, str], float]:
    return {
        (sample.labels["path"], sample.labels["reason"]): sample.value
        for family in parts.metrics._registry.collect()
        for sample in family.samples
        if sample.name == "koordgate_refusals_total"
    }


@pytest.mark.parametrize("target", [None, [], "n1", {"name": ["n1"]}], ids=str)
async def test_a_binding_that_no_api_server_sends_is_no_bug(world: World, client: Client, target: Any) -> None:
    made = {**binding("p", "n1"), "target": target}
    for path in ("/mutate-binding", "/validate-binding"):
        http = await client.post(path, data=body(binds(made)))
        assert http.status < 500
        assert answered(await http.read())["status"]["code"] == 400
        assert metric(world.parts, "koordgate_bugs_total", path=path) == 0


@pytest.mark.parametrize("path", REVIEWS)
@pytest.mark.parametrize("error", [ZeroDivisionError("oops"), RecursionError(), KeyError("x"), AssertionError()])
async def test_a_bug_is_one_review_with_a_500_and_a_metric(
    world: World, path: str, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    parts = buggy(world.parts, error)
    question = binds(binding("p", "n1")) if path.endswith("-binding") else asks(plain_pod("p"))
    async with serving(parts) as client:
        for count in (1, 2):
            http = await client.post(path, data=body(question))
            assert http.status == 500
            message = told(await http.read(), 500)
            assert "review-1" in message
            assert "oops" not in message
            assert metric(parts, "koordgate_bugs_total", path=path) == count
        assert metric(parts, "koordgate_requests_total", path=path, outcome="errored") == 2
    assert caplog.records[0].exc_info


@pytest.mark.parametrize(("quiet", "lines"), [(3600.0, 1), (0.0, 3)])
async def test_of_many_reviews_that_are_not_answered_the_log_tells_one(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, quiet: float, lines: int
) -> None:
    monkeypatch.setattr(edge, "_QUIET_S", quiet)
    async with serving(buggy(world.parts, ZeroDivisionError("oops"))) as client:
        for _ in range(3):
            await client.post("/mutate-pod", data=body(asks(plain_pod("p"))))
    assert sum("a review was not answered" in line for line in caplog.messages) == lines


@pytest.mark.parametrize("path", EXTENDER)
async def test_a_bug_in_the_extender_is_a_500_and_a_metric(world: World, path: str) -> None:
    parts = buggy(world.parts, ZeroDivisionError("oops"))
    async with serving(parts, path=path) as client:
        http = await client.post(path, data=b"{}")
        assert http.status == 500
        assert "bug" in orjson.loads(await http.read())["Error"]
    assert metric(parts, "koordgate_bugs_total", path=path) == 1


async def test_an_api_server_that_is_unreachable_is_an_http_503_and_a_warning(
    world: World, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    world.show(gpu_pod("p"))
    await world.fake.stop()
    http = await client.post("/mutate-binding?timeout=1s", data=body(binds(binding("p", "n1"))))
    assert http.status in {503, 504}
    assert told(await http.read(), http.status) in caplog.text


async def test_a_client_that_hangs_up_hurts_nobody(world: World) -> None:
    held = hold()
    world.fake.faults.add("get", "pods", held)
    async with serving(world.parts) as client:
        asked = asyncio.create_task(client.post("/mutate-binding", data=body(binds(binding("p", "n1")))))
        await held.reached.wait()
        asked.cancel()
        assert held.gate
        held.gate.set()
        assert (await client.post("/mutate-pod", data=body(asks(plain_pod("p"))))).status == 200


# --- health and metrics


async def test_healthz_says_ok_whatever_readiness_says(world: World) -> None:
    async with serving(world.parts, lambda: ["not yet"]) as client:
        assert (await client.get("/healthz")).status == 200


async def test_readyz_states_each_reason_in_a_line(world: World) -> None:
    reasons = ["pods are not listed yet", "the CA is not published"]
    async with serving(world.parts, lambda: reasons) as client:
        http = await client.get("/readyz")
        assert http.status == 503
        assert (await http.text()).splitlines() == [f"not ready: {reason}" for reason in reasons]
        assert metric(world.parts, "koordgate_ready") == 0
        reasons.clear()
        assert (await client.get("/readyz")).status == 200
        assert metric(world.parts, "koordgate_ready") == 1


async def test_metrics_are_prometheus_text_of_what_happened(world: World, client: Client, extender: Client) -> None:
    world.show(gpu_pod("p"))
    await client.post("/mutate-pod", data=body(asks(gpu_pod("p", admit=False))))
    await client.post("/validate-pod", data=body(asks(gpu_pod("p", nodeName="n1"))))
    await client.post("/mutate-pod", data=body(asks(plain_pod("p"))))
    await client.post("/mutate-binding", data=body(binds(binding("p", "n1"))))
    await extender.post("/scheduler/filter", data=orjson.dumps({"Pod": plain_pod("p"), "NodeNames": []}))
    http = await client.get("/metrics")
    assert http.content_type == "text/plain"
    text = await http.text()
    for line in (
        'koordgate_requests_total{outcome="patched",path="/mutate-pod"} 1.0',
        'koordgate_requests_total{outcome="allowed",path="/mutate-pod"} 1.0',
        'koordgate_requests_total{outcome="denied",path="/validate-pod"} 1.0',
        'koordgate_requests_total{outcome="patched",path="/mutate-binding"} 1.0',
        'koordgate_requests_total{outcome="allowed",path="/scheduler/filter"} 1.0',
        'koordgate_request_seconds_count{path="/mutate-pod"} 2.0',
        "koordgate_ledger_writes_total 1.0",
        "koordgate_ledger_changes_total 1.0",
    ):
        assert line in text
    for path in ("/mutate-pod", "/scheduler/filter"):
        assert 0 < metric(world.parts, "koordgate_request_seconds_sum", path=path) < 60


# --- the end, over TLS


@asynccontextmanager
async def tls_served(parts: Parts, draining: Draining) -> AsyncIterator[tuple[str, ssl.SSLContext, asyncio.Event]]:
    """The real server; it begins to end when the event is set."""
    source = MemorySource(Certificate(ip_addresses=("127.0.0.1",)))
    await source.start()
    trust = ssl.create_default_context(cadata=source.ca_bundle.decode())
    end, ready = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def serve() -> None:
        async with listen(
            make_app(parts, list, draining), ServeSettings(host="127.0.0.1", port=0), source.context
        ) as port:
            ready.set_result(port)
            await end.wait()
            draining.begun = True

    task = asyncio.create_task(serve())
    try:
        yield f"https://127.0.0.1:{await ready}", trust, end
    finally:
        end.set()
        await task


async def test_over_tls_connections_are_kept_until_the_end_begins(world: World) -> None:
    draining = Draining()
    async with (
        tls_served(world.parts, draining) as (url, trust, _),
        ClientSession(connector=TCPConnector(ssl=trust, limit=1), headers=JSON) as session,
    ):
        data = body(asks(plain_pod("p")))
        async with session.post(url + "/mutate-pod", data=data) as http:
            assert http.status == 200
            assert http.headers.get("Connection", "") != "close"
        draining.begun = True
        async with session.post(url + "/mutate-pod", data=data) as http:
            assert answered(await http.read())["allowed"] is True
            assert http.headers["Connection"] == "close"


async def closed(url: str) -> bool:
    """Whether the listening socket is gone."""
    try:
        _, writer = await asyncio.open_connection(URL(url).host, URL(url).port)
    except OSError:
        return True
    writer.close()
    return False


async def test_what_is_in_flight_when_the_end_comes_is_answered(world: World) -> None:
    world.add_pod(gpu_pod("p"))
    held = hold()
    world.fake.faults.add("get", "pods", held)
    async with (
        tls_served(world.parts, Draining()) as (url, trust, end),
        ClientSession(connector=TCPConnector(ssl=trust), headers=JSON) as session,
    ):
        asked = asyncio.create_task(session.post(url + "/mutate-binding", data=body(binds(binding("p", "n1")))))
        await held.reached.wait()
        end.set()
        await until(lambda: closed(url), "nobody is let in any more")
        assert not asked.done()
        assert held.gate
        held.gate.set()
        http = await asked
        assert answered(await http.read())["allowed"] is True
    assert world.holders() == ["p"]


async def test_a_client_without_our_authority_or_without_tls_is_turned_away(world: World) -> None:
    async with tls_served(world.parts, Draining()) as (url, _, _), ClientSession() as session:
        with pytest.raises(OSError, match="certificate verify failed"):
            await session.get(url + "/healthz")
        with pytest.raises(Exception, match=r"(?i)disconnect|reset|bad"):
            await session.get(url.replace("https", "http") + "/healthz")


# --- any body
