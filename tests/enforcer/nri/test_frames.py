"""The frames of NRI's socket: however the bytes are cut, and whatever they are."""

import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trials import examples

from reporter.enforcer.nri.frames import PLUGIN, REQUEST, RESPONSE, RUNTIME, Frame, FrameError, Frames, encode

MOST = 4 * 2**20

messages = st.builds(
    Frame,
    st.sampled_from((PLUGIN, RUNTIME)),
    st.integers(0, 2**32 - 1),
    st.sampled_from((REQUEST, RESPONSE)),
    st.one_of(st.binary(max_size=30), st.integers(0, 20_000).map(bytes)),
)


def mux(connection: int, data: bytes, length: int | None = None) -> bytes:
    return struct.pack(">II", connection, len(data) if length is None else length) + data


def ttrpc(frame: Frame, length: int | None = None) -> bytes:
    said = len(frame.body) if length is None else length
    return struct.pack(">IIBB", said, frame.stream, frame.kind, 0) + frame.body


def of(frames: list[Frame], connection: int) -> list[Frame]:
    return [one for one in frames if one.connection == connection]


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    at = 0
    for cut in (*cuts, len(data)):
        yield data[at : at + max(cut, 1)]
        at += max(cut, 1)


@settings(max_examples=examples(400))
@given(st.lists(messages, max_size=6), st.lists(st.integers(1, 5000), max_size=30))
def test_messages_are_the_same_however_the_stream_is_cut(sent, cuts) -> None:
    frames = Frames()
    arrived = [one for part in pieces(b"".join(map(encode, sent)), cuts) for one in frames.feed(part)]

    assert arrived == sent


@settings(max_examples=examples(400))
@given(st.lists(messages, max_size=6), st.data())
def test_messages_of_a_connection_may_be_cut_over_its_frames_and_share_one(sent, data) -> None:
    streams = {one: b"".join(map(ttrpc, of(sent, one))) for one in (PLUGIN, RUNTIME)}
    trunk = bytearray()
    while any(streams.values()):
        connection = data.draw(st.sampled_from([one for one, rest in streams.items() if rest]))
        size = data.draw(st.integers(0, 9000))
        trunk += mux(connection, streams[connection][:size])
        streams[connection] = streams[connection][size:]

    arrived = Frames().feed(bytes(trunk))

    assert [of(arrived, one) for one in (PLUGIN, RUNTIME)] == [of(sent, one) for one in (PLUGIN, RUNTIME)]


def test_the_first_frame_of_a_message_fits_into_the_runtimes_buffer() -> None:
    data = encode(Frame(PLUGIN, 1, RESPONSE, bytes(100_000)))

    assert struct.unpack_from(">II", data) == (PLUGIN, 4096)
    assert struct.unpack_from(">II", data, 4096 + 8) == (PLUGIN, 100_010 - 4096)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(mux(0, b"abc"), id="connection 0"),
        pytest.param(mux(3, b"abc"), id="connection 3"),
        pytest.param(mux(PLUGIN, b"", MOST + 11), id="a frame above 4 MiB"),
        pytest.param(mux(PLUGIN, b"", 2**32 - 1), id="a frame of 4 GiB"),
        pytest.param(mux(PLUGIN, ttrpc(Frame(PLUGIN, 1, REQUEST, b""), MOST + 1)), id="a message above 4 MiB"),
        pytest.param(mux(PLUGIN, ttrpc(Frame(PLUGIN, 1, 3, b""))), id="a stream's data"),
        pytest.param(b"HTTP/1.1 400 Bad Request\r\n\r\n", id="HTTP"),
    ],
)
def test_what_is_not_nri_is_an_error_before_it_is_kept(data) -> None:
    with pytest.raises(FrameError, match="which is not"):
        Frames().feed(data)


def test_the_longest_message_is_read_and_a_longer_one_is_never_sent() -> None:
    longest = Frame(PLUGIN, 1, REQUEST, bytes(MOST))

    assert Frames().feed(encode(longest)) == [longest]
    with pytest.raises(FrameError, match="4194305 bytes"):
        encode(Frame(PLUGIN, 1, REQUEST, bytes(MOST + 1)))


@settings(max_examples=examples(400))
@given(st.lists(st.binary(max_size=40), max_size=20))
def test_garbage_is_an_error_or_awaits_more_and_nothing_else(parts) -> None:
    frames = Frames()
    try:
        for part in parts:
            frames.feed(part)
    except FrameError:
        return
