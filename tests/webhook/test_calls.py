"""Each call is told of: log lines, exemplars and audit annotations name the review, the Pod and what was decided."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import pytest
from aiohttp.test_utils import TestClient, TestServer
from builders import container, device_entry, gpu, holding, part, pod
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from world import TENANT, World, asks, binding, binds, body, gpu_pod, plain_pod

from allocator.request.original import read_asks
from allocator.vocabulary.devicetype import BUILT_IN
from koordgate.log import JsonFormatter
from webhook import calls
from webhook.admission.pods import asked
from webhook.app import make_app, make_extender
from webhook.assembly import Parts
from webhook.ledger.ledger import Counters
from webhook.review import RefusalReason, Request, Response, allowed, denied
from webhook.scheduling.account import Occasion, account

Client = TestClient[Any, Any]
JSON = {"Content-Type": "application/json"}
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"}


@asynccontextmanager
async def serving(parts: Parts, *, extender: bool = False) -> AsyncIterator[Client]:
    app = make_extender(parts) if extender else make_app(parts, list)
    async with TestClient(TestServer(app), headers=JSON) as client:
        yield client


@pytest.fixture
async def client(world: World) -> AsyncIterator[Client]:
    async with serving(world.parts) as made:
        yield made


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """The lines that are logged, as they are written."""
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(orjson.loads(JsonFormatter("webhook").format(record)))

    handler, root = Kept(), logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


def answers(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line for line in lines if line["message"] == "a review was answered"]


def named(request: Request, uid: str) -> Request:
    return request._replace(uid=uid)


async def audited(client: Client, path: str, request: Request) -> dict[str, str]:
    http = await client.post(path, data=body(request))
    found: dict[str, str] = (await http.json())["response"].get("auditAnnotations", {})
    return found


# --- log lines


async def test_a_bind_is_one_line_that_says_who_got_what_where_and_why(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    with logged() as lines:
        await client.post("/mutate-binding", data=body(named(binds(binding("p", "n1")), "r-1")))
    (line,) = answers(lines)
    assert line.pop("ms") > 0
    assert line.pop("time")
    assert line == {
        "level": "info",
        "component": "webhook",
        "logger": "webhook.calls",
        "message": "a review was answered",
        "review": "r-1",
        "path": "/mutate-binding",
        "operation": "CREATE",
        "pod": "default/p",
        "pod_uid": "uid-p",
        "node": "n1",
        "outcome": "patched",
        "held": "gpu:0:GPU-n1-0",
        "preference": "fragmentation",
        "reason": "kube-scheduler chose the node",
        "recorded": "yes",
    }


async def test_the_lines_of_a_pods_validation_and_of_its_bind_name_it_alike(world: World, client: Client) -> None:
    stored = gpu_pod("p")
    world.show(stored)
    with logged() as lines:
        await client.post("/mutate-pod", data=body(named(asks(gpu_pod("p", admit=False)), "r-1")))
        await client.post("/validate-pod", data=body(named(asks(stored), "r-2")))
        await client.post("/mutate-binding", data=body(named(binds(binding("p", "n1")), "r-3")))
    translated, validated, bound = answers(lines)
    assert [line["review"] for line in (translated, validated, bound)] == ["r-1", "r-2", "r-3"]
    assert translated["requested"] == "main: 1 gpu (gpu-core=50 gpu-memory-ratio=50)"
    assert validated["pod_uid"] == bound["pod_uid"] == "uid-p"
    assert translated["pod"] == validated["pod"] == bound["pod"] == "default/p"
    assert {line["level"] for line in (translated, validated, bound)} == {"info"}


async def test_a_pod_that_has_no_name_yet_is_shown_by_what_its_name_will_begin_with(client: Client) -> None:
    made = gpu_pod("p", admit=False)
    made["metadata"] = {"generateName": "web-", "namespace": "default"}
    with logged() as lines:
        await client.post("/mutate-pod", data=body(asks(made)))
    (line,) = answers(lines)
    assert line["pod"] == "default/web-*"
    assert "pod_uid" not in line


async def test_a_refusal_says_to_whom_and_why(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    with logged() as lines:
        await client.post("/validate-binding", data=body(binds(binding("p", "n1"), username=TENANT)))
    (line,) = answers(lines)
    assert (line["outcome"], line["code"], line["user"], line["level"]) == ("denied", 403, TENANT, "info")
    assert "is not its scheduler" in line["why"]


async def test_what_decides_nothing_is_told_to_those_who_look_closely_only(client: Client) -> None:
    with logged() as lines:
        await client.post("/mutate-pod", data=body(asks(plain_pod("p"))))
    (line,) = answers(lines)
    assert (line["level"], line["outcome"]) == ("debug", "allowed")


async def test_a_dry_run_says_that_it_is_one(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    with logged() as lines:
        await client.post("/mutate-binding", data=body(binds(binding("p", "n1"), dry_run=True)))
    (line,) = answers(lines)
    assert (line["dry_run"], line["recorded"]) == (True, "no")


async def test_names_of_strangers_are_cut(client: Client) -> None:
    made = gpu_pod("p" * 100_000, admit=False, uid="u" * 100_000)
    evil = asks(made, username="n" * 100_000)._replace(uid="r" * 100_000, name="")
    with logged() as lines:
        await client.post("/validate-pod", data=body(evil))
    (line,) = answers(lines)
    assert max(len(str(value)) for value in line.values()) <= 1_000
    assert [len(line[name]) for name in ("review", "pod_uid", "user", "pod")] == [64, 64, 320, 320]


def test_a_long_reason_is_cut() -> None:
    with logged() as lines:
        calls.tell(binds(binding("p", "n1")), denied("x" * 5_000, RefusalReason.VALIDATION), "denied", 0.1)
    (line,) = lines
    assert line["why"] == "x" * 996 + " ..."


async def test_names_in_a_call_of_the_scheduler_are_cut(world: World) -> None:
    stranger = gpu_pod("p" * 5_000, uid="u" * 5_000)
    asked = orjson.dumps({"Pod": stranger, "NodeNames": ["n1"]})
    with logged() as lines:
        async with serving(world.parts, extender=True) as client:
            await client.post("/scheduler/filter", data=asked)
    (line,) = (line for line in lines if line["message"] == "a call of the scheduler was answered")
    assert (len(line["pod"]), len(line["pod_uid"])) == (320, 64)


def test_the_node_of_a_binding_is_cut() -> None:
    members = calls.of_review("/mutate-binding", binds(binding("p", "n" * 5_000)))
    assert len(members["node"]) == 320


@pytest.mark.parametrize(("seconds", "ms"), [(0.0, 0.0), (0.0123456, 12.35), (1.5, 1500.0)])
def test_the_time_of_an_answer_is_told_in_hundredths_of_a_millisecond(seconds: float, ms: float) -> None:
    with logged() as lines:
        calls.tell(binds(binding("p", "n1")), allowed(), "allowed", seconds)
        calls.tell_scheduler({"NodeNames": []}, seconds)
    assert [line["ms"] for line in lines] == [ms, ms]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"NodeNames": ["n1", "n2"]}, {"nodes": 2}),
        ({"NodeNames": ["n" * 5_000]}, {"nodes": 1, "node": "n" * 316 + " ..."}),
        ({"NodeNames": []}, {"nodes": 0}),
        ({"NodeNames": None}, {}),
        ({"Error": "x"}, {}),
        ([{"Host": "n1", "Score": 10}], {}),
    ],
)
def test_an_answer_to_the_scheduler_is_told_by_its_nodes(answer: object, told: dict[str, Any]) -> None:
    with logged() as lines:
        calls.tell_scheduler(answer, 0.5)
    (line,) = lines
    assert {key: value for key, value in line.items() if key in {"nodes", "node"}} == told


def test_nothing_is_told_where_the_log_leaves_it_out() -> None:
    logger = logging.getLogger("webhook.calls")
    with logged() as lines:
        logger.setLevel(logging.INFO)
        try:
            calls.tell(binds(binding("p", "n1")), allowed(), "allowed", 0.1)
            calls.tell_scheduler({"NodeNames": ["n1"]}, 0.1)
            calls.tell(binds(binding("p", "n1")), allowed(audit={"pod-uid": "u", "review": "r"}), "allowed", 0.1)
        finally:
            logger.setLevel(logging.NOTSET)
    (line,) = lines
    assert (line["level"], line["pod_uid"]) == ("info", "u")
    assert "review" not in line


@pytest.mark.parametrize("broken", [{"metadata": []}, {"metadata": {"uid": 5, "name": {}}, "target": "n1"}, {}])
async def test_an_object_that_no_api_server_sends_is_told_of_too(client: Client, broken: dict[str, Any]) -> None:
    with logged() as lines:
        http = await client.post("/mutate-binding", data=body(binds(binding("p", "n1"))._replace(object=broken)))
    assert http.status == 200
    (line,) = answers(lines)
    assert line["outcome"] == "denied"


async def test_a_line_that_is_logged_while_a_review_is_answered_names_it(world: World) -> None:
    async def binds_slowly(_request: Request, _deadline: float) -> Response:
        logging.getLogger("deep").warning("inside")
        await asyncio.sleep(0)
        return allowed()

    world.parts.bindings.mutate = binds_slowly  # type: ignore[method-assign, assignment]
    with logged() as lines:
        async with serving(world.parts) as client:
            await asyncio.gather(
                *(
                    client.post("/mutate-binding", data=body(named(binds(binding("p", "n1")), f"r-{number}")))
                    for number in range(8)
                )
            )
    assert sorted(line["review"] for line in lines if line["message"] == "inside") == [f"r-{n}" for n in range(8)]


async def test_a_bug_is_told_with_its_review_and_pod(world: World) -> None:
    async def fails(_request: Request, _deadline: float) -> Response:
        raise ZeroDivisionError

    world.parts.bindings.mutate = fails  # type: ignore[method-assign, assignment]
    with logged() as lines:
        async with serving(world.parts) as client:
            await client.post("/mutate-binding", data=body(named(binds(binding("p", "n1")), "r-1")))
    (line,) = (line for line in lines if line["message"] == "a handler failed")
    assert (line["review"], line["pod_uid"], line["path"]) == ("r-1", "uid-p", "/mutate-binding")
    assert "ZeroDivisionError" in line["trace"]


async def test_a_review_that_the_api_server_did_not_let_us_answer_is_named(world: World, client: Client) -> None:
    await world.fake.stop()
    with logged() as lines:
        await client.post("/mutate-binding?timeout=1s", data=body(named(binds(binding("p", "n1")), "r-1")))
    (line,) = (line for line in lines if line["message"].startswith("a review was not answered"))
    assert (line["review"], line["pod"]) == ("r-1", "default/p")


async def test_the_ledgers_work_for_many_is_not_told_as_the_first_ones(world: World, client: Client) -> None:
    """The task of a node serves all who come while it runs."""
    world.parts.ledger._counters = Counters(written=lambda _changes: logging.getLogger("deep").warning("written"))
    world.show(gpu_pod("p"))
    with logged() as lines:
        await client.post("/mutate-binding", data=body(binds(binding("p", "n1"))))
    (line,) = (line for line in lines if line["message"] == "written")
    assert {"review", "pod", "pod_uid"}.isdisjoint(line)


async def test_a_call_of_the_scheduler_has_an_id_and_names_its_pod(world: World) -> None:
    world.show(gpu_pod("p"))
    asked = orjson.dumps({"Pod": world.pod("p"), "NodeNames": ["n1"]})
    with logged() as lines:
        async with serving(world.parts, extender=True) as client:
            await client.post("/scheduler/filter", data=asked)
            await client.post("/scheduler/filter", data=asked)
            await client.post("/scheduler/prioritize", data=asked)
    told = [line for line in lines if line["message"] == "a call of the scheduler was answered"]
    assert [line["path"].rpartition("/")[2] for line in told] == ["filter", "filter", "prioritize"]
    assert {(line["pod"], line["pod_uid"], line["level"]) for line in told} == {("default/p", "uid-p", "debug")}
    assert (told[0]["nodes"], told[0]["node"]) == (1, "n1")
    assert len({line["call"] for line in told}) == 3


# --- audit annotations


async def test_the_reason_says_whether_the_filter_sent_the_pod_there(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    world.parts.extender.filter({"Pod": world.pod("p"), "NodeNames": ["n1"]})
    told = await audited(client, "/mutate-binding", binds(binding("p", "n1")))
    assert told["reason"] == "the filter found this node the best for the Pod"


async def test_a_bind_that_comes_again_says_so(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    await audited(client, "/mutate-binding", binds(binding("p", "n1")))
    told = await audited(client, "/mutate-binding", binds(binding("p", "n1")))
    assert told["reason"] == "an earlier bind of the Pod was answered with the same"


async def test_a_binding_that_is_reviewed_once_more_after_another_webhook_is_not_told_twice(
    world: World, client: Client
) -> None:
    """The API server keeps the first value of an annotation, and complains of another one."""
    world.show(gpu_pod("p"))
    first = await world.mutate(binds(binding("p", "n1")))
    carried = {op["path"].rpartition("/")[2]: op["value"] for op in first.patch if "annotations" in op["path"]}
    annotations = next((value for value in carried.values() if isinstance(value, dict)), carried)
    again = binds(binding("p", "n1", annotations=annotations))
    assert (await world.mutate(again)).allowed
    assert await audited(client, "/mutate-binding", again) == {}


async def test_a_refusal_names_its_review_in_the_audit_event(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    request = named(binds(binding("p", "n1"), username=TENANT), "r-9")
    assert await audited(client, "/validate-binding", request) == {"review": "r-9"}


async def test_a_pods_validation_tells_the_uid_that_its_translation_could_not_know(client: Client) -> None:
    assert await audited(client, "/validate-pod", named(asks(gpu_pod("p")), "r-2")) == {
        "pod-uid": "uid-p",
        "review": "r-2",
    }


async def test_audit_annotations_have_bounds(world: World, client: Client) -> None:
    limits = {"kubernetes.io/gpu": "10"}
    many = pod(*(container(f"container-{number:02}", limits=limits) for number in range(64)), name="p")
    told = await audited(client, "/mutate-pod", named(asks(many), "r" * 5_000))
    assert len(told["requested"]) < 1_100
    assert told["requested"].endswith(" more")
    assert len(told["review"]) == 2_000
    world.add_node("n1", *(device_entry(minor) for minor in range(128)))
    world.show(gpu_pod("p", 12_800))
    told = await audited(client, "/mutate-binding", binds(binding("p", "n1")))
    assert len(told["held"]) < 1_100
    assert re.search(r" and \d+ more$", told["held"])


# --- exemplars


def exemplars(text: str) -> dict[tuple[str, str], dict[str, str]]:
    """(metric, path) -> labels of an exemplar, as Prometheus' own parser of the format reads them."""
    return {
        (sample.name, sample.labels.get("path", "")): dict(sample.exemplar.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None
    }


async def test_a_measured_bind_points_at_its_review(world: World, client: Client) -> None:
    world.show(gpu_pod("p"))
    world.clock.now += 5
    await client.post("/mutate-binding", data=body(named(binds(binding("p", "n1")), "r-1")))
    http = await client.get("/metrics", headers=OPENMETRICS)
    assert http.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    found = exemplars(await http.text())
    assert found["koordgate_request_seconds_bucket", "/mutate-binding"] == {"review": "r-1"}
    assert found["koordgate_bind_wait_seconds_bucket", ""] == {"review": "r-1"}


async def test_a_review_with_a_long_uid_is_measured_all_the_same(world: World, client: Client) -> None:
    http = await client.post("/mutate-pod", data=body(named(asks(gpu_pod("p", admit=False)), "é" * 10_000)))
    assert http.status == 200
    found = exemplars(await (await client.get("/metrics", headers=OPENMETRICS)).text())
    assert len(found["koordgate_request_seconds_bucket", "/mutate-pod"]["review"]) == 64


# --- what a Pod asks for, and what it was given, in 1,000 characters

EACH = ": 1 gpu (gpu-core=50 gpu-memory-ratio=50)"


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        pytest.param([500, 496], 2, id="with two characters between them they are 998"),
        pytest.param([500, 497], 1, id="one more"),
        pytest.param([998], 1, id="one alone"),
        pytest.param([999], 0, id="one alone that is too long"),
        pytest.param([500, 600, 100], 1, id="the second is too long, and the third does not follow"),
        pytest.param([100] * 20, 9, id="many"),
    ],
)
def test_what_a_pod_asks_for_is_told_by_whole_containers(lengths: list[int], told: int) -> None:
    names = [f"{at}".zfill(length - len(EACH)) for at, length in enumerate(lengths)]
    amounts = {"kubernetes.io/gpu": "50"}
    reading = read_asks(pod(*(container(name, limits=amounts, requests=amounts) for name in names)), BUILT_IN)
    left = len(names) - told
    assert asked(reading) == "; ".join([f"{name}{EACH}" for name in names[:told]] + [f"and {left} more"] * bool(left))


@pytest.mark.parametrize(
    ("lengths", "told"),
    [
        pytest.param([500, 498], 2, id="with a blank between them they are 999"),
        pytest.param([500, 499], 1, id="one more"),
        pytest.param([999], 1, id="one alone"),
        pytest.param([1000], 0, id="one alone that is too long"),
        pytest.param([500, 600, 100], 1, id="the second is too long, and the third does not follow"),
        pytest.param([99] * 30, 10, id="many"),
    ],
)
def test_what_a_pod_was_given_is_told_by_whole_devices(lengths: list[int], told: int) -> None:
    cards = [gpu(at, device_id="x" * (length - len(f"gpu:{at}:"))) for at, length in enumerate(lengths)]
    held = holding("u", *(part(card, 50) for card in cards))
    said = account(held, "n1", "packing", Occasion.NAMED, recorded=True)["held"]
    left = len(cards) - told
    devices = [f"gpu:{at}:{card.id}" for at, card in enumerate(cards)]
    assert said == " ".join(devices[:told] + [f"and {left} more"] * bool(left))
