/* A stand-in for libnvidia-ml.so.1: plays a recorded node, so that pynvml's ctypes layer runs as it does on a node.
 *
 * NVML_STANDIN_NODE    the node: lines `key = value`, read anew at each call, so that a test may change it.
 * NVML_STANDIN_EVENTS  Xid errors: lines `card xid`, added by a test; card -1 is an unknown one. A process hears those
 *                      that were added since it began to listen.
 * NVML_STANDIN_HUNG    a file that is made as a call begins to hang.
 * NVML_STANDIN_LIMITS  memory limits of cgroups: lines `card soft hard path`, written by nvmlDeviceSetMemoryLimits_v1.
 *
 * A key of card 3 is `gpu.3.NAME`, or `gpu.*.NAME` for all cards. A key that is not there is "not supported".
 * `count` is read by nvmlInit alone: a process lists the cards that were there as it began, as the real library does.
 * `error.FUNCTION = CODE` (of the node, a card, or all cards) makes a function fail; `hang` and `crash` name one that
 * never returns, or ends the process; `print` is printed at each call. `gpu.3.lost = 1` is a card off the bus.
 *
 * Built with BEFORE_R615 it is a library without memory limits.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <signal.h>

typedef unsigned int nvmlReturn_t;
typedef unsigned long long u64;

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
       TIMEOUT = 10, LOST = 15, VERSION = 25, SYSTEM = 17, MAX_CARDS = 32, MAX_MIGS = 8, MAX_LINES = 4096, LINE = 512, MAX_PROCESSES = 64 };

typedef struct { int card, mig; } handle_t; /* mig -1: the card itself */
typedef struct { int unused; } events_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_t;
typedef struct { u64 total, free, used; } memory_t;
typedef struct { unsigned int version; u64 total, reserved, free, used; } memory_v2_t;
typedef struct { char *path; u64 soft, hard; } set_limits_t;
typedef struct { char *path; u64 soft, hard, used; } limits_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { handle_t *device; u64 type, data; unsigned int gpuInstance, computeInstance; } event_t;
typedef struct { unsigned int version; unsigned char cluster[16]; nvmlReturn_t status; unsigned int clique, state, mask; }
    fabric_t;
typedef struct { unsigned int field, scope; long long time, latency; unsigned int type; nvmlReturn_t code; union { u64 wide; unsigned int word; } value; } field_t;
typedef struct { unsigned int version; u64 counts[11]; unsigned int exceeded; } sram_t;
typedef struct { unsigned int version, channel, tpc; } repair_t;
typedef struct { unsigned int pid; u64 memory; unsigned int gpuInstance, computeInstance; } process_t;

static char lines[MAX_LINES][LINE];
static int line_count;
static handle_t cards[MAX_CARDS], migs[MAX_CARDS][MAX_MIGS];
static events_t events;
static int registered[MAX_CARDS];
static long events_read;
static int initialised;
static unsigned int listed; /* how many cards there were as the process began */

static void load(void) {
    const char *path = getenv("NVML_STANDIN_NODE");
    FILE *file = path ? fopen(path, "r") : NULL;
    line_count = 0;
    if (!file) return;
    while (line_count < MAX_LINES && fgets(lines[line_count], LINE, file)) {
        char *line = lines[line_count];
        line[strcspn(line, "\n")] = 0;
        if (line[0] && line[0] != '#') line_count++;
    }
    fclose(file);
}

static const char *find(const char *key) {
    size_t length = strlen(key);
    for (int i = 0; i < line_count; i++)
        if (!strncmp(lines[i], key, length) && !strncmp(lines[i] + length, " = ", 3)) return lines[i] + length + 3;
    return NULL;
}

static const char *of_card(const handle_t *handle, const char *name) {
    char key[LINE];
    const char *value;
    if (handle->mig >= 0) {
        snprintf(key, sizeof key, "gpu.%d.mig.%d.%s", handle->card, handle->mig, name);
        return find(key);
    }
    snprintf(key, sizeof key, "gpu.%d.%s", handle->card, name);
    if ((value = find(key))) return value;
    snprintf(key, sizeof key, "gpu.*.%s", name);
    return find(key);
}

static void hang(void) {
    const char *path = getenv("NVML_STANDIN_HUNG");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) fclose(file);
    for (;;) pause();
}

