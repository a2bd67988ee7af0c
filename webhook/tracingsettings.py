"""The settings about traces."""

import ssl
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta

from koordgate.settings import Section

_TRACES_PATH = "/v1/traces"  # of OTLP over HTTP, where a collector has no other


class TracingSettings(Section, frozen=True):
    """Traces (OpenTelemetry).

    Attributes:
        endpoint: the collector's address for OTLP over HTTP, as http://collector:4318; if "", there are no traces.
        sampling_percent: of the calls that state no trace, how many are traced. A call that states one is traced if
            its caller traces it.
        authority: the CA of the collector's certificate, as PEM; if "", the CAs that the image trusts.
    """

    endpoint: str = ""
    sampling_percent: Annotated[float, Meta(ge=0, le=100)] = 10.0
    authority: str = ""

    def __post_init__(self) -> None:
        """Check the address and the certificate."""
        if not self.endpoint:
            return
        example = "as in http://collector.monitoring:4318"
        try:
            parts = urlsplit(self.endpoint)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"tracing.endpoint is no address: {error}; write it {example}") from error
        if parts.scheme not in {"http", "https"} or not host or not self.endpoint.isprintable():
            raise ValueError(f"tracing.endpoint is not an http or https address: write it {example}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError(
                "tracing.endpoint has a user, a query or a fragment: leave them out; what the collector asks for goes "
                "into the environment variable OTEL_EXPORTER_OTLP_HEADERS (chart: tracing.headersSecret)"
            )
        if self.authority:
            try:
                ssl.create_default_context(cadata=self.authority)
            except (ssl.SSLError, ValueError) as error:
                raise ValueError(f"tracing.authority is not a certificate as PEM: {error}") from error

    @property
    def address(self) -> str:
        """Where spans are sent; the path of OTLP is added where the endpoint has none."""
        parts = urlsplit(self.endpoint)
        return self.endpoint if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{_TRACES_PATH}"
