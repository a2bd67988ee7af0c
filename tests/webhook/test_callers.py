"""Who may call the extender, and what is reported about refused callers."""

import asyncio
import logging
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from webhook.tls import pki
from webhook.tls.callers import Entrance, Refusals, why_refused
from webhook.tls.pki import Pair

NAME = "koord-scheduler"


def subject(*names: str, kind: str = "commonName") -> dict[str, Any]:
    return {"subject": tuple(((kind, name),) for name in names)}


# --- the name


def test_the_one_exact_common_name_is_no_stranger() -> None:
    assert why_refused(subject(NAME), NAME) == ""
    assert why_refused({"subject": ((("organizationName", "x"),), (("commonName", NAME),))}, NAME) == ""


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (None, "it presented no certificate"),
        ({}, "it presented no certificate"),
        ({"subject": ()} | {"issuer": ()}, "is for nobody, and only 'koord-scheduler' may call"),
        (subject(NAME, kind="organizationName"), "is for nobody"),
        (subject(NAME + "-2"), "is for 'koord-scheduler-2'"),
        (subject("koord"), "is for 'koord'"),
        (subject(" " + NAME), "is for ' koord-scheduler'"),
        (subject(NAME.upper()), "is for 'KOORD-SCHEDULER'"),
        (subject(NAME + "\0.example"), r"is for 'koord-scheduler\x00.example'"),
        (subject(NAME, NAME), "is for 'koord-scheduler', 'koord-scheduler'"),
        (subject("other", NAME), "is for 'other', 'koord-scheduler'"),
        (subject("a", "b", "c", "d"), "is for 'a', 'b', 'c', and only"),
        (subject("x" * 5000), "is for '" + "x" * 100 + "', and"),
    ],
)
def test_all_others_are_strangers_by_what_their_certificate_says(shown: dict[str, Any] | None, told: str) -> None:
    assert told in why_refused(shown, NAME)


# --- what is reported


def test_each_reason_is_counted_always_and_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now, counted = [0.0], count()
    refusals = Refusals(lambda: next(counted), lambda: now[0])
    for seconds, reason in ((0, "a"), (1, "a"), (59, "b"), (59.9, "a"), (60, "a"), (118, "b"), (119, "b")):
        now[0] = seconds
        refusals.handshake(reason)
    assert [record.message[-1] for record in caplog.records] == ["a", "b", "a", "b"]
    assert next(counted) == 7


def test_a_refused_request_is_logged_and_not_counted_twice(caplog: pytest.LogCaptureFixture) -> None:
    counted = count()
    Refusals(lambda: next(counted)).request("why")
    assert caplog.messages == ["a caller of the extender was refused: why"]
    assert next(counted) == 0


def test_reasons_that_are_long_past_are_forgotten() -> None:
    now = [0.0]
    refusals = Refusals(lambda: None, lambda: now[0])
    for number in range(1000):
        now[0] = number
        refusals.request(f"reason {number}")
    assert len(refusals._told) <= 60


# --- connections


NOW = datetime.now(UTC)
AUTHORITY, OTHER = (pki.new_authority("koordgate", NOW, 30) for _ in range(2))
SERVER = pki.new_certificate(AUTHORITY, ("localhost",), (), NOW, 10)
SCHEDULER = pki.new_client_certificate(AUTHORITY, NAME, NOW, 30)
OF_OTHER = pki.new_client_certificate(OTHER, NAME, NOW, 30)


def load(context: ssl.SSLContext, pair: Pair) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "pair.pem")
        file.write_bytes(pair.key + pair.certificate)
        context.load_cert_chain(file)


def entrance(pair: Pair = SERVER, authorities: bytes = AUTHORITY.certificate) -> tuple[Entrance, list[str]]:
    made, told = Entrance(), list[str]()
    made.refused = told.append
    made.change(lambda context: load(context, pair), authorities)
    return made, told


def caller(pair: Pair | None, trusted: bytes = AUTHORITY.certificate) -> ssl.SSLContext:
    made = ssl.create_default_context(cadata=trusted.decode())
    if pair is not None:
        load(made, pair)
    return made


def comes_in(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether a handshake in memory succeeds on the server's side."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there, server_hostname="localhost"), server.wrap_bio(there, back, server_side=True)
    under_way, done = list(ends), []
    for end in ends * 4:
        try:
            if end in under_way:
                end.do_handshake()
                under_way.remove(end)
                done.append(end)
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            under_way.remove(end)
    return ends[1] in done


def test_who_shows_a_certificate_by_the_authority_comes_in() -> None:
    server, told = entrance()
    assert comes_in(server, caller(SCHEDULER))
    assert told == []


def before(version: ssl.TLSVersion) -> Callable[[], ssl.SSLContext]:
    def made() -> ssl.SSLContext:
        context = caller(SCHEDULER)
        context.maximum_version = version
        return context

    return made


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        (lambda: caller(None), "it presented no certificate; set certFile and keyFile"),
        (lambda: caller(OF_OTHER), "its certificate is not accepted: unable to get local issuer certificate"),
        (lambda: caller(SERVER), "its certificate is not accepted: unsuitable certificate purpose"),
        (
            lambda: caller(SCHEDULER, OTHER.certificate),
            "it does not trust our certificate: kube-scheduler reads its caFile",
        ),
        (before(ssl.TLSVersion.TLSv1_2), "no TLS connection: unsupported protocol"),
    ],
    ids=["none", "another authority's", "the server's", "distrusts us", "TLS 1.2"],
)
def test_who_does_not_come_in_is_reported_once_and_why(client: Callable[[], ssl.SSLContext], reason: str) -> None:
    server, told = entrance()
    assert not comes_in(server, client())
    assert len(told) == 1
    assert told[0].startswith(reason)


def test_a_change_counts_from_the_next_connection_on_also_for_what_is_no_longer_trusted() -> None:
    server, _ = entrance(authorities=AUTHORITY.certificate + OTHER.certificate)
    assert comes_in(server, caller(SCHEDULER))
    assert comes_in(server, caller(OF_OTHER))
    server.change(lambda context: load(context, SERVER), OTHER.certificate)
    assert not comes_in(server, caller(SCHEDULER))
    assert comes_in(server, caller(OF_OTHER))


def test_a_change_that_fails_leaves_all_as_it_was() -> None:
    server, _ = entrance()
    with pytest.raises(ssl.SSLError):
        server.change(lambda context: load(context, SERVER), b"no PEM")
    with pytest.raises(ssl.SSLError):
        server.change(lambda context: load(context, Pair(SERVER.certificate, SCHEDULER.key)), OTHER.certificate)
    assert comes_in(server, caller(SCHEDULER))


def test_before_the_first_change_nobody_comes_in() -> None:
    assert not comes_in(Entrance(), caller(SCHEDULER))


def test_an_authority_that_is_no_root_is_trusted_as_it_was_given() -> None:
    """A CA file as kube-scheduler and the API server read it, and as cert-manager may write it."""
    server, told = entrance(authorities=SCHEDULER.certificate)
    assert comes_in(server, caller(SCHEDULER)), told


async def test_a_hang_up_in_the_handshake_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    server, told = entrance()
    listening = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=server)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        for sent in (b"", bytes.fromhex("160301")):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            writer.close()
            await writer.wait_closed()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=caller(SCHEDULER), server_hostname="localhost"
        )
        assert await reader.read() == b""
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    assert told == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
