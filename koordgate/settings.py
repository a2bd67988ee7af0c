"""The settings of a koordgate process: one YAML file, read once, checked whole, then frozen."""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml
from msgspec import Meta

from allocator.names import KOORD_SCHEDULER, KUBERNETES_DOMAIN

# With an upper bound, which keeps infinity out.
Seconds = Annotated[float, Meta(gt=0, le=24 * 3600)]
Days = Annotated[float, Meta(gt=0, le=1_000_000)]
Name = Annotated[str, Meta(min_length=1)]
_NAMESPACE = "koordgate-system"


class SettingsError(ValueError):
    """A settings file that cannot be used; the message names the file, the key and what would be right."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """A part of the file: camelCase keys, unknown ones refused."""


class Scheduler(_Section, frozen=True):
    """The scheduler whose Bindings allocate.

    Attributes:
        name: what `spec.schedulerName` is rewritten to.
        username: the exact user that its Bindings come from.
        most_nodes: how many of the equally best nodes the extender's filter names; 0 names all that fit, best or not,
            and leaves the choice to the scheduler's own scoring (with the extender's prioritize among it, if called).
    """

    name: Name = KOORD_SCHEDULER
    username: Name = f"system:serviceaccount:{_NAMESPACE}:{KOORD_SCHEDULER}"
    most_nodes: Annotated[int, Meta(ge=0)] = 16


class Identity(_Section, frozen=True):
    """Who this installation is in the cluster.

    Attributes:
        namespace: where it runs: its Secret lives here, and its Pods are exempt.
        username: the user that the webhook's own requests come from.
        mutating: name of its MutatingWebhookConfiguration, into which the CA is published.
        validating: name of its ValidatingWebhookConfiguration.
    """

    namespace: Name = _NAMESPACE
    username: Name = f"system:serviceaccount:{_NAMESPACE}:koordgate"
    mutating: Name = "koordgate"
    validating: Name = "koordgate"


class Serve(_Section, frozen=True):
    """The HTTPS server.

    Attributes:
        host: address to listen on.
        port: TCP port; 0 takes a free one.
        body_limit_bytes: a larger review is refused with 413.
        deadline_seconds: the longest any review takes, if its own `timeout` parameter is not shorter.
        shutdown_delay_seconds: how long the server goes on after SIGTERM, not ready, so that callers leave.
    """

    host: str = "0.0.0.0"  # noqa: S104 - a Pod serves on all its addresses
    port: Annotated[int, Meta(ge=0, le=65535)] = 9443
    body_limit_bytes: Annotated[int, Meta(ge=1024)] = 7 * 1024 * 1024
    deadline_seconds: Seconds = 4.0
    shutdown_delay_seconds: Annotated[float, Meta(ge=0, le=24 * 3600)] = 5.0


class CertificateFiles(_Section, frozen=True):
    """A certificate that somebody else makes (cert-manager, say); reloaded when the files change.

    Attributes:
        certificate: file with the serving certificate, and those between it and the CA, as PEM.
        key: file with its private key, as PEM.
        authority: file with the CA that callers are to trust, as PEM.
    """

    certificate: Name
    key: Name
    authority: Name


class Certificate(_Section, frozen=True):
    """Where the serving certificate comes from.

    Attributes:
        secret: name of the Secret that holds the self-signed CA and certificate.
        dns_names: names that the certificate is good for.
        ip_addresses: addresses that it is good for.
        authority_days: life of the CA.
        certificate_days: life of the certificate; both are made anew at two thirds of it.
        files: used instead of the Secret where set.
    """

    secret: Name = "koordgate-tls"  # noqa: S105 - a Secret's name
    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[str, ...] = ()
    authority_days: Days = 365
    certificate_days: Days = 30
    files: CertificateFiles | None = None


class Ledger(_Section, frozen=True):
    """The ledger's times.

    Attributes:
        grace_seconds: how old a holding must be before it can be swept as never bound: longer than any API request.
        reconcile_seconds: how often the ledger is compared with live Pods.
        gather_seconds: how long a bind to a node that was written a moment ago waits for others to share its write.
    """

    grace_seconds: Seconds = 120.0
    reconcile_seconds: Seconds = 60.0
    gather_seconds: Annotated[float, Meta(ge=0, le=1)] = 0.03


class Settings(_Section, frozen=True):
    """All settings of `koordgate webhook`.

    Attributes:
        domain: the domain that resource names are written in; both are read.
        state_memory: whether a translation also states gpu-memory where all GPUs in reach have the same
            (Koordinator's own scheduler refuses ratio and memory side by side: turn it off there).
        log_level: debug, info, warning or error.
    """

    domain: Literal["kubernetes.io", "koordinator.sh"] = KUBERNETES_DOMAIN
    state_memory: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    scheduler: Scheduler = Scheduler()
    identity: Identity = Identity()
    serve: Serve = Serve()
    certificate: Certificate = Certificate()
    ledger: Ledger = Ledger()


def without_gathering(settings: Settings) -> Settings:
    """The same settings, but binds never wait for others: offline they come one by one."""
    return msgspec.structs.replace(settings, ledger=msgspec.structs.replace(settings.ledger, gather_seconds=0.0))


def load(path: Path) -> Settings:
    """Read a settings file.

    Raises:
        SettingsError: it cannot be read, is no YAML, or holds a wrong or unknown key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be read ({error.strerror}); give --config an existing YAML file"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 ({error}); save it as UTF-8") from error
    return parse(text, str(path))


def parse(text: str, source: str = "settings") -> Settings:
    """Read settings from YAML text.

    Raises:
        SettingsError: as for `load`; `source` is named in it.
    """
    try:
        raw: Any = yaml.safe_load(text)
    except RecursionError as error:
        raise SettingsError(f"{source}: not YAML that can be read: nested too deeply") from error
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:  # the last three for ill-formed scalars
        raise SettingsError(f"{source}: not YAML: {error}") from error
    try:
        return msgspec.convert(raw if raw is not None else {}, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source}: {error}") from error
