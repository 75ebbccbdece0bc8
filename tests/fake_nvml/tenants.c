#define _GNU_SOURCE
#include "tenants.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool map_file(const char *path, struct tenant *tenant)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    struct stat status;
    bool mapped = false;
    /* A torn last record, left by a kill, is not a whole one and is not counted. */
    if (fstat(file, &status) == 0 && (size_t)status.st_size >= sizeof(struct kernel_record)) {
        tenant->count = (size_t)status.st_size / sizeof(struct kernel_record);
        tenant->mapped_bytes = tenant->count * sizeof(struct kernel_record);
        void *memory = mmap(NULL, tenant->mapped_bytes, PROT_READ, MAP_SHARED, file, 0);
        mapped = memory != MAP_FAILED;
        tenant->records = memory;
    }
    close(file);
    return mapped;
}

struct tenants tenants_open(const char *folder)
{
    struct tenants tenants = {NULL, 0};
    DIR *directory = opendir(folder);
    if (!directory)
        return tenants;
    for (struct dirent *entry; (entry = readdir(directory));) {
        char path[4096], *rest;
        struct tenant tenant = {.pid = (unsigned)strtoul(entry->d_name, &rest, 10)};
        if (rest == entry->d_name || strcmp(rest, ".busy") != 0)
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) >= sizeof path)
            continue;
        if (!map_file(path, &tenant))
            continue;
        tenants.list = realloc(tenants.list, (tenants.count + 1) * sizeof *tenants.list);
        tenants.list[tenants.count++] = tenant;
    }
    closedir(directory);
    return tenants;
}

void tenants_close(struct tenants *tenants)
{
    for (size_t i = 0; i < tenants->count; i++)
        munmap((void *)tenants->list[i].records, tenants->list[i].mapped_bytes);
    free(tenants->list);
}

struct span {
    int64_t start, end;
};

static int by_start(const void *left, const void *right)
{
    int64_t a = ((const struct span *)left)->start, b = ((const struct span *)right)->start;
    return (a > b) - (a < b);
}

static int64_t length_of_union(struct span *spans, size_t count)
{
    qsort(spans, count, sizeof *spans, by_start);
    int64_t total = 0, reached = INT64_MIN;
    for (size_t i = 0; i < count; i++) {
        int64_t start = spans[i].start > reached ? spans[i].start : reached;
        if (spans[i].end > start) {
            total += spans[i].end - start;
            reached = spans[i].end;
        }
    }
    return total;
}

int64_t tenants_busy_ns(const struct tenant *list, size_t count, uint32_t gpu, int64_t t0_ns, int64_t t1_ns)
{
    struct span *spans = NULL;
    size_t found = 0, room = 0;
    for (size_t i = 0; i < count; i++)
        for (const struct kernel_record *r = list[i].records; r < list[i].records + list[i].count; r++) {
            if (r->gpu != gpu || r->end_ns <= t0_ns || r->start_ns >= t1_ns)
                continue;
            if (found == room) {
                room = room ? 2 * room : 64;
                spans = realloc(spans, room * sizeof *spans);
            }
            spans[found].start = r->start_ns > t0_ns ? r->start_ns : t0_ns;
            spans[found++].end = r->end_ns < t1_ns ? r->end_ns : t1_ns;
        }
    int64_t busy = found ? length_of_union(spans, found) : 0;
    free(spans);
    return busy;
}

/* A zombie counts as gone: a driver frees what a process held when it exits, not when it is reaped. */
static bool lives(unsigned pid)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *after_name = strrchr(text, ')'); /* the name may hold spaces and parentheses of its own */
    return after_name && after_name[1] == ' ' && !strchr("ZXx", after_name[2]);
}

bool tenant_runs(const struct tenant *tenant, uint32_t gpu, uint64_t *memory_bytes)
{
    for (size_t i = tenant->count; i-- > 0;) {
        const struct kernel_record *record = &tenant->records[i];
        if (record->gpu == gpu) {
            *memory_bytes = record->memory_bytes;
            return record->holds && lives(tenant->pid);
        }
    }
    return false;
}
