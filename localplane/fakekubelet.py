"""What kubelets would say of Pods, on a control plane whose Nodes have none: no container runs."""

from datetime import UTC, datetime

from localplane.admin import STRATEGIC_PATCH, AdminClient, ApiError, JsonObject

_PODS = "/api/v1/pods"
_GONE, _CHANGED = 404, 409


async def fake_kubelets(admin: AdminClient) -> None:
    """Say of each bound Pod that it runs, and let it go when it is deleted; until cancelled.

    Raises:
        ApiError: The API server refused.
        aiohttp.ClientError: It was not reached.
    """
    while True:
        found = await admin.get(_PODS)
        for pod in found["items"]:
            await _tend(admin, pod)
        version = found["metadata"]["resourceVersion"]
        async for event in admin.watch(_PODS, resourceVersion=version):
            if event["type"] == "ERROR":
                break  # the version is too old: list again
            if event["type"] in {"ADDED", "MODIFIED"}:
                await _tend(admin, event["object"])


async def _tend(admin: AdminClient, pod: JsonObject) -> None:
    metadata, spec, status = pod["metadata"], pod["spec"], pod["status"]
    if not spec.get("nodeName"):
        return
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    same = {"uid": metadata["uid"]}
    try:
        if "deletionTimestamp" in metadata:
            await admin.delete(path, {"gracePeriodSeconds": 0, "preconditions": same})
        elif status.get("phase") == "Pending":
            patch = {"metadata": same, "status": _running(spec)}
            await admin.patch(f"{path}/status", patch, STRATEGIC_PATCH)
    except ApiError as error:
        if error.status not in {_GONE, _CHANGED}:  # it has ended, or another of this name is there
            raise


def _running(spec: JsonObject) -> JsonObject:
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    true = {"status": "True", "lastTransitionTime": now}
    runs = {"ready": True, "started": True, "restartCount": 0, "imageID": "", "state": {"running": {"startedAt": now}}}
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [{"type": kind, **true} for kind in ("Initialized", "ContainersReady", "Ready")],
        "containerStatuses": [{"name": one["name"], "image": one["image"], **runs} for one in spec["containers"]],
    }
