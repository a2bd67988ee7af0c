"""Reading a live cluster: the settings of an installation, as its ConfigMap states them."""

from typing import Final

from koordgate.kube.client import KubeClient
from koordgate.kube.errors import Forbidden, Invalid, NotFound
from koordgate.kube.resource import CONFIG_MAPS
from koordgate.settings import SettingsError
from webhook import settings
from webhook.settings import Identity, WebhookSettings

RELEASE: Final = "koordgate"
"""The name of the installation's ConfigMap and configuration objects."""

CONFIG_KEY: Final = "config.yaml"
"""The key of the ConfigMap that has the settings."""

NAMESPACE: Final = Identity().namespace
"""Where koordgate is installed unless a command says otherwise."""


class UnknownSettingsError(Exception):
    """The settings of the installation cannot be read; the message says from where, and why."""


async def installed_settings(kube: KubeClient, namespace: str) -> WebhookSettings:
    """Read the settings of the installation in a namespace.

    Raises UnknownSettingsError: the ConfigMap is absent, may not be read, or is wrong; KubeError: the API server
    refuses for another reason, or cannot be reached.
    """
    where = f"ConfigMap {namespace}/{RELEASE}"
    try:
        found = await kube.get(CONFIG_MAPS.path(RELEASE, namespace))
        return settings.parse((found.get("data") or {}).get(CONFIG_KEY) or "", where)
    except (NotFound, Forbidden, Invalid, SettingsError) as error:
        raise UnknownSettingsError(f"the webhook's settings cannot be read from {where} ({error})") from error
