"""Access to the API server as the Pod's service account, without kubernetes-asyncio.

That library's package costs 36 MB in every process that imports it; this one runs on every node, and needs no more of
it than three files and two variables (Kubernetes, "Accessing the Kubernetes API from a Pod").
"""

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from koordgate.kube.errors import KubeError

_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REFRESH_S: Final = 60.0  # the kubelet replaces a token at 80 % of its life, an hour by default
_MOST_TOKEN: Final = 65536


def inside_a_pod() -> bool:
    """Whether a service account's access is to be used."""
    return not os.environ.get("KUBECONFIG") and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


class ServiceAccountAccess:
    """A `koordgate.kube.access.Access`.

    Args:
        folder: where the token and the CA are mounted.
        clock: monotonic, in seconds.
    """

    proxy: Final = None
    server_name: Final = None

    def __init__(self, folder: Path = _FOLDER, clock: Callable[[], float] = time.monotonic) -> None:
        host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        self.base_url = f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"
        self._folder = folder
        self._clock = clock
        self._token = ""
        self._fresh_until = 0.0

    def ssl_context(self) -> ssl.SSLContext:
        """TLS settings with the cluster's CA.

        Raises:
            KubeError: it is not there.
        """
        try:
            tls = ssl.create_default_context(cafile=self._folder / "ca.crt")
        except (OSError, ssl.SSLError) as error:
            raise KubeError(f"{self._folder / 'ca.crt'}: {error}", reason="Configuration") from error
        # Python 3.13 asks for key identifiers that cluster CAs often lack and that no other Kubernetes client asks for.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return tls

    async def authorization(self, *, renew: bool = False) -> str:
        """The current token, read anew once a minute or when asked.

        Raises:
            KubeError: there is none.
        """
        if renew or self._clock() >= self._fresh_until:
            path = self._folder / "token"
            try:
                self._token = (await asyncio.to_thread(_read, path)).strip()
            except OSError as error:
                if not self._token:
                    raise KubeError(f"{path}: {error.strerror}; mount the token", reason="Configuration") from error
            self._fresh_until = self._clock() + _REFRESH_S
        return f"Bearer {self._token}"


def _read(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        return file.read(_MOST_TOKEN)
