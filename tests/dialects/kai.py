"""KAI Scheduler and Run:ai: rows from its sources and tests.

NVIDIA/KAI-Scheduler at 72de64f; of 0.18 kai-scheduler/KAI-Scheduler, the files of autumn 2026.
"""

from typing import Any

from dialects.rows import GIB, Row, share

from allocator.vocabulary.asks import DeviceAsk

FRACTION, MEM, COUNT, WHERE = "gpu-fraction", "gpu-memory", "gpu-fraction-num-devices", "gpu-fraction-container-name"
_VALID = "pkg/binder/plugins/gpusharing/gpu-request/gpu_request_validator_test.go"
_READ = "pkg/scheduler/api/pod_info/pod_info.go: updatePodAdditionalFields"
_WHERE = "pkg/binder/common/gpu_access.go: GetFractionContainerRef"
_ROUND = "pkg/scheduler/api/node_info: shares of 0.01"
_PARSE = "pkg/common/resources/gpu_sharing_nvfractions_test.go, gpu_sharing_test.go"
_REF = "pkg/common/resources/gpu_sharing_container_ref_test.go"
_VALIDATE = "pkg/admission/webhook/v1alpha2/nvfractions/nvfractions_test.go: TestValidate; gpu_sharing_validation.go"
_SHORT = "pkg/admission/webhook/v1alpha2/nvfractions/mutation.go; gpu_sharing_validation.go: validateShorthandLimits"
_DEVICES = "pkg/admission/webhook/v1alpha2/nvfractions/nvfractions_test.go: TestValidateDeviceAnnotationAuthorization"
_MODE = "docs/gpu-sharing/nv-fraction/README.md: Choose a compute-sharing mode"
_UNREAD = "metadata.annotations[gpu-fraction]: is not read beside nvidia.com/container.a.gpu-memory.request"
_ABOVE = "is not a decimal number above gpu-fraction (0.5) and below 1"


def part(percent: int, count: int = 1) -> DeviceAsk:
    return share(count, core=percent, ratio=percent, vendor="")


def mib(amount: int, count: int = 1) -> DeviceAsk:
    return share(count, mib=amount, vendor="")


def of(container: str, what: str = "gpu-memory.request") -> str:
    """The annotation about a container."""
    return f"nvidia.com/container.{container}.{what}"


KEYS = {
    "fraction": FRACTION,
    "memory": MEM,
    "devices": COUNT,
    "where": WHERE,
    "request": of("a"),
    "most": of("a", "gpu-memory.limit"),
    "memory_most": "gpu-memory.limit",
    "fraction_most": "gpu-fraction.limit",
    "portion_most": "kai.scheduler/container.a.gpu-memory.portion.limit",
    "mode": "kai.scheduler/gpu-compute-sharing-mode",
    "own_mode": of("a", "gpu-compute.mode"),
    "cards": of("a", "gpus.devices"),
    "compute": of("a", "gpu-compute.portion"),
    "asked_compute": of("a", "gpu-compute.request"),
}
_BOTH = {"request": "500Mi", "memory": "500", "memory_most": "1Gi"}
_BARE = {"memory": "1", "memory_most": f"{2**33}"}
_FEW = {"memory": "2000", "memory_most": "1Gi"}
_TWO = {"fraction": "0.1", "portion_most": "0.5", "fraction_most": "0.6"}
_BELOW = {"request": "2Gi", "most": "1Gi"}
_APART: dict[str, Any] = {"fraction": "0.1", "portion_most": "0.5", "where": "b", "limits": ({}, {})}
_SIDE = {"fraction": "0.5", "mode": "sm-sharing"}
_CARD: dict[str, Any] = {"request": "1Gi", "limits": ({"nvidia.com/gpu": 1},)}


def row(name: str, asks: dict[str, DeviceAsk] | None = None, source: str = _VALID, **fields: Any) -> Row:
    annotations = {KEYS[key]: fields.pop(key) for key in list(fields) if key in KEYS}
    annotations |= fields.pop("more", {})
    if "limit" in fields or "portion" in fields:
        fields.setdefault("warned", "nothing keeps this Pod to its limits of GPU memory")
    return Row(name, asks=asks or {}, source=source, annotations=annotations, **fields)


