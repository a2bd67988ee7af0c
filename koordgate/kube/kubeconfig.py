"""Access by a kubeconfig, with its certificates, tokens and plugins, as kubernetes_asyncio reads it.

This is the only importer of kubernetes_asyncio. It is imported only if a kubeconfig is read, because the library takes
36 MB and a second. Only its configuration is used; its API and model classes never see a body.
"""

import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_kube_config

from koordgate.kube.access import DEFAULT_NAMESPACE, environment_proxy, tls_context
from koordgate.kube.errors import KubeError

if TYPE_CHECKING:
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

_REFRESH_S: Final = 60.0  # tokens of plugins live for minutes at least

_LOG: Final = logging.getLogger(__name__)

Load = Callable[[Configuration, bool], Awaitable[None]]
"""Fills the configuration at each call; True requests new credentials even if the old ones look valid."""


class ConfiguredAccess:
    """An `Access` that kubernetes_asyncio loads, and loads again while the process runs."""

    def __init__(self, configuration: Configuration, load: Load, clock: Callable[[], float] = time.monotonic) -> None:
        self._configuration = configuration
        self._load = load
        self._clock = clock
        self._fresh_until = clock() + _REFRESH_S
        self._tls: ssl.SSLContext | None = None
        self.namespace = DEFAULT_NAMESPACE

    @classmethod
    async def create(cls, load: Load) -> "ConfiguredAccess":
        """Load for the first time.

        Raises KubeError: there is no usable configuration.
        """
        configuration = Configuration()
        await _loaded(load, configuration, renew=False)
        return cls(configuration, load)

    @property
    def base_url(self) -> str:
        """The cluster's `server`."""
        return str(self._configuration.host).rstrip("/")

    @property
    def proxy(self) -> str | None:
        """The cluster's `proxy-url`, else the environment's proxy."""
        return str(self._configuration.proxy) if self._configuration.proxy else environment_proxy(self.base_url)

    @property
    def server_name(self) -> str | None:
        """The cluster's `tls-server-name`."""
        return self._configuration.tls_server_name or None

    def ssl_context(self) -> ssl.SSLContext | None:
        """The cluster's CA and our client certificate."""
        if not self.base_url.startswith("https"):
            return None
        wanted = self._configuration
        try:
            tls = tls_context(wanted.ssl_ca_cert)
        except OSError as error:  # an SSLError is one
            raise KubeError(f"certificates of {self.base_url}: {error}", reason="Configuration") from error
        self._present_certificate(tls)
        if not wanted.verify_ssl:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        self._tls = tls
        return tls

    async def authorization(self, *, renew: bool = False) -> str | None:
        """The current Authorization header, loaded again once a minute or when asked."""
        if renew or self._clock() >= self._fresh_until:
            # Set before the await: requests that come during it use the present credentials.
            self._fresh_until = self._clock() + _REFRESH_S
            await self._refresh(renew=renew)
        value = await self._configuration.get_api_key_with_prefix("BearerToken")
        return value.strip() if value else None

    async def _refresh(self, *, renew: bool) -> None:
        try:
            await _loaded(self._load, self._configuration, renew=renew)
        except KubeError as error:
            # The old credentials may still be valid; if not, the API server answers 401.
            _LOG.warning("credentials not refreshed: %s", error)
            return
        if self._tls is None:
            return
        try:
            self._present_certificate(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))  # the files may be half written
            self._present_certificate(self._tls)  # for connections opened from now on
        except KubeError as error:
            _LOG.warning("client certificate not renewed: %s", error)

    def _present_certificate(self, tls: ssl.SSLContext) -> None:
        """Read the client certificate, if there is one; the same files may have another one by now."""
        if not self._configuration.cert_file:
            return
        try:
            tls.load_cert_chain(self._configuration.cert_file, self._configuration.key_file)
        except OSError as error:  # an SSLError is one
            raise KubeError(f"certificates of {self.base_url}: {error}", reason="Configuration") from error


async def _loaded(load: Load, configuration: Configuration, *, renew: bool) -> None:
    try:
        await load(configuration, renew)
    except (ConfigException, OSError, ValueError, yaml.YAMLError) as error:
        problem = f"no usable Kubernetes configuration: {error}; name a kubeconfig in $KUBECONFIG, or another --context"
        raise KubeError(problem, reason="Configuration") from error
    except Exception as error:  # the library asserts and assumes what a field is, and fails in any way
        found = f"{type(error).__name__}: {error}".rstrip(": ")
        problem = f"no usable Kubernetes configuration: {found}; see whether kubectl config view accepts it"
        raise KubeError(problem, reason="Configuration") from error


def _exists(files: str) -> bool:
    return any(Path(file).expanduser().exists() for file in files.split(os.pathsep) if file)


async def kubeconfig_access(path: Path | None = None, context: str | None = None) -> ConfiguredAccess:
    """Access as a context of a kubeconfig.

    `path`: the file; None for $KUBECONFIG (which may name several), else the usual place under the home folder.
    `context`: its name; None for the current one.
    """
    # Not the library's constant, which was computed when the library was imported.
    files = str(path or os.environ.get("KUBECONFIG") or "~/.kube/config")
    if not _exists(files):  # the library says only which key it misses
        told = f"no usable Kubernetes configuration: there is no file {files}"
        raise KubeError(f"{told}; write the kubeconfig there, or name it in $KUBECONFIG", reason="Configuration")
    loader: KubeConfigLoader | None = None

    async def load(configuration: Configuration, renew: bool) -> None:  # noqa: FBT001
        nonlocal loader
        if loader is None or renew:
            loader = await load_kube_config(
                config_file=files, context=context, client_configuration=configuration, persist_config=False
            )
        else:  # the same loader knows when its plugin's token expires, and reads token files again
            await loader.load_and_set(configuration)

    access = await ConfiguredAccess.create(load)
    chosen = loader.current_context if loader is not None else None
    stated = chosen["context"].get("namespace") if chosen is not None else None
    access.namespace = stated if isinstance(stated, str) and stated else DEFAULT_NAMESPACE
    return access
