/* What the GPUs of a scenario do at any time. Times are nanoseconds since the scenario's origin. */
#ifndef FAKE_NVML_DRIVER_H
#define FAKE_NVML_DRIVER_H

#include "scenario.h"

/* A process on a GPU, as NVML lists it. */
struct running_process {
    unsigned pid;
    uint64_t memory_bytes;
};

/* How busy one process kept a GPU. */
struct process_use {
    unsigned pid;
    unsigned busy_percent;
    uint64_t stamp_us; /* of the last driver window in which it ran something */
};

int64_t driver_now(const struct scenario *scenario);

/* Driver windows are numbered from the origin; -1 before the first one is published. */
int64_t driver_newest_window(const struct scenario *scenario);
int64_t driver_oldest_window(const struct scenario *scenario, int64_t newest);
uint64_t driver_window_stamp_us(const struct scenario *scenario, int64_t window);

/* Whether the scenario says anything of this quantity. */
bool gpu_has(const struct gpu *gpu, enum quantity quantity);

/* Means over [t0, t1), and over one driver window. Being busy is 0..100. */
double gpu_mean(const struct scenario *scenario, const struct gpu *gpu, const struct waveform *waveform, int64_t t0,
                int64_t t1);
double gpu_window_mean(const struct scenario *scenario, const struct gpu *gpu, enum quantity quantity,
                       int64_t window);

/* The value now; what follows from being busy is that of the newest driver window. */
double gpu_value(const struct scenario *scenario, const struct gpu *gpu, enum quantity quantity);

/* Memory in use now, without what the driver reserves. */
uint64_t gpu_memory_used(const struct scenario *scenario, const struct gpu *gpu);

/* The processes of one kind that hold the GPU now; to be freed. */
struct running_process *gpu_running(const struct scenario *scenario, const struct gpu *gpu, enum process_kind kind,
                                    size_t *count);

/* The processes that ran something in driver windows that are younger than a stamp; to be freed. */
struct process_use *gpu_process_use(const struct scenario *scenario, const struct gpu *gpu, uint64_t since_us,
                                    size_t *count);

#endif
