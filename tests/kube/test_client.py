"""The sockets under the client: a peer that vanished is noticed."""

import asyncio
import datetime as dt
import ipaddress
import socket
import ssl
import stat
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest
import yaml
from clocks import standing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from fake_kube import FakeKube, Fault, answer, drop, hold, hold_answer, lose_answer

from koordgate.kube.access import FixedAccess
from koordgate.kube.client import KubeClient, _watchful_socket
from koordgate.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from koordgate.kube.resource import DEVICES, NODE_ALLOCATIONS, NODES, PODS

LEDGER = NODE_ALLOCATIONS.path("n1")


def node(name: str, **about: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **about}}


def allocation(**more: Any) -> dict[str, Any]:
    return {"apiVersion": NODE_ALLOCATIONS.api_version, "kind": "NodeAllocation", "metadata": {"name": "n1"}, **more}


async def names(kube: KubeClient, path: str, **options: Any) -> list[list[str]]:
    return [[item["metadata"]["name"] for item in items] async for items, _ in kube.list_pages(path, **options)]


# --- paths


def test_paths_follow_group_namespace_and_subresource() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path(namespace="a") == "/api/v1/namespaces/a/pods"
    assert PODS.path("p", "a", "binding") == "/api/v1/namespaces/a/pods/p/binding"
    assert DEVICES.path("n1") == "/apis/scheduling.koordinator.sh/v1alpha1/devices/n1"


@pytest.mark.parametrize("name", ["", ".", "..", "../secrets/s", "a/b", "%2e%2e"])
def test_a_name_that_leads_elsewhere_is_no_path(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a name"):
        NODES.path(name)


def test_what_could_end_a_path_is_quoted() -> None:
    assert NODES.path("n?a=b#c d") == "/api/v1/nodes/n%3Fa%3Db%23c%20d"


def test_parts_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match="cluster-scoped"):
        NODES.path("n1", "default")
    with pytest.raises(ValueError, match="namespaced"):
        PODS.path("p")
    with pytest.raises(ValueError, match="of no object"):
        PODS.path(namespace="a", subresource="binding")


# --- verbs


