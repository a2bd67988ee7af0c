"""NVML as plain values; the only importer of pynvml.

Cards differ in what they report. In virtual machines they report less: on one H200 there, the NUMA id and every NVLink
are "not supported". Each value is therefore read by itself, and one that is not supported is None. Any call here may
block forever or crash the process: only `reporter.gpu.worker` makes them.
"""

import ctypes
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pynvml

from allocator.vocabulary.device import pci_address
from reporter.files import boot_id, booted_at, numa_node, pcie_root
from reporter.gpu.facts import (
    CardLoad,
    CgroupMemory,
    DriverFacts,
    Fabric,
    FabricState,
    GpuFacts,
    GpuProcess,
    Link,
    LostCard,
    MemoryLimit,
    MigDevice,
    NodeReading,
    Peer,
    RecoveryAction,
    Wear,
    XidEvent,
)

# The card does not report this value; that is not a fault.
_UNREPORTED: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
    }
)
# A cgroup without a limit; some kernels answer "not supported" for one.
_NO_LIMIT: Final = frozenset(
    {pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND}
)
_UNLIMITED: Final = 2**64 - 1
_NO_LIMITS: Final = {
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the NVIDIA driver is older than R615 and keeps no limits; update it",
    pynvml.NVML_ERROR_NOT_SUPPORTED: (
        "the driver keeps no limit of {cgroup} on {card}: that needs cgroup v2 and a card without MIG, and where the "
        "kernel has the controller dmem, that it is on for this cgroup"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: "the driver takes limits from a process with CAP_SYS_ADMIN alone: give it that",
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (
        "the driver does not take {hard} bytes for {cgroup} on {card}: does the card have that much?"
    ),
    pynvml.NVML_ERROR_OPERATING_SYSTEM: (
        "the driver cannot use {cgroup}: is it there, and the host's /sys/fs/cgroup mounted writable at the same path?"
    ),
    pynvml.NVML_ERROR_NOT_FOUND: "the driver knows no card {card}, or no cgroup {cgroup}: see nvidia-smi -L",
    pynvml.NVML_ERROR_GPU_IS_LOST: "card {card} has fallen off the bus; restart the node",
    pynvml.NVML_ERROR_RESET_REQUIRED: "card {card} must be reset",
}
_NO_SUCH_LINK: Final = _UNREPORTED | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
_NO_SUCH_MIG_DEVICE: Final = _UNREPORTED | {pynvml.NVML_ERROR_NOT_FOUND}
_CARD_GONE: Final = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
_WHY: Final = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "NvmlNotFound",
        "libnvidia-ml.so.1 not found: is the NVIDIA driver installed on this node, and visible in this Pod?",
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "DriverNotLoaded",
        "the NVIDIA kernel driver is not loaded; load it (modprobe nvidia), or restart the node",
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "DriverMismatch",
        "the NVIDIA library and kernel driver are of different versions; restart the node after the driver's upgrade",
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "NvmlNotPermitted",
        "NVML may not open /dev/nvidiactl; give this Pod the node's NVIDIA devices",
    ),
    pynvml.NVML_ERROR_UNINITIALIZED: ("NvmlFailed", "NVML lost its connection to the driver"),
}
_LIBRARY_GONE: Final = frozenset(_WHY) - {pynvml.NVML_ERROR_NO_PERMISSION}
_PEERS: Final = {pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: Peer.GPU, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: Peer.SWITCH}
_FABRIC_STATES: Final = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: FabricState.NOT_STARTED,
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: FabricState.IN_PROGRESS,
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: FabricState.COMPLETED,
}
_ACTIONS: Final = {
    pynvml.NVML_GPU_RECOVERY_ACTION_NONE: RecoveryAction.NONE,
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: RecoveryAction.RESET,
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: RecoveryAction.REBOOT,
}
_LIMIT_CALLS: Final = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
_MAX_MINOR: Final = 2**20 - 1  # Linux
_NODE_WORDS: Final = 16  # of 64 bits each: more NUMA nodes than Linux is built for


