"""Who may read the device map, as the API server reviews it; what is remembered; how often strangers may try."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from fake_kube import FakeKube, answer

from koordgate.kube.client import KubeClient
from webhook.devicemap.access import LoopbackGuard, TokenGuard


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Door:
    fake: FakeKube
    guard: TokenGuard
    clock: Clock

    async def status(self, authorization: str) -> int:
        headers = {"Authorization": authorization} if authorization else {}
        try:
            await self.guard.admit(make_mocked_request("GET", "/api/nodes", headers=headers))
        except web.HTTPException as error:
            self.last = error
            return error.status
        return 200

    def asked(self, resource: str) -> int:
        return sum(one.resource == resource for one in self.fake.requests)


@pytest.fixture
async def door(fake: FakeKube, kube: KubeClient) -> AsyncIterator[Door]:
    clock = Clock()
    fake.users["good"] = {"username": "alice", "uid": "1", "groups": ["sre"], "extra": {"scopes": ["all"]}}
    fake.users["other"] = {"username": "bob"}
    fake.may.add(("alice", "/koordgate/map"))
    return Door(fake, TokenGuard(kube, clock), clock)


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        pytest.param("Bearer good", 200, id="a user who may"),
        pytest.param("bearer  good ", 200, id="the scheme in small letters"),
        pytest.param("Bearer other", 403, id="a user who may not"),
        pytest.param("Bearer unknown", 401, id="a token that nobody has"),
        pytest.param("", 401, id="no token"),
        pytest.param("Bearer ", 401, id="an empty token"),
        pytest.param("Basic good", 401, id="another scheme"),
        pytest.param("Bearer " + "x" * 9000, 401, id="a token that is too long"),
        pytest.param("Bearer g\xf6\xf6d", 401, id="a token with letters that none has"),
    ],
)
async def test_only_a_user_who_may_get_the_path_is_let_in(door: Door, authorization: str, status: int) -> None:
    assert await door.status(authorization) == status
    if status == 401:
        assert door.last.headers["WWW-Authenticate"].startswith("Bearer")


async def test_whoever_shows_no_token_costs_the_api_server_nothing(door: Door) -> None:
    await door.status("")
    assert door.fake.requests == []


async def test_authorizers_see_all_that_is_known_of_the_user(door: Door) -> None:
    await door.status("Bearer good")
    spec = orjson.loads(door.fake.requests[-1].body)["spec"]
    assert spec == {
        "user": "alice",
        "uid": "1",
        "groups": ["sre"],
        "extra": {"scopes": ["all"]},
        "nonResourceAttributes": {"path": "/koordgate/map", "verb": "get"},
    }


async def test_an_answer_is_remembered_for_a_minute_and_a_right_that_is_taken_away_ends_then(door: Door) -> None:
    assert await door.status("Bearer good") == 200
    door.fake.may.clear()
    door.clock.now += 59
    assert await door.status("Bearer good") == 200
    assert door.asked("tokenreviews") == 1
    door.clock.now += 2
    assert await door.status("Bearer good") == 403


async def test_a_right_that_is_given_is_seen_after_ten_seconds(door: Door) -> None:
    assert await door.status("Bearer other") == 403
    door.fake.may.add(("bob", "/koordgate/map"))
    assert await door.status("Bearer other") == 403
    door.clock.now += 11
    assert await door.status("Bearer other") == 200


async def test_a_stranger_may_not_make_the_api_server_work_and_known_readers_go_on(door: Door) -> None:
    assert await door.status("Bearer good") == 200
    tried = [await door.status(f"Bearer guess-{number}") for number in range(20)]
    assert tried == [401] * 4 + [429] * 16
    assert door.last.headers["Retry-After"] == "2"
    assert door.asked("tokenreviews") == 5
    assert await door.status("Bearer good") == 200
    door.clock.now += 2
    assert await door.status("Bearer guess-again") == 401


async def test_while_the_api_server_cannot_be_asked_nobody_is_let_in(door: Door) -> None:
    door.fake.faults.always("create", "tokenreviews", answer(500))
    assert await door.status("Bearer good") == 503
    door.fake.faults.always("create", "tokenreviews", None)
    door.fake.faults.always("create", "subjectaccessreviews", answer(403))
    assert await door.status("Bearer good") == 503
    door.fake.faults.always("create", "subjectaccessreviews", None)
    assert await door.status("Bearer good") == 200


@pytest.mark.parametrize(
    ("host", "let_in"),
    [
        ("127.0.0.1:8080", True),
        ("localhost", True),
        ("[::1]:8080", True),
        ("127.9.9.9", True),
        ("rebound.example.com", False),
        ("10.0.0.1", False),
        ("localhost.example.com", False),
    ],
)
async def test_on_loopback_only_requests_for_this_machine_are_answered(host: str, *, let_in: bool) -> None:
    request = make_mocked_request("GET", "/api/nodes", headers={"Host": host})
    if let_in:
        await LoopbackGuard().admit(request)
    else:
        with pytest.raises(web.HTTPForbidden):
            await LoopbackGuard().admit(request)