async def test_what_is_created_can_be_read_replaced_patched_and_deleted(kube: KubeClient, fake: FakeKube) -> None:
    made = await kube.create(NODE_ALLOCATIONS.path(), allocation())
    assert await kube.get(LEDGER) == made
    replaced = await kube.replace(LEDGER, {**made, "spec": {"a": 1, "b": 2}})
    assert int(replaced["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    assert (await kube.patch(LEDGER, {"spec": {"b": None}}, "merge"))["spec"] == {"a": 1}
    by_json = await kube.patch(LEDGER, [{"op": "replace", "path": "/spec/a", "value": 3}], "json")
    assert by_json["spec"] == {"a": 3}
    await kube.delete(LEDGER, revision=fake.get(LEDGER)["metadata"]["resourceVersion"])
    assert fake.objects(NODE_ALLOCATIONS.path()) == []


async def test_apply_names_its_manager_and_creates_what_is_not_there(kube: KubeClient, fake: FakeKube) -> None:
    await kube.patch(LEDGER, allocation(spec={"a": 1}), "apply", field_manager="reporter", force=True)
    assert fake.get(LEDGER)["spec"] == {"a": 1}
    (request,) = fake.seen("patch", "nodeallocations")
    assert dict(request.query) == {"fieldManager": "reporter", "force": "true"}
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"


async def test_a_dry_run_stores_nothing(kube: KubeClient, fake: FakeKube) -> None:
    await kube.create(NODES.path(), node("n1"), dry_run=True)
    assert fake.objects(NODES.path()) == []


async def test_a_binding_sets_node_and_annotations_in_one_write(kube: KubeClient, fake: FakeKube) -> None:
    pod = fake.put(PODS.path(namespace="a"), {"metadata": {"name": "p", "annotations": {"old": "1"}}, "spec": {}})
    binding = {
        "metadata": {"name": "p", "uid": pod["metadata"]["uid"], "annotations": {"new": "2"}},
        "target": {"name": "n1"},
    }
    path = PODS.path("p", "a", "binding")
    await kube.create(path, binding)
    bound = fake.get(PODS.path("p", "a"))
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"old": "1", "new": "2"}
    assert int(bound["metadata"]["resourceVersion"]) == int(pod["metadata"]["resourceVersion"]) + 1
    with pytest.raises(Conflict, match="already assigned"):
        await kube.create(path, binding)


async def test_a_binding_of_another_uid_is_a_conflict(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(PODS.path(namespace="a"), {"metadata": {"name": "p"}})
    with pytest.raises(Conflict):
        await kube.create(
            PODS.path("p", "a", "binding"), {"metadata": {"name": "p", "uid": "other"}, "target": {"name": "n1"}}
        )


async def test_a_long_list_comes_in_pages_of_one_revision(kube: KubeClient, fake: FakeKube) -> None:
    for number in range(5):
        fake.put(NODES.path(), node(f"n{number}"))
    seen = []
    async for items, revision in kube.list_pages(NODES.path(), limit=2):
        fake.put(NODES.path(), node("n9"))  # not part of the list's snapshot
        seen.append(([item["metadata"]["name"] for item in items], revision))
    assert seen == [(["n0", "n1"], "105"), (["n2", "n3"], "105"), (["n4"], "105")]


async def test_a_page_that_is_too_long_is_not_read_to_its_end_and_asked_for_with_fewer_items(
    kube: KubeClient, fake: FakeKube
) -> None:
    """Whoever may create Pods makes each as long as the API server stores."""
    for number in range(40):
        large = {"annotations": {"x": "y" * 1_500_000}} if 10 <= number < 20 else {}
        fake.put(NODES.path(), node(f"n{number:02}", **large))
    found = [name for page in await names(kube, NODES.path(), limit=16) for name in page]
    assert found == [f"n{number:02}" for number in range(40)]
    asked = [int(request.query["limit"]) for request in fake.requests]
    assert asked == [16, 4, 8, 16, 4, 1, 2, 4, 1, 2, 4, 8, 16]


async def test_one_object_is_read_however_long_it_is(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODES.path(), node("n1", annotations={"x": "y" * 6_000_000}))
    assert await names(kube, NODES.path()) == [["n1"]]
    assert [request.query["limit"] for request in fake.requests] == ["500", "125", "31", "7", "1"]


async def test_a_list_whose_revision_is_compacted_on_the_way_is_gone(kube: KubeClient, fake: FakeKube) -> None:
    for number in range(3):
        fake.put(NODES.path(), node(f"n{number}"))
    pages = kube.list_pages(NODES.path(), limit=2)
    await anext(pages)
    fake.compact()
    with pytest.raises(Gone):
        await anext(pages)


async def test_a_read_sends_its_parameters_and_a_list_asks_for_pages_of_five_hundred(
    kube: KubeClient, fake: FakeKube
) -> None:
    fake.put(NODES.path(), node("n1"))
    await kube.get(NODES.path("n1"), params={"pretty": "false"})
    every: list[dict[str, Any]] = [{}, {"params": {"labelSelector": "a=b"}, "limit": 7}]
    for options in every:
        assert [len(items) async for items, _ in kube.list_pages(NODES.path(), **options)]
    assert [dict(request.query) for request in fake.requests] == [
        {"pretty": "false"},
        {"limit": "500"},
        {"labelSelector": "a=b", "limit": "7"},
    ]


async def test_a_write_says_dry_run_and_force_only_where_they_are_asked_for(kube: KubeClient, fake: FakeKube) -> None:
    made = await kube.create(NODES.path(), node("n1"))
    await kube.replace(NODES.path("n1"), made, dry_run=True)
    await kube.replace(NODES.path("n1"), made)
    await kube.patch(NODES.path("n1"), {"spec": {}}, "merge")
    await kube.patch(NODES.path("n1"), {"spec": {}}, "merge", dry_run=True)
    await kube.delete(NODES.path("n1"))
    dry = {"dryRun": "All"}
    assert [dict(request.query) for request in fake.requests] == [{}, dry, {}, {}, dry, {}]


async def test_selectors_reach_the_server(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODES.path(), node("n1", labels={"gpu": "yes"}))
    fake.put(NODES.path(), node("n2"))
    assert await names(kube, NODES.path(), params={"labelSelector": "gpu=yes"}) == [["n1"]]
    assert await names(kube, NODES.path(), params={"fieldSelector": "metadata.name!=n1"}) == [["n2"]]


# --- errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (422, Invalid),
        (429, TooManyRequests),
        (500, Unreachable),
        (503, Unreachable),
        (504, Unreachable),
    ],
)
async def test_a_status_becomes_its_exception(
    kube: KubeClient, fake: FakeKube, status: int, kind: type[KubeError]
) -> None:
    fake.faults.always("update", "nodeallocations", answer(status, "as it is"))
    with pytest.raises(kind, match="as it is") as caught:
        await kube.replace(LEDGER, allocation())
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert caught.value.reason


