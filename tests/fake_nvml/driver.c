#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tenants.h"

static int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Nanoseconds of CLOCK_MONOTONIC, written as text by whoever owns the time; the origin until it is written. */
static int64_t clock_file_ns(const struct scenario *scenario)
{
    long long now_ns = scenario->origin_ns;
    FILE *file = fopen(scenario->clock_file, "re");
    if (file) {
        if (fscanf(file, "%lld", &now_ns) != 1)
            now_ns = scenario->origin_ns;
        fclose(file);
    }
    return now_ns;
}

int64_t driver_now(const struct scenario *scenario)
{
    int64_t now_ns = scenario->clock_file ? clock_file_ns(scenario) : monotonic_ns();
    return now_ns - scenario->origin_ns;
}

int64_t driver_newest_window(const struct scenario *scenario)
{
    int64_t past = driver_now(scenario) - scenario->publish_delay;
    return past < scenario->window ? -1 : past / scenario->window - 1;
}

int64_t driver_oldest_window(const struct scenario *scenario, int64_t newest)
{
    int64_t oldest = newest + 1 - (int64_t)scenario->ring;
    return oldest > 0 ? oldest : 0;
}

uint64_t driver_window_stamp_us(const struct scenario *scenario, int64_t window)
{
    int64_t end_ns = scenario->origin_ns + (window + 1) * scenario->window;
    return (uint64_t)((end_ns + scenario->stamp_offset_ns) / 1000);
}

bool gpu_has(const struct gpu *gpu, enum quantity quantity)
{
    return gpu->quantities[quantity].count > 0;
}

static double tenants_busy_percent(const struct scenario *scenario, const struct gpu *gpu,
                                   const struct tenant *list, size_t count, int64_t t0, int64_t t1)
{
    int64_t busy_ns = tenants_busy_ns(list, count, gpu->index, scenario->origin_ns + t0, scenario->origin_ns + t1);
    return 100.0 * (double)busy_ns / (double)(t1 - t0);
}

static double busy_mean(const struct scenario *scenario, const struct gpu *gpu, int64_t t0, int64_t t1)
{
    double percent = 0.0;
    if (scenario->tenants_folder && gpu->parent < 0) {
        struct tenants tenants = tenants_open(scenario->tenants_folder);
        percent = tenants_busy_percent(scenario, gpu, tenants.list, tenants.count, t0, t1);
        tenants_close(&tenants);
    } else {
        const struct waveform *busy = &gpu->quantities[BUSY_PERCENT];
        for (size_t i = 0; i < busy->count; i++)
            percent += term_mean(&busy->terms[i], t0, t1);
    }
    return percent < 0.0 ? 0.0 : percent > 100.0 ? 100.0 : percent;
}

double gpu_mean(const struct scenario *scenario, const struct gpu *gpu, const struct waveform *waveform, int64_t t0,
                int64_t t1)
{
    if (waveform == &gpu->quantities[BUSY_PERCENT])
        return busy_mean(scenario, gpu, t0, t1);
    double sum = 0.0;
    for (size_t i = 0; i < waveform->count; i++) {
        const struct term *term = &waveform->terms[i];
        sum += term->kind == TERM_OF_BUSY ? term->factor * busy_mean(scenario, gpu, t0, t1) : term_mean(term, t0, t1);
    }
    return sum;
}

double gpu_window_mean(const struct scenario *scenario, const struct gpu *gpu, enum quantity quantity,
                       int64_t window)
{
    int64_t t0 = window * scenario->window;
    return gpu_mean(scenario, gpu, &gpu->quantities[quantity], t0, t0 + scenario->window);
}

double gpu_value(const struct scenario *scenario, const struct gpu *gpu, enum quantity quantity)
{
    const struct waveform *waveform = &gpu->quantities[quantity];
    int64_t now = driver_now(scenario), newest = driver_newest_window(scenario);
    double sum = 0.0;
    for (size_t i = 0; i < waveform->count; i++) {
        const struct term *term = &waveform->terms[i];
        if (term->kind != TERM_OF_BUSY)
            sum += term_mean(term, now, now);
        else if (newest >= 0)
            sum += term->factor * gpu_window_mean(scenario, gpu, BUSY_PERCENT, newest);
    }
    return sum;
}