class LibraryError(Exception):
    """NVML as a whole cannot be used."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason  # one word, "DriverNotLoaded"
        self.message = message  # what happened and what to do


class CardError(Exception):
    """One question about one card cannot be answered; the message says why."""


class Nvml:
    """NVML, open.

    Raises LibraryError: it cannot be opened.
    """

    def __init__(self, sysfs_root: Path, proc_root: Path) -> None:
        self._sysfs = sysfs_root
        self._proc = proc_root
        self._uuids: dict[int, str] = {}  # by place in NVML's list
        self._cards: dict[int, str] = {}  # by address of NVML's handle
        self._events: Any = None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise _failure(error) from error

    def read_node(self) -> NodeReading:
        """Read everything once.

        Raises LibraryError: NVML as a whole does not answer any more.
        """
        try:
            driver = _read_driver()
            gpus: list[GpuFacts] = []
            lost: list[LostCard] = []
            loads: dict[str, CardLoad] = {}
            for index in range(pynvml.nvmlDeviceGetCount()):
                card, load = self._read_card(index)
                if isinstance(card, GpuFacts):
                    gpus.append(card)
                    loads[card.uuid] = load
                else:
                    lost.append(card)
        except pynvml.NVMLError as error:
            raise _failure(error) from error
        boot, booted = boot_id(self._proc), booted_at(self._proc)
        return NodeReading(driver, tuple(gpus), tuple(lost), boot, booted, loads)

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        """List the processes that use a card or a MIG device, in the order of their ids.

        Raises CardError: there is no such card, or it does not list its processes; LibraryError: NVML as a whole does
        not answer any more.
        """
        found: dict[int, int | None] = {}
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            running = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
            problems: list[str] = []
            for others in (
                pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
                pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
            ):
                running += _value(problems, others, handle) or []
        except pynvml.NVMLError as error:
            if error.value in _LIBRARY_GONE:
                raise _failure(error) from error
            raise CardError(f"{uuid}: its processes cannot be listed: {error}") from error
        if problems:
            raise CardError(f"{uuid}: its processes cannot be listed: {'; '.join(problems)}")
        for process in running:
            known = found.get(process.pid)
            found[process.pid] = process.usedGpuMemory if known is None else max(known, process.usedGpuMemory or 0)
        return tuple(GpuProcess(pid, found[pid]) for pid in sorted(found))

    def memory(self, cgroups: Iterable[tuple[str, str]]) -> tuple[CgroupMemory, ...]:
        """Tell the limit and the use of each cgroup on a card, as pairs of the card's UUID and the cgroup's path.

        Raises LibraryError: NVML as a whole does not answer any more.
        """
        return tuple(_memory_of(card, path) for card, path in cgroups)

    def limit(self, limits: Iterable[MemoryLimit]) -> tuple[str, ...]:
        """Set limits and read them back; returns for each why it is not in force, and the cure, or "".

        Raises LibraryError: NVML as a whole does not answer any more.
        """
        return tuple(_set_limit(limit) for limit in limits)

    def listen(self) -> bool:
        """Subscribe to Xid errors; return whether any card supports that.

        Raises LibraryError: NVML as a whole does not answer any more.
        """
        try:
            events = pynvml.nvmlEventSetCreate()
            for index in range(pynvml.nvmlDeviceGetCount()):
                self._register(index, events)
        except pynvml.NVMLError as error:
            if error.value in _LIBRARY_GONE:
                raise _failure(error) from error
            return False
        self._events = events if self._cards else None
        return bool(self._cards)

    def next_xid(self, milliseconds: int) -> XidEvent | None:
        """Wait for the next Xid error; None if none came in that time.

        Raises CardError: NVML cannot report Xid errors now.
        """
        if self._events is None:
            raise CardError("no card on this node reports Xid errors as events")
        try:
            data = pynvml.nvmlEventSetWait_v2(self._events, milliseconds)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise CardError(f"Xid errors cannot be waited for: {error}") from error
        if data.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        return XidEvent(self._cards.get(_address_of(data.device)), int(data.eventData), time.time())

    def _register(self, index: int, events: Any) -> None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            if not _reports_xids(handle):
                return
            pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        except pynvml.NVMLError as error:
            if error.value in _LIBRARY_GONE:
                raise
            return  # the readings of such a card still show its faults
        except UnicodeDecodeError:
            return
        self._cards[_address_of(handle)] = uuid

    def _read_card(self, index: int) -> tuple[GpuFacts | LostCard, CardLoad]:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._uuids[index] = uuid = pynvml.nvmlDeviceGetUUID(handle)
            return _read_facts(handle, uuid, index, self._sysfs), _read_load(handle)
        except pynvml.NVMLError as error:
            if error.value in _LIBRARY_GONE:
                raise
            reset = error.value == pynvml.NVML_ERROR_RESET_REQUIRED
            return LostCard(index, self._uuids.get(index), reset, str(error)), CardLoad()
        except UnicodeDecodeError as error:
            return LostCard(index, None, reset=False, message=f"its UUID is not text ({error})"), CardLoad()


def _failure(error: pynvml.NVMLError) -> LibraryError:
    return LibraryError(*_WHY.get(error.value, ("NvmlFailed", f"NVML: {error} (code {error.value})")))


def _memory_of(card: str, path: str) -> CgroupMemory:
    limits = pynvml.c_nvmlGetMemoryLimits_v1_t(path.encode())
    handle = None
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(card)
        pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
    except pynvml.NVMLError as error:
        if error.value in _LIBRARY_GONE:
            raise _failure(error) from error
        return CgroupMemory() if handle is not None and error.value in _NO_LIMIT else CgroupMemory(problem=str(error))
    hard = None if limits.hardLimit == _UNLIMITED else limits.hardLimit
    return CgroupMemory(hard, limits.currentUsed, soft=limits.softLimit)


def _set_limit(limit: MemoryLimit) -> str:
    # Some drivers do not tell of a cgroup before it has a limit, so that only the set says what is wrong.
    soft = _memory_of(limit.card, limit.cgroup).soft if limit.soft is None else limit.soft
    hard = _UNLIMITED if limit.hard is None else limit.hard
    wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(limit.cgroup.encode(), min(soft, hard), hard)
    try:
        pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(limit.card), wanted)
    except pynvml.NVMLError as error:
        known = _NO_LIMITS.get(error.value)
        if known is None:
            if error.value in _LIBRARY_GONE:
                raise _failure(error) from error
            return f"the driver does not set a limit of {limit.cgroup} on {limit.card}: {error} (code {error.value})"
        return known.format(card=limit.card, cgroup=limit.cgroup, hard=limit.hard)
    found = _memory_of(limit.card, limit.cgroup)
    if found.problem:
        return f"the limit of {limit.cgroup} on {limit.card} was set, and cannot be read back: {found.problem}"
    # The driver may round a limit down to what it gives memory out in.
    beyond = limit.hard is not None and (found.hard is None or found.hard > limit.hard)
    if beyond or (limit.hard is None and found.hard is not None) or (limit.soft and not found.soft):
        return f"the driver took a limit of {limit.cgroup} on {limit.card}, and reads back another: {found}"
    return ""


def _value(
    problems: list[str], call: Callable[..., Any], *arguments: object, silent: frozenset[int] = _UNREPORTED
) -> Any:
    """Read one value of a card; None if the card does not report it.

    Raises NVMLError: the card, or NVML as a whole, is gone.
    """
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _CARD_GONE or error.value in _LIBRARY_GONE:
            raise
        if error.value not in silent:
            problems.append(f"{call.__name__}: {error}")
    except UnicodeDecodeError as error:
        problems.append(f"{call.__name__}: not text ({error})")
    return None


def _flag(value: int | None) -> bool | None:
    return None if value is None else bool(value)


def _read_driver() -> DriverFacts:
    problems: list[str] = []
    cuda = _value(problems, pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return DriverFacts(
        version=_value(problems, pynvml.nvmlSystemGetDriverVersion),
        cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        memory_limits=all(hasattr(pynvml.nvmlLib, name) for name in _LIMIT_CALLS),
    )


def _read_facts(handle: Any, uuid: str, index: int, sysfs_root: Path) -> GpuFacts:
    problems: list[str] = []
    minor = _value(problems, pynvml.nvmlDeviceGetMinorNumber, handle)
    memory = _value(problems, pynvml.nvmlDeviceGetMemoryInfo, handle)
    detailed = _value(problems, pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    pci = _value(problems, pynvml.nvmlDeviceGetPciInfo_v3, handle)
    bus = None if pci is None else _bus(pci)
    mig = _value(problems, pynvml.nvmlDeviceGetMigMode, handle)
    numa = _read_numa(handle, problems)
    if numa is None and bus is not None:
        numa = numa_node(sysfs_root, bus)
    return GpuFacts(
        uuid=uuid,
        minor=index if minor is None or minor > _MAX_MINOR else minor,
        model=_value(problems, pynvml.nvmlDeviceGetName, handle) or "",
        memory=None if memory is None else memory.total,
        reserved=None if detailed is None else detailed.reserved,
        bus=bus,
        pcie_root=None if bus is None else pcie_root(sysfs_root, bus),
        numa_node=numa,
        module=_value(problems, pynvml.nvmlDeviceGetModuleId, handle),
        compute_capability=_value(problems, pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        mig=None if mig is None else bool(mig[0]),
        mig_devices=tuple(_read_mig_devices(handle, problems)) if mig is not None and mig[0] else (),
        links=tuple(_read_links(handle, problems)),
        fabric=_read_fabric(handle, problems),
        wear=_read_wear(handle, problems),
        recovery=_read_recovery(handle, problems),
        xid_events=bool(_value(problems, _reports_xids, handle)),
        problems=tuple(problems),
    )


def _read_load(handle: Any) -> CardLoad:
    """Read what a card is doing. That it cannot say so is no problem of the card's: only its metrics are missing."""
    problems: list[str] = []
    memory = _value(problems, pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _value(problems, pynvml.nvmlDeviceGetUtilizationRates, handle)
    return CardLoad(None if memory is None else memory.used, None if rates is None else rates.gpu)


def _bus(pci: Any) -> str | None:
    try:
        return pci_address(pci.busId)
    except UnicodeDecodeError:
        return None


def _read_numa(handle: Any, problems: list[str]) -> int | None:
    """Find the one NUMA node that a card is nearest to; None if NVML names several or none, so that sysfs decides.

    nvmlDeviceGetNumaNodeId is something else: the node that the card's own memory forms, if the host counts it as one.
    """
    words = _value(problems, pynvml.nvmlDeviceGetMemoryAffinity, handle, _NODE_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
    nodes = [64 * place + bit for place, word in enumerate(words or ()) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _read_mig_devices(handle: Any, problems: list[str]) -> Iterator[MigDevice]:
    for index in range(_value(problems, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        mig = _value(problems, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index, silent=_NO_SUCH_MIG_DEVICE)
        uuid = None if mig is None else _value(problems, pynvml.nvmlDeviceGetUUID, mig)
        if uuid is None:
            continue
        name = _value(problems, pynvml.nvmlDeviceGetName, mig) or ""  # "NVIDIA H200 MIG 1g.18gb"
        yield MigDevice(uuid=uuid, profile=name.partition(" MIG ")[2])


def _read_links(handle: Any, problems: list[str]) -> Iterator[Link]:
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        up = _value(problems, pynvml.nvmlDeviceGetNvLinkState, handle, link, silent=_NO_SUCH_LINK)
        if up != pynvml.NVML_NVLINK_STATE_ACTIVE:
            continue
        kind = _value(problems, pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        pci = _value(problems, pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        bus = None if pci is None else _bus(pci)
        yield Link(_PEERS.get(kind, Peer.OTHER), bus)


def _read_fabric(handle: Any, problems: list[str]) -> Fabric | None:
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    if _value(problems, pynvml.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info)) is None:
        return None
    state = _FABRIC_STATES.get(info.state)
    return None if state is None else Fabric(state, info.status, bytes(info.clusterUuid).hex(), info.cliqueId)


def _read_wear(handle: Any, problems: list[str]) -> Wear:
    def supported(call: Callable[..., Any], *arguments: object) -> Any:
        return _value(problems, call, handle, *arguments)

    rows = supported(pynvml.nvmlDeviceGetRemappedRows) or (None,) * 4
    repair = supported(pynvml.nvmlDeviceGetRepairStatus)
    pages = [
        supported(pynvml.nvmlDeviceGetRetiredPages, cause) for cause in range(pynvml.NVML_PAGE_RETIREMENT_CAUSE_COUNT)
    ]
    known = [len(listed) for listed in pages if listed is not None]
    sram = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    worn = supported(pynvml.nvmlDeviceGetSramEccErrorStatus, ctypes.byref(sram)) is not None
    count = pynvml.nvmlDeviceGetTotalEccErrors
    return Wear(
        corrected=supported(count, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC),
        uncorrected=supported(count, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        retired_pages=sum(known) if known else None,
        retirement_pending=_flag(supported(pynvml.nvmlDeviceGetRetiredPagesPendingStatus)),
        remapped_rows=None if rows[0] is None else rows[0] + rows[1],
        remap_pending=_flag(rows[2]),
        remap_failed=_flag(rows[3]),
        sram_worn=bool(sram.bThresholdExceeded) if worn else None,
        repair_pending=None if repair is None else any(repair),
    )


def _read_recovery(handle: Any, problems: list[str]) -> RecoveryAction | None:
    values = _value(problems, pynvml.nvmlDeviceGetFieldValues, handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return _ACTIONS.get(values[0].value.uiVal, RecoveryAction.OTHER)


def _reports_xids(handle: Any) -> bool:
    return bool(pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventTypeXidCriticalError)


def _address_of(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