@pytest.mark.parametrize("status", [300, 302, 399, 418, 499])
async def test_every_status_that_is_no_success_is_an_error(kube: KubeClient, fake: FakeKube, status: int) -> None:
    fake.put(NODES.path(), node("n1"))
    fake.faults.add("get", "nodes", answer(status))
    with pytest.raises(KubeError) as caught:
        await kube.get(NODES.path("n1"))
    assert (type(caught.value), caught.value.status) == (KubeError, status)


async def test_creating_what_exists_is_distinguished_from_a_conflict(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODES.path(), node("n1"))
    with pytest.raises(AlreadyExists):
        await kube.create(NODES.path(), node("n1"))


async def test_a_compare_and_swap_at_an_old_revision_is_a_conflict(kube: KubeClient, fake: FakeKube) -> None:
    old = fake.put(NODE_ALLOCATIONS.path(), allocation())
    fake.put(NODE_ALLOCATIONS.path(), allocation(spec=1))
    with pytest.raises(Conflict):
        await kube.replace(LEDGER, {**old, "spec": 2})
    assert fake.get(LEDGER)["spec"] == 1


async def test_deleting_another_object_of_the_same_name_is_a_conflict(kube: KubeClient, fake: FakeKube) -> None:
    fake.put(NODES.path(), node("n1"))
    with pytest.raises(Conflict):
        await kube.delete(NODES.path("n1"), revision="1")
    there = fake.get(NODES.path("n1"))["metadata"]
    with pytest.raises(Conflict):
        await kube.delete(NODES.path("n1"), uid="another")
    with pytest.raises(Conflict):
        await kube.delete(NODES.path("n1"), uid=there["uid"], revision="1")
    assert fake.get(NODES.path("n1"))
    await kube.delete(NODES.path("n1"), uid=there["uid"], revision=there["resourceVersion"])
    assert fake.objects(NODES.path()) == []


async def test_forbidden_says_who_lacks_what_and_where_to_look(kube: KubeClient, fake: FakeKube) -> None:
    user = "system:serviceaccount:koordgate:webhook"
    fake.faults.add(
        "list",
        "nodeallocations",
        answer(
            403,
            f'nodeallocations.koordgate.io is forbidden: User "{user}" cannot list resource "nodeallocations" '
            'in API group "koordgate.io" at the cluster scope',
        ),
    )
    with pytest.raises(Forbidden, match="RBAC") as caught:
        await names(kube, NODE_ALLOCATIONS.path())
    assert (caught.value.user, caught.value.verb, caught.value.resource) == (
        user,
        "list",
        "nodeallocations.koordgate.io",
    )


async def test_a_denial_by_admission_is_not_blamed_on_rbac(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("create", "nodes", answer(403, 'admission webhook "x" denied the request: no'))
    with pytest.raises(Forbidden) as caught:
        await kube.create(NODES.path(), node("n1"))
    assert "RBAC" not in str(caught.value)
    assert caught.value.user == ""


async def test_an_answer_that_is_no_json_is_unreachable() -> None:
    async def proxy(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with KubeClient(f"http://127.0.0.1:{port}") as kube:
            with pytest.raises(Unreachable, match="not JSON"):
                await kube.delete(NODES.path("n1"))


async def refused_by_a_proxy(head: str, body: str = "") -> tuple[KubeError, list[bytes]]:
    """The error of a request to a server that answers so, and the first lines of all requests that it had."""
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with KubeClient(f"http://127.0.0.1:{port}") as kube:
            with pytest.raises(KubeError) as caught:
                await kube.get(NODES.path("n1"))
    return caught.value, asked


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "250 Odd", "299 Odd"])
async def test_every_status_that_is_a_success_is_one(status: str) -> None:
    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 7\r\nConnection: close\r\n\r\n".encode() + b'{"a":1}')
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(server, "127.0.0.1") as running:
        port = running.sockets[0].getsockname()[1]
        async with KubeClient(f"http://127.0.0.1:{port}") as kube:
            assert await kube.get(NODES.path("n1")) == {"a": 1}


