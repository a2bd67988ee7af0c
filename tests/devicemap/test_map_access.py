"""Who may read the device map, as the API server reviews it; what is remembered; how often strangers may try."""

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

    async def status(self, authorization: str, remote: str = "10.0.0.1") -> int:
        headers = {"Authorization": authorization} if authorization else {}
        try:
            await self.guard.admit(make_mocked_request("GET", "/api/nodes", headers=headers).clone(remote=remote))
        except web.HTTPException as error:
            self.last = error
            return error.status
        return 200

    def asked(self, resource: str) -> int:
        return sum(one.resource == resource for one in self.fake.requests)


@pytest.fixture
async def door(fake: FakeKube, kube: KubeClient) -> Door:
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
        pytest.param("Digest good", 401, id="a third scheme"),
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
    door.clock.now += 1
    assert await door.status("Bearer good") == 403


async def test_a_right_that_is_given_is_seen_after_ten_seconds(door: Door) -> None:
    assert await door.status("Bearer other") == 403
    door.fake.may.add(("bob", "/koordgate/map"))
    door.clock.now += 9
    assert await door.status("Bearer other") == 403
    door.clock.now += 1
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


async def test_one_address_may_try_five_times_at_once_and_then_every_two_seconds(door: Door) -> None:
    for pause in (0, 3600):
        door.clock.now += pause
        tried = [await door.status(f"Bearer {pause}-{number}") for number in range(6)]
        assert tried == [401] * 5 + [429]
    door.clock.now += 1.5
    assert await door.status("Bearer later") == 429
    assert door.last.headers["Retry-After"] == "1"
    assert door.last.text == "too many tokens were shown lately: try again in 1 s"
    door.clock.now += 0.5
    assert await door.status("Bearer later-still") == 401
    assert await door.status("Bearer at-once") == 429
    assert await door.status("Bearer another", "10.0.0.2") == 401


async def test_all_addresses_together_may_try_twenty_times_at_once_and_then_five_times_a_second(door: Door) -> None:
    tried = [await door.status(f"Bearer a{number}", f"10.0.0.{number}") for number in range(22)]
    assert tried == [401] * 20 + [429] * 2
    assert door.last.headers["Retry-After"] == "1"
    door.clock.now += 0.5
    tried = [await door.status(f"Bearer b{number}", f"10.0.1.{number}") for number in range(3)]
    assert tried == [401, 401, 429]
    door.clock.now += 3600
    tried = [await door.status(f"Bearer c{number}", f"10.0.2.{number}") for number in range(22)]
    assert tried == [401] * 20 + [429] * 2


@pytest.mark.parametrize(("length", "reviews"), [(8190, 1), (8191, 0)])
async def test_a_token_has_at_most_8190_characters(door: Door, length: int, reviews: int) -> None:
    assert await door.status("Bearer " + "x" * length) == 401
    assert door.asked("tokenreviews") == reviews


async def test_a_user_who_may_not_is_told_what_to_bind(door: Door) -> None:
    door.fake.users["long"] = {"username": "x" * 300}
    assert await door.status("Bearer other") == 403
    assert door.last.text == (
        "user 'bob' may not get /koordgate/map: bind the ClusterRole koordgate-map to it (docs/operate/operations.md)"
    )
    assert await door.status("Bearer long") == 403
    assert door.last.text is not None
    assert f"user '{'x' * 252} may not get" in door.last.text


async def test_an_api_server_that_cannot_be_asked_is_logged_every_ten_seconds(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    door.fake.faults.always("create", "tokenreviews", answer(500))
    logged = []
    for pause in (0, 0, 9.5, 0.5, 0):
        door.clock.now += pause
        assert await door.status("Bearer good") == 503
        logged.append(sum("cannot be reviewed" in one.message for one in caplog.records))
    assert logged == [1, 1, 1, 2, 2]
    assert door.last.headers["Retry-After"] == "5"


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
