"""The names that people gave, as they are, or replaced by others that say nothing (pure).

A name is replaced by the beginning of a keyed hash. The same name therefore has the same replacement wherever it occurs
as a name or as a value of a label, so that selectors select the same, and in every snapshot made with the same key.
"""

import hashlib
import json
import re
from typing import Any, Final

Raw = dict[str, Any]

_DIGITS: Final = 12  # of a replacement: of 100,000 names, two are alike in one of 50,000 clusters
_KEPT: Final = frozenset({"", "*", "default", "kube-system", "kube-public", "kube-node-lease", "koordgate-system"})
_KEPT_BEGINNINGS: Final = ("koordgate", "koord-", "koordlet", "system-")  # names that koordgate and Kubernetes gave
_PLAIN_VALUE: Final = re.compile(r"-?[0-9]{1,12}|true|false|", re.ASCII)
# Domains whose keys say nothing of their user, and keys whose values do not either.
_KNOWN_KEYS: Final = re.compile(
    r"([a-z0-9.-]+\.)?(kubernetes\.io|k8s\.io|x-k8s\.io|koordgate\.io|koordinator\.sh|nvidia\.com|amd\.com|"
    r"volcano\.sh|hami\.io|run\.ai|aliyun\.com)/.*|pod-group\.scheduling\.sigs\.k8s\.io|metadata\.name|runai-gpu-group"
)
_KNOWN_VALUES: Final = re.compile(
    r"(beta\.)?kubernetes\.io/(arch|os)|node(-role)?\.kubernetes\.io/.*|koordgate\.io/.*|node\.koordinator\.sh/.*|"
    r"koordinator\.sh/(qosClass|priority-class|gpu-isolation-provider)|(nvidia|amd)\.com/.*"
)


class Namer:
    """Writes names: as they are without a key, else replaced.

    Whoever knows the key of the hash can find out whether a name that he guesses is one of these.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self.hides = key is not None
        self._key = (key or b"")[: hashlib.blake2b.MAX_KEY_SIZE]

    def name(self, text: str) -> str:
        """Write the name of an object; it stays if Kubernetes or koordgate gave it."""
        if not self.hides or text in _KEPT or text.startswith(_KEPT_BEGINNINGS):
            return text
        hashed = hashlib.blake2b(text.encode(errors="surrogatepass"), key=self._key, digest_size=_DIGITS // 2)
        return f"x{hashed.hexdigest()}"

    def key(self, text: str) -> str:
        """Write the key of a label, taint or selector; it stays if it is in a domain that many clusters use."""
        return text if _KNOWN_KEYS.fullmatch(text) else self.name(text)

    def value(self, key: str, text: str) -> str:
        """Write the value that belongs to such a key; it stays if it describes hardware, or is a number."""
        known = _KNOWN_VALUES.fullmatch(key) or _PLAIN_VALUE.fullmatch(text)
        return text if known else self.name(text)


OPEN: Final = Namer()


def rename_json(text: str, names: Namer, fields: frozenset[str]) -> str | None:
    """Replace the texts of these fields, however deep, in JSON; None if it is not JSON."""

    def renamed(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                key: names.name(of) if key in fields and isinstance(of, str) else renamed(of)
                for key, of in part.items()
            }
        return [renamed(one) for one in part] if isinstance(part, list) else part

    try:
        return json.dumps(renamed(json.loads(text)), separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
