"""The frames of NRI's socket: two connections over one (mux), and on each the messages of ttrpc (pure).

containerd/nri, pkg/net/multiplex: a connection's number and the length, each a big-endian uint32, and the bytes.
containerd/ttrpc, PROTOCOL.md: the length and the stream's number likewise, a byte of type and one of flags, and the
body. A message may be cut anywhere over the frames of its connection, and a frame may have several.
"""

import struct
from typing import Final, NamedTuple

PLUGIN: Final = 1  # the connection on which the runtime calls its plugin
RUNTIME: Final = 2  # the connection on which the plugin calls the runtime
REQUEST: Final = 1
RESPONSE: Final = 2
MAX_BYTES: Final = 4 * 2**20  # of a message's body, by ttrpc

_MUX: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">IIBB")
# Go reads the beginning of a message through a buffer of this size, and the connection is lost to a frame that does not
# fit in (multiplex, conn.Read). The rest is read into the message itself.
_FIRST: Final = 4096


class FrameError(Exception):
    """Bytes that are not NRI's; the message says why."""


class Frame(NamedTuple):
    """A message of ttrpc."""

    connection: int
    stream: int
    kind: int
    body: bytes


def encode(frame: Frame) -> bytes:
    """Make the bytes of a message.

    Raises FrameError: it is too long.
    """
    if len(frame.body) > MAX_BYTES:
        raise FrameError(f"a message of {len(frame.body)} bytes; at most {MAX_BYTES} can be sent")
    whole = _HEAD.pack(len(frame.body), frame.stream, frame.kind, 0) + frame.body
    parts = (part for part in (whole[:_FIRST], whole[_FIRST:]) if part)
    return b"".join(_MUX.pack(frame.connection, len(part)) + part for part in parts)


class Frames:
    """The bytes that have arrived, and are no whole message yet."""

    def __init__(self) -> None:
        self._trunk = bytearray()
        self._of = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def feed(self, data: bytes) -> list[Frame]:
        """Take more bytes; returns the messages that they complete.

        Raises FrameError: they are not NRI's, or announce more than a message may have.
        """
        self._trunk += data
        found: list[Frame] = []
        at = 0
        while len(self._trunk) - at >= _MUX.size:
            connection, length = _MUX.unpack_from(self._trunk, at)
            if connection not in self._of or length > _HEAD.size + MAX_BYTES:
                raise FrameError(f"a frame of {length} bytes for connection {connection}, which is not NRI's")
            end = at + _MUX.size + length
            if len(self._trunk) < end:
                break
            self._of[connection] += self._trunk[at + _MUX.size : end]
            found.extend(self._complete(connection))
            at = end
        del self._trunk[:at]
        return found

    def _complete(self, connection: int) -> list[Frame]:
        buffer = self._of[connection]
        found: list[Frame] = []
        at = 0
        while len(buffer) - at >= _HEAD.size:
            length, stream, kind, _ = _HEAD.unpack_from(buffer, at)
            if kind not in {REQUEST, RESPONSE} or length > MAX_BYTES:
                raise FrameError(f"a message of type {kind} with {length} bytes, which is not ttrpc's")
            end = at + _HEAD.size + length
            if len(buffer) < end:
                break
            found.append(Frame(connection, stream, kind, bytes(buffer[at + _HEAD.size : end])))
            at = end
        del buffer[:at]
        return found