@pytest.mark.parametrize(
    ("body", "message"), [("too big", "too big"), ("", "Too Large"), ("[1, 2]", "[1, 2]"), ("x" * 400, "x" * 300)]
)
async def test_an_error_that_is_no_status_object_is_still_reported(body: str, message: str) -> None:
    error, asked = await refused_by_a_proxy("413 Too Large", body)
    assert (error.status, error.reason, error.message) == (413, "", message)
    assert len(asked) == 1


async def test_a_redirect_is_an_error_and_its_target_receives_nothing() -> None:
    error, asked = await refused_by_a_proxy("302 Found\r\nLocation: /elsewhere")
    assert (error.status, error.message) == (302, "Found")
    assert asked == [b"GET /api/v1/nodes/n1 HTTP/1.1"]


# --- retries


@pytest.mark.parametrize("fault", [drop(), answer(503), lose_answer()], ids=["dropped", "503", "lost"])
async def test_a_read_is_retried_when_the_server_fails(
    kube: KubeClient, fake: FakeKube, waits: Any, fault: Fault
) -> None:
    fake.put(NODES.path(), node("n1"))
    fake.faults.add("get", "nodes", fault, fault)
    assert (await kube.get(NODES.path("n1")))["metadata"]["name"] == "n1"
    assert waits.seconds == [0.1, 0.2]


async def test_a_read_is_not_retried_for_ever(kube: KubeClient, fake: FakeKube, waits: Any) -> None:
    fake.faults.always("get", "nodes", answer(503))
    with pytest.raises(Unreachable):
        await kube.get(NODES.path("n1"))
    assert len(fake.requests) == 4
    assert waits.seconds == [0.1, 0.2, 0.4]


@pytest.mark.parametrize(("says", "waited"), [(2, 2), (None, 0.1), (0, 0.1)])
async def test_a_write_is_retried_after_429_as_late_as_it_says(
    kube: KubeClient, fake: FakeKube, waits: Any, says: int | None, waited: float
) -> None:
    fake.faults.add("create", "nodes", answer(429, retry_after=says))
    await kube.create(NODES.path(), node("n1"))
    assert waits.seconds == [waited]


@pytest.mark.parametrize(("says", "waited"), [(7, [7]), (8, []), (9, [])])
async def test_what_would_be_answered_at_the_deadline_or_later_is_not_waited_for(
    kube: KubeClient, fake: FakeKube, waits: Any, says: int, waited: list[int]
) -> None:
    fake.faults.add("create", "nodes", answer(429, retry_after=says))
    with standing(), nullcontext() if waited else pytest.raises(TooManyRequests):
        await kube.create(NODES.path(), node("n1"), deadline=8)
    assert waits.seconds == waited


async def test_a_429_that_asks_for_more_than_the_deadline_is_raised_at_once(
    kube: KubeClient, fake: FakeKube, waits: Any
) -> None:
    fake.faults.add("create", "nodes", answer(429, retry_after=20))
    with pytest.raises(TooManyRequests) as caught:
        await kube.create(NODES.path(), node("n1"))
    assert caught.value.retry_after == 20
    assert waits.seconds == []


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete"])
@pytest.mark.parametrize("fault", [drop(), lose_answer(), answer(500)], ids=["dropped", "lost", "500"])
async def test_a_write_with_an_unknown_end_is_sent_once_and_says_so(
    kube: KubeClient, fake: FakeKube, verb: str, fault: Fault
) -> None:
    obj = fake.put(NODES.path(), node("n1"))
    # On a kept connection, on which aiohttp would repeat PUT and DELETE by itself.
    await kube.get(NODES.path("n1"))
    fake.faults.add(verb, "nodes", fault)
    calls = {
        "create": lambda: kube.create(NODES.path(), node("n2")),
        "update": lambda: kube.replace(NODES.path("n1"), {**obj, "spec": 1}),
        "patch": lambda: kube.patch(NODES.path("n1"), {"spec": 1}, "merge"),
        "delete": lambda: kube.delete(NODES.path("n1")),
    }
    with pytest.raises(Unreachable) as caught:
        await calls[verb]()
    assert caught.value.maybe_performed
    assert len(fake.seen(verb, "nodes")) == 1


