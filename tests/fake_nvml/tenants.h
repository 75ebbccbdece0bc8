/* Processes that say when their kernels run: one file of records per process, see busy_writer.py.
 *
 * The times in the files are absolute nanoseconds of CLOCK_MONOTONIC.
 */
#ifndef FAKE_NVML_TENANTS_H
#define FAKE_NVML_TENANTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What busy_writer.py appends, 32 bytes, native byte order. The first record of a process on a GPU, and one that
 * changes its memory, is of no length. */
struct kernel_record {
    uint32_t gpu;   /* NVML index */
    uint32_t holds; /* 1 while the process has a context on that GPU, 0 when it has given it back */
    int64_t start_ns, end_ns;
    uint64_t memory_bytes;
};

struct tenant {
    unsigned pid;
    const struct kernel_record *records;
    size_t count;
    size_t mapped_bytes;
};

struct tenants {
    struct tenant *list;
    size_t count;
};

/* Opens all files as they are now; none if there is no folder. To be closed again. */
struct tenants tenants_open(const char *folder);
void tenants_close(struct tenants *tenants);

/* Nanoseconds of [t0_ns, t1_ns) in which at least one of these tenants ran a kernel on the GPU. */
int64_t tenants_busy_ns(const struct tenant *list, size_t count, uint32_t gpu, int64_t t0_ns, int64_t t1_ns);

/* Whether the process lives and holds the GPU; then also how much of its memory. */
bool tenant_runs(const struct tenant *tenant, uint32_t gpu, uint64_t *memory_bytes);

#endif
