/* A stand-in for libcuda.so.1 that keeps to the limits which the stand-in for NVML was told (`NVML_STANDIN_LIMITS`).
 *
 * Nothing of it is in the environment: FOLDER, a macro, has `cards` (lines `number bytes`) and `limits` (lines `card soft
 * hard path`). MOUNT, another one, is where the cgroup v2 hierarchy is; with CONTROLLER, that one's of v1 stands for it. A
 * card is there if /dev/nvidiaNUMBER is; without any, all are. A process has the limit of its own cgroup by
 * /proc/self/cgroup, or of the nearest one above that has any.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_CONTEXT = 201, MAX = 32, BLOCKS = 1024, LINE = 4096 };

static const char PLACE[] = ":" CONTROLLER ":/"; /* in a line of /proc/self/cgroup */
static struct { int number; u64 total, used; } cards[MAX];
static int count, current = -1;
static struct { int card; u64 size; } blocks[BLOCKS];

int cuInit(unsigned int flags) {
    FILE *file = fopen(FOLDER "/cards", "r");
    char device[64];
    int number, seen = 0;
    u64 total;
    (void)flags;
    if (!file) return 100; /* no device */
    for (int i = 0; i < MAX; i++) snprintf(device, sizeof device, "/dev/nvidia%d", i), seen |= !access(device, F_OK);
    for (count = 0; count < MAX && fscanf(file, "%d %llu", &number, &total) == 2;) {
        snprintf(device, sizeof device, "/dev/nvidia%d", number);
        if (seen && access(device, F_OK)) continue;
        cards[count].number = number, cards[count].total = total, cards[count].used = 0, count++;
    }
    fclose(file);
    return SUCCESS;
}
int cuDeviceGetCount(int *out) { *out = count; return count ? SUCCESS : NOT_INITIALIZED; }
int cuDeviceGet(int *out, int ordinal) { *out = ordinal; return ordinal >= 0 && ordinal < count ? SUCCESS : INVALID; }

/* The limit of a card, and whether it is that of the process' own cgroup. */
static u64 limit_of(int card, int *own) {
    char line[LINE], path[LINE] = "", full[LINE + 64], *end, *at;
    FILE *file = fopen("/proc/self/cgroup", "r");
    int of, start;
    u64 soft, hard;
    while (file && fgets(line, sizeof line, file))
        if ((at = strchr(line, ':')) && !strncmp(at, PLACE, strlen(PLACE)))
            at[strcspn(at, "\n")] = 0, strcpy(path, at + strlen(PLACE) - 1);
    if (file) fclose(file);
    for (*own = 1; *path; *own = 0) {
        snprintf(full, sizeof full, "%s%s", MOUNT, path);
        for (file = fopen(FOLDER "/limits", "r"); file && fgets(line, sizeof line, file);) {
            line[strcspn(line, "\n")] = 0;
            if (sscanf(line, "%d %llu %llu %n", &of, &soft, &hard, &start) != 3) continue;
            if (of == cards[card].number && hard != ~0ULL && !strcmp(line + start, full)) { fclose(file); return hard; }
        }
        if (file) fclose(file);
        if ((end = strrchr(path, '/'))) *end = 0;
    }
    return ~0ULL;
}
static u64 shown(int card) {
    int own;
    u64 limit = limit_of(card, &own);
    return own && limit < cards[card].total ? limit : cards[card].total;
}
int cuDeviceTotalMem_v2(size_t *out, int card) {
    if (card < 0 || card >= count) return INVALID;
    *out = shown(card);
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **out, int card) {
    if (card < 0 || card >= count) return INVALID;
    *out = &cards[card];
    return SUCCESS;
}
int cuCtxSetCurrent(void *context) {
    for (current = count; current-- > 0;)
        if (&cards[current] == context) return SUCCESS;
    return INVALID;
}
int cuCtxGetDevice(int *out) { *out = current; return current < 0 ? NO_CONTEXT : SUCCESS; }
int cuMemAlloc_v2(u64 *out, size_t size) {
    int own;
    if (current < 0) return NO_CONTEXT;
    u64 limit = limit_of(current, &own), total = cards[current].total, most = limit < total ? limit : total;
    if (size > most || cards[current].used > most - size) return OUT_OF_MEMORY;
    for (int i = 0; i < BLOCKS; i++)
        if (!blocks[i].size) {
            blocks[i].card = current, blocks[i].size = size, cards[current].used += size;
            *out = (u64)i + 1;
            return SUCCESS;
        }
    return OUT_OF_MEMORY;
}
int cuMemFree_v2(u64 block) {
    if (!block || block > BLOCKS || !blocks[block - 1].size) return INVALID;
    cards[blocks[block - 1].card].used -= blocks[block - 1].size;
    blocks[block - 1].size = 0;
    return SUCCESS;
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    if (current < 0) return NO_CONTEXT;
    *total = shown(current), *left = *total > cards[current].used ? *total - cards[current].used : 0;
    return SUCCESS;
}