async def test_a_write_is_retried_when_no_connection_came_about(fake: FakeKube) -> None:
    await fake.stop()

    async def start(_seconds: float) -> None:
        await fake.start()

    async with KubeClient(fake.url, sleep=start) as kube:
        await kube.create(NODES.path(), node("n1"))
    assert fake.get(NODES.path("n1"))


async def test_a_server_that_stays_unreachable_is_known_not_to_have_performed(fake: FakeKube, waits: Any) -> None:
    await fake.stop()
    async with KubeClient(fake.url, sleep=waits) as kube:
        with pytest.raises(Unreachable) as caught:
            await kube.create(NODES.path(), node("n1"))
    assert not caught.value.maybe_performed


async def test_a_deadline_ends_a_request_that_hangs(kube: KubeClient, fake: FakeKube) -> None:
    held = hold()
    fake.faults.add("create", "nodes", held)
    with pytest.raises(Unreachable, match="no answer within") as caught:
        await kube.create(NODES.path(), node("n1"), deadline=0.05)
    assert caught.value.maybe_performed
    assert held.gate is not None
    held.gate.set()


async def test_being_cancelled_is_no_kube_error(kube: KubeClient, fake: FakeKube) -> None:
    held = hold_answer()
    fake.faults.add("create", "nodes", held)
    call = asyncio.create_task(kube.create(NODES.path(), node("n1")))
    await held.performed.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert held.answer_gate is not None
    held.answer_gate.set()


async def test_no_more_connections_are_opened_than_the_limit(fake: FakeKube) -> None:
    held = [hold(), hold(), hold()]
    fake.faults.add("get", "nodes", *held)
    fake.put(NODES.path(), node("n1"))
    async with KubeClient(fake.url, limit=2) as kube, asyncio.TaskGroup() as group:
        for _ in held:
            group.create_task(kube.get(NODES.path("n1")))
        await asyncio.gather(held[0].reached.wait(), held[1].reached.wait())
        assert len(fake.requests) == 2
        for fault in held:
            assert fault.gate is not None
            fault.gate.set()


def test_a_client_has_sixty_four_connections_at_most_unless_it_is_given_another_limit() -> None:
    clients = KubeClient("http://a"), KubeClient.from_kubeconfig(), KubeClient.autodetect()
    limited = KubeClient("http://a", limit=3), KubeClient.from_kubeconfig(limit=3), KubeClient.autodetect(limit=3)
    assert [client._limit for client in (*clients, *limited)] == [64] * 3 + [3] * 3


async def test_a_client_outside_its_context_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await KubeClient("http://127.0.0.1:1").get("/api/v1/nodes")


# --- watch


async def test_a_watch_yields_events_of_any_length_until_the_server_ends_it(kube: KubeClient, fake: FakeKube) -> None:
    opened: list[bool] = []
    fake.put(NODES.path(), node("small"))
    fake.put(NODES.path(), node("large", annotations={"x": "y" * 5_000_000}))
    events = []
    async for event in kube.watch_lines(
        NODES.path(), {"resourceVersion": str(fake.revision - 2)}, on_open=lambda: opened.append(True)
    ):
        events.append((event["type"], event["object"]["metadata"]["name"]))
        if len(events) == 2:
            fake.remove(NODES.path("small"))
        if len(events) == 3:
            fake.end_watches()
    assert events == [("ADDED", "small"), ("ADDED", "large"), ("DELETED", "small")]
    assert opened == [True]


async def test_a_watch_from_a_compacted_revision_is_gone(kube: KubeClient, fake: FakeKube) -> None:
    fake.compact()
    with pytest.raises(Gone):
        await anext(kube.watch_lines(NODES.path(), {"resourceVersion": "1"}))


async def test_a_watch_asks_for_bookmarks_and_ends_after_five_minutes_unless_it_is_given_another_time(
    kube: KubeClient, fake: FakeKube
) -> None:
    every: list[dict[str, Any]] = [{}, {"timeout_s": 40}]
    for options in every:
        async for _ in kube.watch_lines(NODES.path(), on_open=fake.end_watches, **options):
            pass
    asked = {"watch": "1", "allowWatchBookmarks": "true"}
    assert [dict(request.query) for request in fake.requests] == [
        {**asked, "timeoutSeconds": "300"},
        {**asked, "timeoutSeconds": "40"},
    ]