static void add_running(struct running_process **list, size_t *count, unsigned pid, uint64_t memory_bytes)
{
    *list = realloc(*list, (*count + 1) * sizeof **list);
    (*list)[(*count)++] = (struct running_process){pid, memory_bytes};
}

struct running_process *gpu_running(const struct scenario *scenario, const struct gpu *gpu, enum process_kind kind,
                                    size_t *count)
{
    struct running_process *list = NULL;
    int64_t now = driver_now(scenario);
    *count = 0;
    for (size_t i = 0; i < gpu->process_count; i++) {
        const struct process *process = &gpu->processes[i];
        if (process->kind == kind && process->from <= now && now < process->until)
            add_running(&list, count, process->pid, process->memory_bytes);
    }
    if (!scenario->tenants_folder || kind != COMPUTE || gpu->parent >= 0)
        return list;
    struct tenants tenants = tenants_open(scenario->tenants_folder);
    for (size_t i = 0; i < tenants.count; i++) {
        uint64_t memory_bytes;
        if (tenant_runs(&tenants.list[i], gpu->index, &memory_bytes))
            add_running(&list, count, tenants.list[i].pid + scenario->pid_offset, memory_bytes);
    }
    tenants_close(&tenants);
    return list;
}

uint64_t gpu_memory_used(const struct scenario *scenario, const struct gpu *gpu)
{
    uint64_t used = (uint64_t)gpu_value(scenario, gpu, MEMORY_USED_BYTES);
    for (enum process_kind kind = COMPUTE; kind <= MPS; kind++) {
        size_t count;
        struct running_process *list = gpu_running(scenario, gpu, kind, &count);
        for (size_t i = 0; i < count; i++)
            used += list[i].memory_bytes;
        free(list);
    }
    return used;
}

/* Percent of one driver window in which a process of the scenario kept the GPU busy. */
static double share_of_window(const struct scenario *scenario, const struct gpu *gpu, const struct process *process,
                              int64_t window)
{
    int64_t t0 = window * scenario->window, t1 = t0 + scenario->window;
    int64_t from = process->from > t0 ? process->from : t0, until = process->until < t1 ? process->until : t1;
    if (from >= until)
        return 0.0;
    return process->share * busy_mean(scenario, gpu, from, until) * (double)(until - from) / (double)(t1 - t0);
}

static double tenant_window(const struct scenario *scenario, const struct gpu *gpu, const struct tenant *tenant,
                            int64_t window)
{
    int64_t t0 = window * scenario->window;
    return tenants_busy_percent(scenario, gpu, tenant, 1, t0, t0 + scenario->window);
}

struct process_use *gpu_process_use(const struct scenario *scenario, const struct gpu *gpu, uint64_t since_us,
                                    size_t *count)
{
    struct tenants tenants = {NULL, 0};
    if (scenario->tenants_folder && gpu->parent < 0)
        tenants = tenants_open(scenario->tenants_folder);
    size_t known = gpu->process_count + tenants.count;
    struct process_use *list = calloc(known + 1, sizeof *list);
    int64_t newest = driver_newest_window(scenario), oldest = driver_oldest_window(scenario, newest);
    while (oldest <= newest && driver_window_stamp_us(scenario, oldest) <= since_us)
        oldest++;

    *count = 0;
    for (size_t i = 0; i < known; i++) {
        const struct tenant *tenant = i < gpu->process_count ? NULL : &tenants.list[i - gpu->process_count];
        double sum = 0.0;
        int64_t last = -1;
        for (int64_t window = oldest; window <= newest; window++) {
            double percent = tenant ? tenant_window(scenario, gpu, tenant, window)
                                    : share_of_window(scenario, gpu, &gpu->processes[i], window);
            sum += percent;
            last = percent > 0.0 ? window : last;
        }
        if (last < 0)
            continue;
        struct process_use *use = &list[(*count)++];
        use->pid = tenant ? tenant->pid + scenario->pid_offset : gpu->processes[i].pid;
        use->busy_percent = (unsigned)(sum / (double)(newest - oldest + 1) + 0.5);
        use->stamp_us = driver_window_stamp_us(scenario, last);
    }
    tenants_close(&tenants);
    return list;
}