ROWS = (
    row("half a card", {"a": part(50)}, fraction="0.5"),
    row("a tenth", {"a": part(10)}, fraction="0.1"),
    row("99 hundredths", {"a": part(99)}, fraction="0.99"),
    row("without a leading 0", {"a": part(50)}, fraction=".5", source=_READ),
    row("with an exponent", {"a": part(50)}, fraction="5e-1", source=_READ),
    row("a third is rounded up", {"a": part(34)}, fraction="0.333", source=_ROUND),
    row("a thousandth is rounded up", {"a": part(1)}, fraction="0.001", source=_ROUND),
    row("MiB of one card", {"a": mib(1000)}, memory="1000"),
    row("many MiB", {"a": mib(40960)}, memory="40960"),
    row("a fraction of each of two", {"a": part(30, 2)}, fraction="0.3", devices="2"),
    row("a fraction of each of eight", {"a": part(50, 8)}, fraction="0.5", devices="8"),
    row("MiB of each of two", {"a": mib(1000, 2)}, memory="1000", devices="2"),
    row("one device", {"a": part(30)}, fraction="0.3", devices="1", source=_READ),
    row("the first of two containers", {"a": part(50)}, fraction="0.5", limits=({}, {}), source=_WHERE),
    row("the second", {"b": part(50)}, fraction="0.5", where="b", limits=({}, {}), source=_WHERE),
    row("the first by name", {"a": mib(500)}, memory="500", where="a", limits=({}, {}), source=_WHERE),
    row("an init container", {"i": part(50)}, fraction="0.5", where="i", init=({},), source=_WHERE),
    row("an init container is not the first", {"a": part(50)}, fraction="0.5", init=({},), source=_WHERE),
    row("a sidecar", {"s": part(50)}, fraction="0.5", where="s", sidecars=({},), source=_WHERE),
    row("beside CPU", {"a": part(50)}, fraction="0.5", limits=({"cpu": "1"},), source=_READ),
    row(
        "a unit of GiB",
        {"a": mib(2048)},
        memory="2",
        settings={"memoryUnit": "1Gi"},
        source="node label nvidia.com/gpu.memory",
    ),
    row("MPS is no more than a hint", {"a": part(50)}, fraction="0.5"),
    # Wrong
    row("no such container", refused="names no container of the Pod", fraction="0.5", where="x", source=_WHERE),
    row("a whole card", refused="'1' is not a decimal number above 0 and below 1", fraction="1"),
    row("a whole card as decimal", refused="'1.0' is not a decimal number above 0 and below 1", fraction="1.0"),
    row("more than a card", refused="'1.5' is not a decimal number", fraction="1.5"),
    row("1.2", refused="metadata.annotations[gpu-fraction]", fraction="1.2"),
    row("nothing", refused="'0' is not a decimal number above 0", fraction="0"),
    row("negative", refused="'-1' is not a decimal number above 0", fraction="-1"),
    row("no number", refused="'half' is not a decimal number", fraction="half"),
    row("NaN", refused="'NaN' is not a decimal number", fraction="NaN", source="KAI#1798"),
    row("infinite", refused="'Inf' is not a decimal number", fraction="Inf", source="KAI#1798"),
    row("a quantity", refused="'500m' is not a decimal number", fraction="500m"),
    row("an empty text", refused="'' is not a decimal number", fraction=""),
    row("percent", refused="'50%' is not a decimal number", fraction="50%"),
    row("negative memory", refused="'-1' is not a whole number above 0", memory="-1"),
    row("no memory", refused="'0' is not a whole number above 0", memory="0"),
    row("a fraction of memory", refused="'0.5' is not a whole number above 0", memory="0.5"),
    row("a quantity of memory", refused="'4Gi' is not a whole number above 0", memory="4Gi"),
    row("devices alone", refused=f"{COUNT} alone asks for no device; add {FRACTION} or {MEM}", devices="1"),
    row("1.2 devices", refused="'1.2' is not a whole number above 0", fraction="0.2", devices="1.2"),
    row("0 devices", refused="'0' is not a whole number above 0", fraction="0.2", devices="0"),
    row("129 devices", refused="gpu.shared must be from 1 to 128", fraction="0.2", devices="129", source="ours"),
    row("both", refused=f"KAI Scheduler and Run:ai reads one of {FRACTION} and {MEM}", fraction="0.5", memory="1"),
    row(
        "a whole card beside a fraction",
        refused="in 2 dialects at once",
        fraction="0.5",
        limits=({"nvidia.com/gpu": 2},),
    ),
    row("a whole card beside memory", refused="in 2 dialects at once", memory="100", limits=({"nvidia.com/gpu": 1},)),
    row(
        "a whole card in another container",
        refused="in 2 dialects at once",
        memory="100",
        limits=({}, {"nvidia.com/gpu": 1}),
    ),
    row(
        "beside Koordinator",
        refused="metadata.annotations asks for gpu-fraction of KAI",
        fraction="0.5",
        limits=({"koordinator.sh/gpu": 50},),
        source="ours",
    ),
    # Requests and limits of memory, 0.18
    row("a request in bytes", {"a": mib(30720)}, _PARSE, request="30Gi"),
    row("a request in decimal bytes", {"a": share(memory=2_000_000_000, vendor="")}, _PARSE, request="2G"),
    row("a request of each of three", {"a": mib(1024, 3)}, _PARSE, request="1Gi", devices="3"),
    row("a request of the second", {"b": mib(1024)}, _REF, more={of("b"): "1Gi"}, limits=({}, {})),
    row("a request of an init container", {"i": mib(1024)}, _REF, more={of("i"): "1Gi"}, init=({},)),
    row("a request of a container with a point", {}, "ours", refused="container of the Pod", more={of("a.b"): "1Gi"}),
    row("a request and a limit", {"a": mib(4096)}, _PARSE, limit={"a": 8 * GIB}, request="4Gi", most="8Gi"),
    row("a limit as high as the request", {"a": mib(4096)}, _VALIDATE, request="4Gi", most="4096Mi"),
    row("a limit alone is the request", {"a": mib(2048)}, _PARSE, most="2Gi"),
    row("a limit alone of each of two", {"a": mib(2048, 2)}, _PARSE, most="2Gi", devices="2"),
    row("the same request twice", {"a": mib(2000)}, _VALIDATE, request="2000Mi", memory="2000"),
    row("a request beside a fraction", {"a": mib(1024)}, _PARSE, warned=_UNREAD, request="1Gi", fraction="0.25"),
    row("its container by name", {"a": mib(1024)}, _VALIDATE, request="1Gi", where="a"),
    row("a limit of MiB", {"a": mib(4096)}, _SHORT, limit={"a": 8 * GIB}, memory="4096", memory_most="8Gi"),
    row("a limit of MiB as high", {"a": mib(4096)}, _SHORT, memory="4096", memory_most="4Gi"),
    row("a limit of a fraction", {"a": part(50)}, _SHORT, portion={"a": 80_000}, fraction="0.5", fraction_most="0.8"),
    row("a limit of a portion", {"a": part(50)}, _VALIDATE, portion={"a": 80_000}, fraction="0.5", portion_most="0.8"),
    row(
        "a limit of a portion of each of two",
        {"b": part(20, 2)},
        _VALIDATE,
        portion={"b": 99_999},
        fraction="0.2",
        where="b",
        devices="2",
        more={"kai.scheduler/container.b.gpu-memory.portion.limit": ".99999"},
        limits=({}, {}),
    ),
    row("a limit that is rounded away", {"a": part(34)}, _ROUND, fraction="0.333", portion_most="0.335"),
    row("a limit of MiB with a request in bytes", {"a": mib(500)}, _SHORT, limit={"a": GIB}, **_BOTH),
    row("the default mode", {"a": part(50)}, _MODE, fraction="0.5", mode="time-slicing"),
    row("the default mode of a container", {"a": mib(1024)}, _PARSE, request="1Gi", own_mode="time-slicing"),
    row("a mode alone asks for nothing", {}, _PARSE, own_mode="time-slicing"),
    row("the request of no container", {}, _VALIDATE, refused="names no container", more={of("x"): "1Gi"}),
    row("the request of an empty name", {}, _VALIDATE, refused="names no container", more={of(""): "1Gi"}),
    row("the container of no name", {}, "ours", refused="names no container", more={of("CONTAINER"): "1Gi"}),
    row(
        "requests of two containers",
        refused=f"[{of('b')}]: is not about container a, as {of('a')} is; keep one, because KAI",
        source=_VALIDATE,
        more={of("a"): "1Gi", of("b"): "1Gi"},
        limits=({}, {}),
    ),
    row("another container by name", {}, _VALIDATE, refused="write a, or remove it", request="1Gi", where="b"),
    row("no quantity", {}, _PARSE, refused=f"[{of('a')}]: 'bad' is not a Kubernetes quantity", request="bad"),
    row("a quantity that is no number", {}, _PARSE, refused="'NaN' is not a Kubernetes quantity", request="NaN"),
    row("an empty quantity", {}, _PARSE, refused="'' is not a Kubernetes quantity", request=""),
    row("nothing requested", {}, _PARSE, refused="0 is not from 1Mi to 1Pi", request="0"),
    row("less than nothing", {}, _PARSE, refused="'-1Gi' is negative", request="-1Gi"),
    row("less than a MiB", {}, "kai-gpu-fractioning: 1Mi at least", refused="1023Ki is not from 1Mi", request="1023Ki"),
    row("a limit below a MiB", {}, "kai-gpu-fractioning: 1Mi at least", refused="1 is not from 1Mi to", most="1"),
    row("more than any card has", {}, "ours", refused="2Pi is not from 1Mi to 1Pi; write bytes", request="2Pi"),
    row("a limit below its request", {}, _VALIDATE, refused="1Gi is less than what is asked (2Gi)", **_BELOW),
    row("a limit beside a fraction", {}, _VALIDATE, refused="not read beside gpu-fraction", most="1Gi", fraction="0.5"),
    row(
        "a limit beside MiB",
        refused=f"is not read beside gpu-memory; ask by {of('a')} in its place, or state the limit in gpu-memory.limit",
        source=_VALIDATE,
        most="1Gi",
        memory="500",
    ),
    row("another request in MiB", {}, _VALIDATE, refused="is not what gpu-memory states", request="1Gi", memory="2000"),
    row("a limit of MiB alone", {}, _SHORT, refused="can only be written beside gpu-memory; add", memory_most="8Gi"),
    row(
        "a limit of MiB without a unit",
        {},
        _SHORT,
        refused="8589934592 has no unit",
        memory="1",
        memory_most=f"{2**33}",
    ),
    row(
        "a limit below MiB",
        {},
        _SHORT,
        refused="1Gi is less than what is asked (2000Mi)",
        memory="2000",
        memory_most="1Gi",
    ),
    row("a portion alone", {}, _VALIDATE, refused="can only be written beside gpu-fraction", portion_most="0.5"),
    row("a portion beside MiB", {}, _VALIDATE, refused="beside gpu-fraction; add", portion_most="0.5", memory="1"),
    row("a portion as the fraction", {}, _VALIDATE, refused=_ABOVE, fraction="0.5", portion_most="0.5"),
    row("a portion below the fraction", {}, _VALIDATE, refused=_ABOVE, fraction="0.5", portion_most="0.4"),
    row("a portion of all", {}, _VALIDATE, refused="and below 1, with at most 5", fraction="0.5", portion_most="1.0"),
    row(
        "a portion with six digits", {}, _VALIDATE, refused="at most 5 digits", fraction="0.5", portion_most="0.500001"
    ),
    row("no portion", {}, _VALIDATE, refused="'most' is not a decimal number", fraction="0.5", portion_most="most"),
    row(
        "two limits", {}, _SHORT, refused="is not the limit of", fraction="0.1", portion_most="0.5", fraction_most="0.6"
    ),
    row("the portion of another", {}, _VALIDATE, refused=f"is not about container b, as {WHERE} is", **_APART),
    row(
        "the portion of a container that is not the first",
        refused="is not about container a, the first of the Pod; keep one, because KAI",
        source=_VALIDATE,
        fraction="0.1",
        more={"kai.scheduler/container.b.gpu-memory.portion.limit": "0.5"},
        limits=({}, {}),
    ),
    row("cards that run side by side", {}, _MODE, refused="sm-sharing: cards are not shared", **_SIDE),
    row("side by side, by container", {}, _PARSE, refused="or use time-slicing", request="1Gi", own_mode="sm-sharing"),
    row("no mode", {}, _PARSE, refused="[nvidia.com/container.a.gpu-compute.mode]: : cards", own_mode=""),
    row("cards by the author", {}, _DEVICES, refused="is written by KAI's binder", request="1Gi", cards="GPU-0"),
    row("cards alone", {}, _DEVICES, refused="[nvidia.com/container.a.gpus.devices]: is written", cards="GPU-0"),
    row("a part of the compute by the author", {}, _DEVICES, refused="is written by KAI's binder", compute="0.5"),
    row("compute of its own", {}, _PARSE, refused="gpu-fraction states compute and memory alike", asked_compute="0.5"),
    row("a request beside a whole card", {}, _VALIDATE, refused="in 2 dialects at once", **_CARD),
    *(
        row(
            f"an earlier name: {end}",
            refused=f"[nvidia.cdi.k8s.io/a.{end}]: {why}",
            source="gpu-sharing-operator: per-container annotations",
            more={f"nvidia.cdi.k8s.io/a.{end}": "30Gi"},
        )
        for end, why in (
            ("gpu-memory.request", "is an earlier name of KAI's, which is not read; write nvidia.com/container."),
            ("gpu-memory.limit", "is an earlier name of KAI's"),
            ("gpus.devices", "is written by KAI's binder when it binds a Pod; remove it"),
        )
    ),
    row("a few MiB", {"a": mib(24)}, warned="did you mean 24576?", memory="24", source="ours"),
)
