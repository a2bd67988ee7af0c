"""The settings of the device map."""

from typing import Annotated

from msgspec import Meta

from koordgate.settings import Port, Section


class MapSettings(Section, frozen=True):
    """The device map.

    Attributes:
        enabled: whether it is served. Whoever may `get` the path /koordgate/map sees the Pods of all namespaces.
        port: TCP port; 0 takes a free one.
        clients: how many may follow the changes at once; further ones poll.
    """

    enabled: bool = False
    port: Port = 9445
    clients: Annotated[int, Meta(ge=1, le=1000)] = 32
