"""The formats of the files about the container runtime (pure): only what counts for delivery is kept of them.

These files may hold credentials of registries. No message therefore quotes them.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import yaml

from reporter.delivery.facts import CdiSpec, Engine, EngineFile, NvidiaConfiguration, is_name

MOST_BYTES: Final = 256 * 1024
_MOST: Final = 4096  # devices of a specification, handlers, imports
_LIMITS_HOOK: Final = "apply-cuda-memory-limits"
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri", "cri")  # versions 3, 2 and 1
_CONTAINERDS_DEFAULT: Final = "runc"


def cdi_spec(data: bytes) -> CdiSpec:
    """Read a CDI specification, YAML or JSON.

    Raises ValueError: it is none.
    """
    spec = _table(_yaml(data))
    kind, devices = spec.get("kind"), spec.get("devices")
    if not is_name(kind) or not isinstance(devices, list) or len(devices) > _MOST:
        raise ValueError("is no CDI specification: it needs a kind, and a list of devices")
    entries = [_table(one) for one in devices]
    names = frozenset(name for one in entries if is_name(name := one.get("name")))
    return CdiSpec(kind, names, any(map(_limits, (spec, *entries))))


def _yaml(data: bytes) -> object:
    """Read YAML or JSON. PyYAML's loader in C is faster, and dies of deep nesting."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError, AttributeError, OverflowError):
        raise ValueError("is neither YAML nor JSON") from None


def _limits(holder: Mapping[str, Any]) -> bool:
    hooks = _table(holder.get("containerEdits")).get("hooks")
    return any(
        isinstance(arguments := _table(hook).get("args"), list) and _LIMITS_HOOK in arguments
        for hook in (hooks[:_MOST] if isinstance(hooks, list) else ())
    )


def nvidia_configuration(data: bytes) -> NvidiaConfiguration:
    """Read the config.toml of NVIDIA's runtime.

    Raises ValueError: it is no TOML, or a value has the wrong kind.
    """
    found = _toml(data)
    mode = _table(found.get("nvidia-container-runtime")).get("mode", "auto")
    unprivileged = found.get("accept-nvidia-visible-devices-envvar-when-unprivileged", True)
    if not is_name(mode) or not isinstance(unprivileged, bool):
        raise ValueError("mode is no word, or accept-nvidia-visible-devices-envvar-when-unprivileged no boolean")
    return NvidiaConfiguration(mode, unprivileged)


def containerd_file(data: bytes) -> EngineFile:
    """Read a configuration file of containerd.

    Raises ValueError: it is no TOML.
    """
    found = _toml(data)
    plugins = _table(found.get("plugins"))
    section = next((plugins[name] for name in _CRI if name in plugins), None)
    engine = _table(_table(section).get("containerd"))
    runtimes = _table(engine.get("runtimes"))
    programs = {name: _table(_table(one).get("options")).get("BinaryName") for name, one in runtimes.items()}
    imports = found.get("imports")
    return EngineFile(
        _stated(engine.get("default_runtime_name")),
        _texts(programs),
        section is not None,
        tuple(one for one in (imports[:_MOST] if isinstance(imports, list) else ()) if is_name(one)),
    )


def crio_file(data: bytes) -> EngineFile:
    """Read a configuration file of CRI-O.

    Raises ValueError: it is no TOML.
    """
    section = _table(_table(_toml(data).get("crio")).get("runtime"))
    runtimes = _table(section.get("runtimes"))
    programs = {name: _table(one).get("runtime_path") for name, one in runtimes.items()}
    return EngineFile(_stated(section.get("default_runtime")), _texts(programs), section=bool(section))


def containerd(files: Iterable[EngineFile], *, whole: bool) -> Engine:
    """Take the files of containerd together, in the order in which it reads them.

    A file that is imported adds to the section, as containerd 2 does, or replaces it, as older ones do. Where the
    default would differ, it is not known.
    """
    added: str | None = None
    replaced: str | None = None
    programs: dict[str, str] = {}
    for one in files:
        programs.update(one.programs)
        if one.section:
            added = one.default or added
            replaced = one.default
    default = added or _CONTAINERDS_DEFAULT
    return Engine(default if whole and default == (replaced or _CONTAINERDS_DEFAULT) else None, programs)


def crio(files: Iterable[EngineFile], *, whole: bool) -> Engine:
    """Take the files of CRI-O together, in the order in which it reads them."""
    default = ""  # runc or crun, by its version
    programs: dict[str, str] = {}
    for one in files:
        programs.update(one.programs)
        default = one.default or default
    return Engine(default if whole else None, programs)


def _toml(data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        raise ValueError("is no TOML") from None


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _stated(value: object) -> str | None:
    return value if is_name(value) else None


def _texts(found: Mapping[str, object]) -> dict[str, str]:
    kept = ((name, stated) for name, value in found.items() if (stated := _stated(value)) and is_name(name))
    return dict(sorted(kept)[:_MOST])
