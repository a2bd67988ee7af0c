"""A stand-in for NVIDIA's container runtime: runc, after cards' library was mounted into the containers that ask."""

import json
import sys
import sysconfig
from pathlib import Path

import nvml_standin

HANDLER = "nvidia"
_RUNTIME = '''#!{python} -IS
"""Called as runc. A container whose environment names cards gets the library, as from NVIDIA's runtime."""
import json, os, sys
bundle = next((after for word, after in zip(sys.argv, sys.argv[1:]) if word == "--bundle"), None)
if "create" in sys.argv and bundle:
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        config = json.load(file)
    process = config["process"]
    shown = dict(entry.split("=", 1) for entry in process.get("env", ())).get("NVIDIA_VISIBLE_DEVICES", "")
    if shown not in ("", "void", "none"):
        process["env"] += {env}
        config["mounts"] += {mounts}
        with open(path, "w") as file:
            json.dump(config, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
'''


def runtime(folder: Path, node: str) -> Path:
    """Make the runtime's program.

    Args:
        folder: For the program, the library and what the library answers; every user must be able to read it.
        node: The recorded node whose cards the library plays.

    Returns:
        The program, for containerd.
    """
    folder.mkdir(parents=True, exist_ok=True)
    library = nvml_standin.build(folder) / "libnvidia-ml.so.1"
    answers, events = folder / "node.nvml", folder / "events"
    answers.write_text("".join(f"{key} = {value}\n" for key, value in nvml_standin.recorded(node).items()))
    events.touch()
    inside = "/run/nvml"
    targets = {
        library: f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/{library.name}",
        answers: f"{inside}/{answers.name}",
        events: f"{inside}/{events.name}",
    }
    mounts = [
        {"source": str(source), "destination": target, "type": "bind", "options": ["bind", "ro"]}
        for source, target in targets.items()
    ]
    env = [f"NVML_STANDIN_NODE={targets[answers]}", f"NVML_STANDIN_EVENTS={targets[events]}"]
    program = folder / "nvidia-container-runtime"
    program.write_text(_RUNTIME.format(python=sys.executable, env=json.dumps(env), mounts=json.dumps(mounts)))
    program.chmod(0o755)
    return program
