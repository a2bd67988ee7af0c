/* A CUDA program: `allocate 0:512 1:64` allocates MiB on cards by their CUDA numbers, and keeps them. It prints a line for
 * each card, `card N: M MiB` as CUDA shows it, and one for each allocation, `N:M -> CODE`. `0:-512` frees the last one of
 * that size again.
 */
#include <stdio.h>
#include <stdlib.h>

typedef unsigned long long u64;
extern int cuInit(unsigned int), cuDeviceGetCount(int *), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(u64 *, size_t), cuMemFree_v2(u64), cuMemGetInfo_v2(size_t *, size_t *);
enum { MAX = 32, BLOCKS = 64 };

int main(int argc, char **argv) {
    void *contexts[MAX];
    struct { int card; long size; u64 block; } had[BLOCKS];
    size_t left, total;
    int count = 0, card, blocks = 0;
    long size;
    if (cuInit(0) || cuDeviceGetCount(&count)) { puts("no card"); return 0; }
    for (card = 0; card < count; card++) {
        if (cuDevicePrimaryCtxRetain(&contexts[card], card) || cuCtxSetCurrent(contexts[card])) return 2;
        if (cuMemGetInfo_v2(&left, &total)) return 3;
        printf("card %d: %zu MiB\n", card, total >> 20);
    }
    for (int i = 1; i < argc && blocks < BLOCKS; i++) {
        int code = 101; /* no such device */
        if (sscanf(argv[i], "%d:%ld", &card, &size) != 2) return 4;
        if (card < count && !(code = cuCtxSetCurrent(contexts[card]))) {
            if (size >= 0) {
                had[blocks].card = card, had[blocks].size = size;
                if (!(code = cuMemAlloc_v2(&had[blocks].block, (size_t)size << 20))) blocks++;
            } else
                for (int j = blocks; j-- > 0;)
                    if (had[j].card == card && had[j].size == -size) { code = cuMemFree_v2(had[j].block); had[j].size = 0; break; }
        }
        printf("%s -> %d\n", argv[i], code);
    }
    return 0;
}