async def test_a_broken_watch_is_unreachable(kube: KubeClient, fake: FakeKube) -> None:
    with pytest.raises(Unreachable):
        await anext(kube.watch_lines(NODES.path(), on_open=fake.break_watches))


async def test_a_watch_that_the_server_forgets_to_end_is_ended(kube: KubeClient) -> None:
    # The server receives 0 and takes it as "no limit".
    with pytest.raises(Unreachable, match="hangs"):
        await anext(kube.watch_lines(NODES.path(), timeout_s=0, deadline=0.2))


async def test_a_watch_without_events_is_given_up_only_after_its_time_and_the_deadline(
    kube: KubeClient, fake: FakeKube
) -> None:
    opened = asyncio.Event()
    event = asyncio.ensure_future(anext(kube.watch_lines(NODES.path(), timeout_s=0, on_open=opened.set, deadline=60.0)))
    await opened.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not event.done()
    fake.put(NODES.path(), node("n1"))
    assert (await event)["object"]["metadata"]["name"] == "n1"


@pytest.mark.parametrize("silent", [0.5, 75.0])
async def test_a_watch_is_silent_only_after_its_time(kube: KubeClient, fake: FakeKube, silent: float) -> None:
    opened = asyncio.Event()
    with standing():
        watch = kube.watch_lines(NODES.path(), silent_s=silent, on_open=opened.set)
        event = asyncio.ensure_future(anext(watch))
        await opened.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not event.done()
        fake.put(NODES.path(), node("n1"))
        assert (await event)["object"]["metadata"]["name"] == "n1"
        await watch.aclose()


# --- credentials


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own CA, without key identifiers, as in many clusters."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "tls.crt", folder / "tls.key"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


def kubeconfig(folder: Path, fake: FakeKube, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "fake", "user": "me"}}],
        "clusters": [{"name": "fake", "cluster": {"server": fake.url, **cluster}}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


async def test_a_fixed_token_is_sent(fake: FakeKube) -> None:
    fake.token = "right"
    fake.put(NODES.path(), node("n1"))
    async with KubeClient(fake.url, "right") as kube:
        await kube.get(NODES.path("n1"))
    async with KubeClient(fake.url, "wrong") as kube:
        with pytest.raises(Unauthorized):
            await kube.get(NODES.path("n1"))


class Renewing(FixedAccess):
    """Records how its credentials are asked for; the new ones are `right`."""

    asked: ClassVar[list[bool]] = []

    async def authorization(self, *, renew: bool = False) -> str | None:
        self.asked.append(renew)
        return "Bearer right" if renew else "Bearer old"


@pytest.mark.parametrize(
    ("accepted", "asked", "waited"),
    [
        pytest.param("old", [False], [], id="accepted"),
        pytest.param("right", [False, True], [0.0], id="refused once"),
        pytest.param("none of them", [False, True], [0.0], id="refused twice"),
    ],
)
async def test_credentials_are_renewed_once_where_they_were_refused(
    fake: FakeKube, waits: Any, accepted: str, asked: list[bool], waited: list[float]
) -> None:
    fake.token = accepted
    access = Renewing(fake.url)
    access.asked.clear()
    async with KubeClient(access=access, sleep=waits) as kube:
        with nullcontext() if accepted in {"old", "right"} else pytest.raises(Unauthorized):
            await kube.create(NODES.path(), node("n1"))
    assert (access.asked, waits.seconds) == (asked, waited)


async def test_a_watch_is_opened_with_the_present_credentials(fake: FakeKube) -> None:
    fake.token = "old"
    access = Renewing(fake.url)
    access.asked.clear()
    async with KubeClient(access=access) as kube:
        assert [event async for event in kube.watch_lines(NODES.path(), on_open=fake.end_watches)] == []
    assert access.asked == [False]


async def test_kubeconfig_is_found_by_the_environment_of_now(
    fake: FakeKube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.token = "secret"
    fake.put(NODES.path(), node("n1"))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, fake, {"token": "secret"})))
    async with KubeClient.autodetect() as kube:
        assert await kube.get(NODES.path("n1"))