static nvmlReturn_t enter(const char *function, const handle_t *handle) {
    char key[LINE];
    const char *value;
    load();
    if ((value = find("print"))) { puts(value); fflush(stdout); }
    if ((value = find("hang")) && !strcmp(value, function)) hang();
    if ((value = find("crash")) && !strcmp(value, function)) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
    snprintf(key, sizeof key, "error.%s", function);
    if ((value = find(key))) return (nvmlReturn_t)atoi(value);
    if (!initialised) return UNINITIALIZED;
    if (handle) {
        if ((value = of_card(handle, "lost")) && atoi(value)) return LOST;
        if ((value = of_card(handle, key))) return (nvmlReturn_t)atoi(value);
    }
    return SUCCESS;
}

/* Every exported function enters first, and leaves if it is to fail. */
#define ENTER(handle) do { nvmlReturn_t code_ = enter(__func__, handle); if (code_) return code_; } while (0)
#define VALUE(handle, name) const char *value = of_card(handle, name); if (!value) return UNSUPPORTED

static nvmlReturn_t text(const handle_t *handle, const char *name, char *out, unsigned int size) {
    VALUE(handle, name);
    if (strlen(value) + 1 > size) return TOO_SMALL;
    strcpy(out, value);
    return SUCCESS;
}

static nvmlReturn_t word(const handle_t *handle, const char *name, unsigned int *out) {
    VALUE(handle, name);
    *out = (unsigned int)strtoul(value, NULL, 10);
    return SUCCESS;
}

static int pci(const char *value, pci_t *out) {
    memset(out, 0, sizeof *out);
    if (sscanf(value, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return 0;
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return 1;
}

static nvmlReturn_t system_text(const char *name, char *out, unsigned int size) {
    const char *value = find(name);
    if (!value) return UNSUPPORTED;
    snprintf(out, size, "%s", value);
    return SUCCESS;
}

/* Library and node */

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    initialised = 1;
    for (int i = 0; i < MAX_CARDS; i++) {
        cards[i].card = i, cards[i].mig = -1;
        for (int j = 0; j < MAX_MIGS; j++) migs[i][j].card = i, migs[i][j].mig = j;
    }
    ENTER(NULL);
    const char *value = find("count");
    listed = value ? (unsigned int)atoi(value) : 0;
    return SUCCESS;
}
nvmlReturn_t nvmlShutdown(void) { initialised = 0; return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) {
    static char words[32];
    snprintf(words, sizeof words, "error %u", code);
    return words;
}
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int size) { ENTER(NULL); return system_text("driver", out, size); }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int size) { ENTER(NULL); return system_text("nvml", out, size); }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    ENTER(NULL);
    const char *value = find("cuda");
    if (!value) return UNSUPPORTED;
    *out = atoi(value);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *out) {
    ENTER(NULL);
    *out = listed;
    return SUCCESS;
}

