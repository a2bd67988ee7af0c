"""The settings of the health lease."""

from typing import Annotated

from msgspec import Meta

from koordgate.settings import Name, Port, Section
from webhook.dialectsettings import NamespaceName

_LIVES = 3  # renewals that may be missed before silence can mean anything


class HealthLeaseSettings(Section, frozen=True):
    """What happens to the creation of Pods while no replica lives (`koordgate lease`).

    Attributes:
        enabled: whether replicas renew the lease.
        renew_seconds: how often each ready replica renews it, and how often the keeper looks.
        open_after_seconds: how long nobody must have renewed it, in the keeper's sight, before the entries are opened.
        self_tests: how many self-tests in a row must pass before the entries are shut again.
        namespace: where the Pods of self-tests are tried, as dry runs.
        name: of the Lease, in the namespace of `identity`.
        host: the address at which the keeper serves its health and metrics.
        port: the TCP port, likewise; 0 takes a free one.
    """

    enabled: bool = False
    renew_seconds: Annotated[float, Meta(gt=0, le=600)] = 10.0
    open_after_seconds: Annotated[float, Meta(gt=0, le=24 * 3600)] = 120.0
    self_tests: Annotated[int, Meta(ge=1, le=100)] = 3
    namespace: NamespaceName = "default"
    name: Name = "koordgate-health"
    host: str = "0.0.0.0"  # noqa: S104 - a Pod serves on all its addresses
    port: Port = 9447

    def __post_init__(self) -> None:
        """Check what concerns several keys."""
        if self.open_after_seconds < _LIVES * self.renew_seconds:
            raise ValueError(
                f"openAfterSeconds is {self.open_after_seconds:g}, and a replica may miss a renewal: set it to "
                f"{_LIVES * self.renew_seconds:g} or more, {_LIVES} times renewSeconds"
            )
