from typing import Any

import pytest
from fake_kube import FakeKube, answer, drop

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    TooLarge,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    from_status,
)
from koordgate.kube.resource import NODES


def test_a_status_that_says_nothing_is_an_error_of_no_known_kind() -> None:
    error = from_status({})
    assert (type(error), error.status, error.reason, error.message) == (KubeError, 0, "", "no message")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (399, KubeError),
        (400, Invalid),
        (401, Unauthorized),
        (402, KubeError),
        (403, Forbidden),
        (404, NotFound),
        (405, KubeError),
        (408, KubeError),
        (409, Conflict),
        (410, Gone),
        (411, KubeError),
        (412, KubeError),
        (413, TooLarge),
        (414, KubeError),
        (421, KubeError),
        (422, Invalid),
        (423, KubeError),
        (428, KubeError),
        (429, TooManyRequests),
        (430, KubeError),
        (499, KubeError),
        (500, Unreachable),
        (501, Unreachable),
        (599, Unreachable),
    ],
)
@pytest.mark.parametrize("reason", ["", "Conflict", "Another"])
def test_a_status_has_its_kind_of_error(code: int, kind: type[KubeError], reason: str) -> None:
    error = from_status({"code": code, "message": "why", "reason": reason})
    message = "API server: why" if kind is Unreachable else "why"
    assert (type(error), error.status, error.message) == (kind, code, message)
    assert error.reason == reason or (code == 429 and error.reason == "TooManyRequests")


@pytest.mark.parametrize("words", ["etcdserver: request is too large", "trying to send message larger than max"])
@pytest.mark.parametrize(
    ("code", "kind"), [(400, Invalid), (413, TooLarge), (499, KubeError), (500, TooLarge), (503, TooLarge)]
)
def test_an_error_of_the_server_that_speaks_of_the_size_is_about_the_size(
    code: int, kind: type[KubeError], words: str
) -> None:
    assert type(from_status({"code": code, "message": f"rpc error: {words} (3 vs. 2)"})) is kind


@pytest.mark.parametrize("code", [409, 500])
def test_what_exists_already_is_told_by_its_reason_where_the_server_did_not_fail(code: int) -> None:
    kind = AlreadyExists if code == 409 else Unreachable
    assert type(from_status({"code": code, "reason": "AlreadyExists"})) is kind


@pytest.mark.parametrize(
    ("status", "header", "reason", "retry_after"),
    [
        ({}, None, "TooManyRequests", None),
        ({"reason": "Evicting"}, None, "Evicting", None),
        ({"details": {"retryAfterSeconds": 7}}, None, "TooManyRequests", 7),
        ({"details": {"retryAfterSeconds": 7}}, 3.0, "TooManyRequests", 3.0),
        ({"details": {"retryAfterSeconds": 7}}, 0.0, "TooManyRequests", 0.0),
    ],
)
def test_a_429_says_when_to_try_again_by_its_header_or_else_by_its_details(
    status: dict[str, Any], header: float | None, reason: str, retry_after: float | None
) -> None:
    error = from_status({"code": 429, **status}, retry_after=header)
    assert isinstance(error, TooManyRequests)
    assert (error.status, error.reason, error.retry_after) == (429, reason, retry_after)


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        ('list resource "pods" in API group "" at the cluster scope', "list pods at the cluster scope"),
        ('get resource "secrets" in API group "" in the namespace "a"', 'get secrets in the namespace "a"'),
        ('create resource "pods/binding" in API group ""', "create pods/binding"),
        ('get path "/metrics"', "get /metrics"),
    ],
)
def test_forbidden_names_the_right_and_where_it_is_lacking(asked: str, right: str) -> None:
    message = f'forbidden: User "me" cannot {asked}'
    assert str(Forbidden(message)) == (
        f"me lacks the right to {right}: check the RBAC rules that are bound to it ({message})"
    )


async def test_a_connection_that_breaks_has_no_status_and_a_5xx_has_its_own(kube: KubeClient, fake: FakeKube) -> None:
    fake.faults.add("create", "nodes", drop(), answer(500))
    statuses = []
    for _ in range(2):
        with pytest.raises(Unreachable) as caught:
            await kube.create(NODES.path(), {"metadata": {"name": "n1"}})
        statuses.append(caught.value.status)
    assert statuses == [0, 500]