async def test_a_plugin_is_asked_again_when_its_token_is_refused(fake: FakeKube, tmp_path: Path) -> None:
    fake.token = "first"
    fake.put(NODES.path(), node("n1"))
    token = tmp_path / "token"
    token.write_text("first")
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\nprintf '{credential}' \"$(cat {token})\"\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {
        "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    }
    async with KubeClient.from_kubeconfig(kubeconfig(tmp_path, fake, user)) as kube:
        await kube.get(NODES.path("n1"))
        token.write_text("second")
        fake.token = "second"
        await kube.create(NODES.path(), node("n2"))
    assert len(fake.seen("create", "nodes")) == 2


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"server": 1}, {}),
        ({}, "me"),
        ({}, {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "true", "args": 1}}),
        ({}, {"auth-provider": {"name": "oidc", "config": {"id-token": 0}}}),
        ({}, {"auth-provider": {"name": "oidc", "config": {"refresh-token": "x"}}}),
    ],
    ids=["a number as address", "a word as user", "a number as arguments", "a number as token", "no issuer"],
)
async def test_a_kubeconfig_with_a_wrong_field_is_an_error_of_ours(
    fake: FakeKube, tmp_path: Path, cluster: dict[str, Any], user: Any
) -> None:
    with pytest.raises(KubeError, match=r"no usable Kubernetes configuration: [A-Z]") as caught:
        async with KubeClient.from_kubeconfig(kubeconfig(tmp_path, fake, user, **cluster)):
            pass
    assert caught.value.reason == "Configuration"


async def test_a_missing_or_broken_kubeconfig_is_an_error_of_ours(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("current-context: [")
    for path in (tmp_path / "none", broken):
        with pytest.raises(KubeError, match="no usable Kubernetes configuration"):
            async with KubeClient.from_kubeconfig(path):
                pass


async def test_a_client_certificate_and_the_clusters_ca_are_used(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificate))
    tls.load_cert_chain(certificate, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    user = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    async with FakeKube(tls) as fake:
        fake.put(NODES.path(), node("n1"))
        path = kubeconfig(tmp_path, fake, user, **{"certificate-authority": "tls.crt"})
        async with KubeClient.from_kubeconfig(path) as kube:
            assert await kube.get(NODES.path("n1"))


@pytest.mark.parametrize("by", ["a plugin", "files that are written again", "files that are half written first"])
async def test_a_certificate_that_is_renewed_is_shown_from_the_next_connection_on(tmp_path: Path, by: str) -> None:
    folders = [tmp_path / name for name in ("server", "old", "new")]
    for folder in folders:
        folder.mkdir()
    server, old, new = (self_signed(folder) for folder in folders)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*server)
    tls.verify_mode = ssl.CERT_REQUIRED
    for certificate, _ in (old, new):
        tls.load_verify_locations(certificate)

    shown: list[str] = []

    async def refuse_the_old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        shown.append(ssl.DER_cert_to_PEM_cert(writer.get_extra_info("ssl_object").getpeercert(True)))
        status = b"401 Unauthorized" if shown[-1] == old[0].read_text() else b"200 OK"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await writer.drain()
        writer.close()

    def credential(certificate: Path, key: Path) -> None:
        status = {"clientCertificateData": certificate.read_text(), "clientKeyData": key.read_text()}
        version = "client.authentication.k8s.io/v1"
        told.write_bytes(orjson.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))
        (tmp_path / "tls.crt").write_bytes(certificate.read_bytes())
        (tmp_path / "tls.key").write_bytes(key.read_bytes())

    told, plugin = tmp_path / "told", tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\ncat {told}\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    run = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin), "interactiveMode": "Never"}
    user = {"exec": run} if by == "a plugin" else {"client-certificate": "tls.crt", "client-key": "tls.key"}
    async with await asyncio.start_server(refuse_the_old, "127.0.0.1", ssl=tls) as running, FakeKube() as fake:
        credential(*old)
        here = {"server": f"https://127.0.0.1:{running.sockets[0].getsockname()[1]}"}
        path = kubeconfig(tmp_path, fake, user, **here, **{"certificate-authority": str(server[0])})
        async with KubeClient.from_kubeconfig(path) as kube:
            with pytest.raises(Unauthorized):
                await kube.get(NODES.path("n1"))
            if by == "files that are half written first":
                credential(new[0], old[1])
                with pytest.raises(Unauthorized):  # still with the old one: the new one has another key
                    await kube.get(NODES.path("n1"))
            credential(*new)
            assert await kube.get(NODES.path("n1")) == {}
    assert (set(shown), shown[-1]) == ({old[0].read_text(), new[0].read_text()}, new[0].read_text())


