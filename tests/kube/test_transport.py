"""The sockets under the client: a peer that vanished is noticed."""

import socket

from koordgate.kube.client import _watchful_socket


def test_a_peer_that_vanished_is_noticed_within_half_a_minute() -> None:
    with _watchful_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))) as made:
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
        options = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        found = [made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in options]
    idle, interval, count, unanswered = found
    assert idle + interval * count == 30
    assert (idle, interval, count, unanswered) == (15, 5, 3, 30_000)