/* Cards */

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, handle_t **out) {
    if (index >= MAX_CARDS || index >= listed) return INVALID;
    ENTER(&cards[index]);
    *out = &cards[index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUUID(handle_t *h, char *out, unsigned int size) { ENTER(h); return text(h, "uuid", out, size); }
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, handle_t **out) {
    const char *value;
    ENTER(NULL);
    for (int i = 0; i < MAX_CARDS; i++) {
        if ((value = of_card(&cards[i], "uuid")) && !strcmp(value, uuid)) {
            *out = &cards[i];
            return enter(__func__, *out);
        }
        for (int j = 0; j < MAX_MIGS; j++)
            if ((value = of_card(&migs[i][j], "uuid")) && !strcmp(value, uuid)) { *out = &migs[i][j]; return SUCCESS; }
    }
    return NOT_FOUND;
}
nvmlReturn_t nvmlDeviceGetName(handle_t *h, char *out, unsigned int size) { ENTER(h); return text(h, "name", out, size); }
nvmlReturn_t nvmlDeviceGetMinorNumber(handle_t *h, unsigned int *out) { ENTER(h); return word(h, "minor", out); }
nvmlReturn_t nvmlDeviceGetModuleId(handle_t *h, unsigned int *out) { ENTER(h); return word(h, "module", out); }
nvmlReturn_t nvmlDeviceGetMemoryInfo(handle_t *h, memory_t *out) {
    ENTER(h);
    VALUE(h, "memory");
    out->total = out->free = strtoull(value, NULL, 10), out->used = 0;
    if ((value = of_card(h, "memory_used"))) out->used = strtoull(value, NULL, 10), out->free -= out->used;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(handle_t *h, memory_v2_t *out) {
    ENTER(h);
    if (out->version != 0x2000028) return VERSION;
    const char *reserved = of_card(h, "reserved");
    VALUE(h, "memory");
    if (!reserved) return UNSUPPORTED;
    out->total = out->free = strtoull(value, NULL, 10), out->used = 0;
    out->reserved = strtoull(reserved, NULL, 10), out->free -= out->reserved;
    if ((value = of_card(h, "memory_used"))) out->used = strtoull(value, NULL, 10), out->free -= out->used;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetUtilizationRates(handle_t *h, utilization_t *out) {
    ENTER(h);
    VALUE(h, "busy");
    out->gpu = (unsigned int)strtoul(value, NULL, 10), out->memory = 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetPciInfo_v3(handle_t *h, pci_t *out) {
    ENTER(h);
    VALUE(h, "bus");
    return pci(value, out) ? SUCCESS : INVALID;
}
nvmlReturn_t nvmlDeviceGetMemoryAffinity(handle_t *h, unsigned int size, u64 *out, unsigned int scope) {
    (void)scope;
    ENTER(h);
    VALUE(h, "memory_affinity");
    memset(out, 0, size * sizeof *out);
    for (char *rest = (char *)value; size-- && *rest; out++)
        *out = strtoull(rest, &rest, 16);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(handle_t *h, int *major, int *minor) {
    ENTER(h);
    VALUE(h, "capability");
    return sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : INVALID;
}

/* MIG */

nvmlReturn_t nvmlDeviceGetMigMode(handle_t *h, unsigned int *current, unsigned int *pending) {
    ENTER(h);
    nvmlReturn_t code = word(h, "mig_mode", current);
    *pending = *current;
    return code;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(handle_t *h, unsigned int *out) { ENTER(h); *out = MAX_MIGS - 1; return SUCCESS; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(handle_t *h, unsigned int index, handle_t **out) {
    ENTER(h);
    if (index >= MAX_MIGS || !of_card(&migs[h->card][index], "uuid")) return NOT_FOUND;
    *out = &migs[h->card][index];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceId(handle_t *h, unsigned int *out) { ENTER(h); return word(h, "gpu_instance", out); }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(handle_t *h, unsigned int *out) { ENTER(h); return word(h, "compute_instance", out); }

/* What NVIDIA's container toolkit asks as well. A GPU instance and its compute instance are the handle of the MIG device
 * that they are for: each has one. */

typedef struct { unsigned int counts[8]; u64 mib; } attributes_t;
typedef struct { handle_t *device; unsigned int id, profile, start, size; } gpu_instance_t;
typedef struct { handle_t *device, *instance; unsigned int id, profile, start, size; } compute_instance_t;
typedef struct { unsigned int id, numbers[9]; u64 mib; } gpu_profile_t;
typedef struct { unsigned int id, numbers[8]; } compute_profile_t;

nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlDeviceGetIndex(handle_t *h, unsigned int *out) {
    ENTER(h);
    *out = (unsigned int)(h->mig >= 0 ? h->mig : h->card);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceIsMigDeviceHandle(handle_t *h, unsigned int *out) { ENTER(h); *out = h->mig >= 0; return SUCCESS; }
nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle_t *h, handle_t **out) {
    ENTER(h);
    *out = &cards[h->card];
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetAttributes_v2(handle_t *h, attributes_t *out) {
    ENTER(h);
    VALUE(h, "memory");
    memset(out, 0, sizeof *out);
    out->mib = strtoull(value, NULL, 10) >> 20;
    return SUCCESS;
}
/* The library's number of a profile; 3g.40gb has 3 slices. */
static unsigned int profile_of(const handle_t *h) {
    static const unsigned int profiles[] = {0, 0, 1, 2, 3, 0, 6, 4, 5};
    const char *name = of_card(h, "name"), *mig = name ? strstr(name, " MIG ") : NULL;
    unsigned int slices = mig ? (unsigned int)atoi(mig + 5) : 0;
    return slices < sizeof profiles / sizeof *profiles ? profiles[slices] : 0;
}
nvmlReturn_t nvmlDeviceGetGpuInstanceById(handle_t *h, unsigned int id, handle_t **out) {
    ENTER(h);
    for (int i = 0; i < MAX_MIGS; i++) {
        const char *value = of_card(&migs[h->card][i], "gpu_instance");
        if (!value || (unsigned int)atoi(value) != id) continue;
        *out = &migs[h->card][i];
        return SUCCESS;
    }
    return NOT_FOUND;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(handle_t *h, unsigned int id, handle_t **out) {
    const char *value = of_card(h, "compute_instance");
    ENTER(h);
    *out = h;
    return value && (unsigned int)atoi(value) == id ? SUCCESS : NOT_FOUND;
}
nvmlReturn_t nvmlGpuInstanceGetInfo(handle_t *h, gpu_instance_t *out) {
    ENTER(h);
    *out = (gpu_instance_t){.device = &cards[h->card], .profile = profile_of(h)};
    return word(h, "gpu_instance", &out->id);
}
nvmlReturn_t nvmlComputeInstanceGetInfo_v2(handle_t *h, compute_instance_t *out) {
    ENTER(h);
    *out = (compute_instance_t){.device = &cards[h->card], .instance = h, .profile = profile_of(h)};
    return word(h, "compute_instance", &out->id);
}
nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(handle_t *h, unsigned int profile, gpu_profile_t *out) {
    ENTER(h);
    *out = (gpu_profile_t){.id = profile};
    return SUCCESS;
}
nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    handle_t *h, unsigned int profile, unsigned int engine, compute_profile_t *out) {
    (void)engine;
    ENTER(h);
    *out = (compute_profile_t){.id = profile};
    return SUCCESS;
}

/* Errors in memory */

nvmlReturn_t nvmlDeviceGetEccMode(handle_t *h, unsigned int *current, unsigned int *pending) {
    ENTER(h);
    nvmlReturn_t code = word(h, "ecc", current);
    *pending = *current;
    return code;
}
nvmlReturn_t nvmlDeviceGetTotalEccErrors(handle_t *h, unsigned int kind, unsigned int counter, u64 *out) {
    (void)counter;
    ENTER(h);
    VALUE(h, kind ? "uncorrected" : "corrected");
    *out = strtoull(value, NULL, 10);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPages(handle_t *h, unsigned int cause, unsigned int *count, u64 *out) {
    ENTER(h);
    VALUE(h, cause ? "retired_double" : "retired_single");
    unsigned int pages = (unsigned int)atoi(value), room = *count;
    *count = pages;
    if (!out) return pages ? TOO_SMALL : SUCCESS;
    if (room < pages) return TOO_SMALL;
    for (unsigned int i = 0; i < pages; i++) out[i] = 4096ULL * i;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(handle_t *h, unsigned int *out) { ENTER(h); return word(h, "retired_pending", out); }
nvmlReturn_t nvmlDeviceGetRemappedRows(handle_t *h, unsigned int *a, unsigned int *b, unsigned int *c, unsigned int *d) {
    ENTER(h);
    VALUE(h, "remapped"); /* corrected uncorrected pending failed */
    return sscanf(value, "%u %u %u %u", a, b, c, d) == 4 ? SUCCESS : INVALID;
}
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(handle_t *h, sram_t *out) {
    ENTER(h);
    if (out->version != 0x1000068) return VERSION;
    return word(h, "sram_exceeded", &out->exceeded);
}
nvmlReturn_t nvmlDeviceGetRepairStatus(handle_t *h, repair_t *out) {
    ENTER(h);
    out->tpc = 0;
    return word(h, "repair_pending", &out->channel);
}
nvmlReturn_t nvmlDeviceGetFieldValues(handle_t *h, int count, field_t *out) {
    ENTER(h);
    for (int i = 0; i < count; i++)
        out[i].code = out[i].field == 230 ? word(h, "recovery_action", &out[i].value.word) : UNSUPPORTED;
    return SUCCESS;
}

/* NVLink: `gpu.0.link.5 = gpu 00000000:0A:00.0`, `switch 0000:C1:00.0`, `down`; or `gpu.*.links.switch = 12` */

static const char *link_of(handle_t *h, unsigned int link) {
    char key[32];
    const char *value;
    snprintf(key, sizeof key, "link.%u", link);
    if ((value = of_card(h, key))) return value;
    value = of_card(h, "links.switch");
    return value && link < (unsigned int)atoi(value) ? "switch" : NULL;
}
nvmlReturn_t nvmlDeviceGetNvLinkState(handle_t *h, unsigned int link, unsigned int *out) {
    ENTER(h);
    const char *value = link_of(h, link);
    if (!value) return link_of(h, 0) ? INVALID : UNSUPPORTED;
    *out = strcmp(value, "down") != 0;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(handle_t *h, unsigned int link, unsigned int *out) {
    ENTER(h);
    const char *value = link_of(h, link);
    if (!value) return UNSUPPORTED;
    *out = !strncmp(value, "gpu", 3) ? 0 : !strncmp(value, "switch", 6) ? 2 : 0xFF;
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(handle_t *h, unsigned int link, pci_t *out) {
    ENTER(h);
    const char *value = link_of(h, link), *blank = value ? strchr(value, ' ') : NULL;
    return blank && pci(blank + 1, out) ? SUCCESS : UNSUPPORTED;
}
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(handle_t *h, fabric_t *out) {
    ENTER(h);
    if (out->version != 0x2000024) return VERSION;
    VALUE(h, "fabric"); /* state status clique */
    memset(out->cluster, 0xab, sizeof out->cluster);
    return sscanf(value, "%u %u %u", &out->state, &out->status, &out->clique) == 3 ? SUCCESS : INVALID;
}

/* Events */

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(handle_t *h, u64 *out) {
    ENTER(h);
    VALUE(h, "event_types");
    *out = strtoull(value, NULL, 10);
    return SUCCESS;
}
nvmlReturn_t nvmlEventSetCreate(events_t **out) {
    ENTER(NULL);
    const char *path = getenv("NVML_STANDIN_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (file) { /* what was before, nobody is told of */
        fseek(file, 0, SEEK_END);
        events_read = ftell(file);
        fclose(file);
    }
    *out = &events;
    return SUCCESS;
}
nvmlReturn_t nvmlEventSetFree(events_t *set) { (void)set; return SUCCESS; }
nvmlReturn_t nvmlDeviceRegisterEvents(handle_t *h, u64 types, events_t *set) {
    (void)types, (void)set;
    ENTER(h);
    registered[h->card] = 1;
    return SUCCESS;
}
static int next_event(event_t *out) {
    const char *path = getenv("NVML_STANDIN_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE];
    int card, found = 0;
    unsigned int xid;
    if (!file) return 0;
    fseek(file, events_read, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        events_read = ftell(file);
        if (sscanf(line, "%d %u", &card, &xid) != 2 || (card >= 0 && !registered[card])) continue;
        memset(out, 0, sizeof *out);
        out->device = card >= 0 ? &cards[card] : NULL;
        out->type = 8, out->data = xid;
        found = 1;
    }
    fclose(file);
    return found;
}
nvmlReturn_t nvmlEventSetWait_v2(events_t *set, event_t *out, unsigned int milliseconds) {
    (void)set;
    ENTER(NULL);
    for (unsigned int waited = 0;; waited += 5) {
        if (next_event(out)) return SUCCESS;
        if (waited >= milliseconds) return TIMEOUT;
        usleep(5000);
    }
}

/* Processes: `gpu.0.processes = 4711:1048576 4712:-` (pid:bytes, - for not told) */

static nvmlReturn_t processes(handle_t *h, const char *name, unsigned int *count, process_t *out) {
    process_t found[MAX_PROCESSES];
    unsigned int n = 0, room = *count;
    const char *value = of_card(h, name);
    for (; value && *value && n < MAX_PROCESSES; n++) {
        char amount[32];
        if (sscanf(value, "%u:%31s", &found[n].pid, amount) != 2) break;
        found[n].memory = amount[0] == '-' ? ~0ULL : strtoull(amount, NULL, 10);
        found[n].gpuInstance = found[n].computeInstance = ~0U;
        value = strchr(value, ' ');
        value = value ? value + 1 : "";
    }
    *count = n;
    if (n > room) return TOO_SMALL;
    if (out) memcpy(out, found, n * sizeof *out);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(handle_t *h, unsigned int *n, process_t *out) { ENTER(h); return processes(h, "processes", n, out); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t *h, unsigned int *n, process_t *out) { ENTER(h); return processes(h, "graphics", n, out); }
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(handle_t *h, unsigned int *n, process_t *out) { ENTER(h); return processes(h, "mps", n, out); }

/* Memory limits of cgroups (R615). `cgroups = no` is a machine that keeps none, `root = no` a caller who may set none,
 * `gpu.0.used./sys/fs/cgroup/a = 1048576` what a cgroup's processes have of a card. With `dmem = yes` the kernel counts,
 * a cgroup that exists is told of without a limit too, and soft limits are added to those above. With `forget = yes`
 * what is set is not kept. */

#ifndef BEFORE_R615
static const u64 UNLIMITED = ~0ULL;

static nvmlReturn_t limits_of(const handle_t *h, const char *path) {
    const char *value = find("cgroups");
    if ((value && !strcmp(value, "no")) || h->mig >= 0 || !getenv("NVML_STANDIN_LIMITS")) return UNSUPPORTED;
    if ((value = of_card(h, "mig_mode")) && atoi(value)) return UNSUPPORTED;
    return path ? SUCCESS : INVALID;
}
static int by_kernel(void) {
    const char *value = find("dmem");
    return value && !strcmp(value, "yes");
}
/* The limit of a cgroup: whether it has one; without one, 0 and UNLIMITED. */
static int kept(int card, const char *path, u64 *soft, u64 *hard) {
    char line[LINE];
    int of, start, found = 0;
    u64 s, h;
    *soft = 0, *hard = UNLIMITED;
    FILE *from = fopen(getenv("NVML_STANDIN_LIMITS"), "r");
    while (from && fgets(line, sizeof line, from)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%d %llu %llu %n", &of, &s, &h, &start) != 3 || of != card || strcmp(line + start, path)) continue;
        *soft = s, *hard = h, found = 1;
    }
    if (from) fclose(from);
    return found;
}
static int keep(int card, const char *path, u64 soft, u64 hard) {
    const char *file = getenv("NVML_STANDIN_LIMITS");
    char line[LINE], fresh[LINE];
    int of, start;
    u64 s, h;
    snprintf(fresh, sizeof fresh, "%s.new", file);
    FILE *from = fopen(file, "r"), *to = fopen(fresh, "w");
    while (to && from && fgets(line, sizeof line, from)) {
        line[strcspn(line, "\n")] = 0;
        if (sscanf(line, "%d %llu %llu %n", &of, &s, &h, &start) == 3 && (of != card || strcmp(line + start, path)))
            fprintf(to, "%s\n", line);
    }
    if (from) fclose(from);
    if (!to) return 0;
    if (soft || hard != UNLIMITED) fprintf(to, "%d %llu %llu %s\n", card, soft, hard, path);
    return !fclose(to) && !rename(fresh, file);
}
/* Those above count its soft limit as well, up to `kubepods`. */
static void add_above(int card, const char *path, u64 more) {
    char above[LINE], *slash;
    u64 soft, hard;
    snprintf(above, sizeof above, "%s", path);
    while ((slash = strrchr(above, '/')) && (*slash = 0, strstr(above, "kubepods"))) {
        kept(card, above, &soft, &hard);
        keep(card, above, soft + more, hard);
    }
}
nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(handle_t *h, set_limits_t *wanted) {
    ENTER(h);
    nvmlReturn_t code = limits_of(h, wanted->path);
    const char *value;
    u64 soft, hard;
    if (code) return code;
    if ((value = find("root")) && !strcmp(value, "no")) return PERMISSION;
    if (access(wanted->path, F_OK)) return SYSTEM;
    value = of_card(h, "memory");
    if (wanted->soft > wanted->hard) return INVALID;
    if (value && wanted->hard != UNLIMITED && wanted->hard > strtoull(value, NULL, 10)) return INVALID;
    if ((value = find("forget")) && !strcmp(value, "yes")) return SUCCESS;
    kept(h->card, wanted->path, &soft, &hard);
    if (!keep(h->card, wanted->path, wanted->soft, wanted->hard)) return SYSTEM;
    if (by_kernel()) add_above(h->card, wanted->path, wanted->soft - soft);
    return SUCCESS;
}
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(handle_t *h, limits_t *out) {
    ENTER(h);
    nvmlReturn_t code = limits_of(h, out->path);
    const char *value;
    char key[LINE];
    if (code) return code;
    code = kept(h->card, out->path, &out->soft, &out->hard) || (by_kernel() && !access(out->path, F_OK)) ? SUCCESS : NOT_FOUND;
    snprintf(key, sizeof key, "used.%s", out->path);
    out->used = (value = of_card(h, key)) ? strtoull(value, NULL, 10) : 0;
    return code;
}
#endif
