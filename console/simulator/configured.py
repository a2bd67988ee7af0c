"""By which settings offline commands judge: one rule for all of them.

Those of `--config` come first, then those of the installation whose ConfigMap is in the input, as in a snapshot. Where
there are neither, a person wants to know what is possible: every dialect is on.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.vocabulary.dialects import PEERS
from console.devices.installed import CONFIG_KEY, RELEASE
from console.simulator.documents import InputError
from koordgate.settings import SettingsError
from webhook import settings
from webhook.dialectsettings import DialectSettings
from webhook.settings import WebhookSettings


def every_dialect() -> WebhookSettings:
    """Settings in which every dialect is on whose unit of memory is known."""
    on = {one.name: DialectSettings(enabled=True) for one in PEERS if one.unit or not one.sized}
    return WebhookSettings(dialects=on)


def is_settings(obj: Mapping[str, Any], kind: str) -> bool:
    """Whether an object has the settings of an installation."""
    metadata = obj.get("metadata")
    return kind == "ConfigMap" and isinstance(metadata, Mapping) and metadata.get("name") == RELEASE


def stated_among(objects: Iterable[tuple[str, Mapping[str, Any], str]]) -> Mapping[str, Any] | None:
    """The first ConfigMap with settings; None without one.

    Args:
        objects: where each is, the object, and its kind.
    """
    return next((obj for _, obj, kind in objects if is_settings(obj, kind)), None)


def settings_of(found: Mapping[str, Any] | None) -> WebhookSettings:
    """The settings in a ConfigMap; without one, those in which every dialect is on.

    Raises:
        InputError: they are wrong.
    """
    if found is None:
        return every_dialect()
    data = found.get("data")
    text = data.get(CONFIG_KEY) if isinstance(data, Mapping) else None
    try:
        return settings.parse(text if isinstance(text, str) else "", f"ConfigMap {RELEASE}")
    except SettingsError as error:
        raise InputError(str(error)) from error
