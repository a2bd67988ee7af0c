/* A library for LD_PRELOAD or ld.so.preload, in the place of HAMi-core: it reads that one's variables, and refuses more
 * memory than they allow. It is our own, and does what is known of HAMi-core's behaviour:
 *
 * CUDA_DEVICE_MEMORY_LIMIT_N, else CUDA_DEVICE_MEMORY_LIMIT: bytes, or with k, m or g; 0 or none is no limit.
 * CUDA_DEVICE_MEMORY_SHARED_CACHE: a file that keeps the limits which it first has. Without its folder a program exits.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long u64;
enum { OUT_OF_MEMORY = 2, MAX = 32, BLOCKS = 1024 };
static u64 used[MAX];
static struct { u64 block, size; int card; } blocks[BLOCKS];

static u64 stated(int card) {
    char name[64];
    snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%d", card);
    const char *value = getenv(name);
    if (!value || !*value) value = getenv("CUDA_DEVICE_MEMORY_LIMIT");
    if (!value || !*value) return 0;
    char *unit;
    u64 amount = strtoull(value, &unit, 10);
    switch (tolower((unsigned char)*unit)) {
    case 'k': return amount << 10;
    case 'm': return amount << 20;
    case 'g': return amount << 30;
    default: return amount;
    }
}
static u64 limit(int card) {
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    u64 limits[MAX] = {0};
    if (!path || !*path) path = "/tmp/cudevshr.cache";
    FILE *file = fopen(path, "r");
    if (!file || fread(limits, sizeof limits, 1, file) != 1) {
        if (file) fclose(file);
        for (int i = 0; i < MAX; i++) limits[i] = stated(i);
        if (!(file = fopen(path, "w"))) { fprintf(stderr, "limiter: %s cannot be written\n", path); exit(1); }
        fwrite(limits, sizeof limits, 1, file);
    }
    fclose(file);
    return limits[card] ? limits[card] : ~0ULL;
}
static int card_now(void) {
    int (*get)(int *) = (int (*)(int *))dlsym(RTLD_NEXT, "cuCtxGetDevice"), card = 0;
    if (get) get(&card);
    return card < 0 ? 0 : card;
}
int cuMemAlloc_v2(u64 *out, size_t size) {
    int (*real)(u64 *, size_t) = (int (*)(u64 *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    int card = card_now(), code;
    u64 most = limit(card);
    if (size > most || used[card] > most - size) return OUT_OF_MEMORY;
    if ((code = real(out, size))) return code;
    for (int i = 0; i < BLOCKS; i++)
        if (!blocks[i].size) { blocks[i].block = *out, blocks[i].size = size, blocks[i].card = card, used[card] += size; break; }
    return 0;
}
int cuMemFree_v2(u64 block) {
    int (*real)(u64) = (int (*)(u64))dlsym(RTLD_NEXT, "cuMemFree_v2");
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].size && blocks[i].block == block) used[blocks[i].card] -= blocks[i].size, blocks[i].size = 0;
    return real(block);
}
int cuMemGetInfo_v2(size_t *left, size_t *total) {
    int (*real)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(RTLD_NEXT, "cuMemGetInfo_v2");
    int code = real(left, total), card = card_now();
    u64 most = limit(card);
    if (!code && most < *total) *total = most, *left = most > used[card] ? most - used[card] : 0;
    return code;
}