async def test_a_server_that_the_ca_does_not_vouch_for_is_unreachable_and_receives_nothing(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other, _ = self_signed(tmp_path / "other")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*self_signed(tmp_path))
    async with FakeKube(tls) as fake:
        path = kubeconfig(tmp_path, fake, {"token": "secret"}, **{"certificate-authority": str(other)})
        async with KubeClient.from_kubeconfig(path) as kube:
            with pytest.raises(Unreachable, match="TLS") as caught:
                await kube.create(NODES.path(), node("n1"))
        assert fake.requests == []
    assert not caught.value.maybe_performed


@pytest.mark.parametrize("unchecked", [True, False])
async def test_a_server_is_unchecked_only_where_the_kubeconfig_says_so(tmp_path: Path, unchecked: bool) -> None:  # noqa: FBT001 a parameter
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*self_signed(tmp_path))
    async with FakeKube(tls) as fake:
        fake.put(NODES.path(), node("n1"))
        path = kubeconfig(tmp_path, fake, {}, **{"insecure-skip-tls-verify": unchecked})
        async with KubeClient.from_kubeconfig(path) as kube:
            if unchecked:
                assert (await kube.get(NODES.path("n1")))["metadata"]["name"] == "n1"
            else:
                with pytest.raises(Unreachable, match="TLS"):
                    await kube.get(NODES.path("n1"))


async def test_without_a_ca_of_its_own_a_client_trusts_those_of_the_machine_and_no_others(tmp_path: Path) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(*self_signed(tmp_path))
    async with FakeKube(tls) as fake, KubeClient(fake.url, "secret") as kube:
        assert fake.url.startswith("https://")
        with pytest.raises(Unreachable, match="TLS"):
            await kube.get(NODES.path("n1"))
        assert fake.requests == []


async def test_bodies_go_out_as_json_and_unzipped(kube: KubeClient, fake: FakeKube) -> None:
    await kube.create(NODES.path(), node("n1"))
    (request,) = fake.requests
    assert orjson.loads(request.body) == node("n1")
    assert request.headers["Accept-Encoding"] == "identity"


# --- the API server's time


@pytest.mark.parametrize("fault", [None, answer(403)])
async def test_the_api_servers_clock_is_read_from_each_answer_and_compared_with_ours(
    fake: FakeKube, fault: Fault | None
) -> None:
    if fault is not None:
        fake.faults.add("get", "nodes", fault)
    ours = -1_000_000.0
    async with KubeClient(fake.url, fake.token, clock=lambda: ours) as kube:
        assert kube.server_offset is None, "nothing was answered yet"
        before = int(time.time())
        with nullcontext() if fault is None else pytest.raises(Forbidden):
            fake.put(NODES.path(), node("n1"))
            await kube.get(NODES.path("n1"))
        after = time.time()
        assert kube.server_offset is not None
        assert before + 0.5 <= kube.server_offset + ours <= after + 0.5  # type: ignore[unreachable]


@pytest.mark.parametrize("date", ["", "yesterday", "Sun, 99 Nov 2026 15:00:00 GMT"])
def test_an_answer_without_a_readable_date_states_no_time(date: str) -> None:
    kube = KubeClient("http://localhost")
    kube._dated = (date, 0.0)
    assert kube.server_offset is None


async def test_requests_are_made_as_another_user_only_where_that_is_asked_for(fake: FakeKube) -> None:
    async with KubeClient(fake.url, impersonate="system:serviceaccount:a:b") as kube, KubeClient(fake.url) as own:
        await kube.create(NODES.path(), {"metadata": {"name": "x"}}, dry_run=True)
        await own.create(NODES.path(), {"metadata": {"name": "x"}}, dry_run=True)
    first, second = fake.seen("create", "nodes")
    assert first.headers["Impersonate-User"] == "system:serviceaccount:a:b"
    assert first.headers["Content-Type"] == "application/json"
    assert "Impersonate-User" not in second.headers


def test_a_peer_that_vanished_is_noticed_within_half_a_minute() -> None:
    with _watchful_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        found = [made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
    idle, interval, count, unanswered = found
    assert idle + interval * count == 30
    assert (idle, interval, count, unanswered) == (15, 5, 3, 30_000)
