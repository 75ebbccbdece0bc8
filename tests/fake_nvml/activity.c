/* Exported functions: how busy the devices are, with what, and whose processes it is. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "call.h"

#define GARBAGE 2147483632u    /* what real drivers have been seen to give for a percentage */
#define GARBAGE_EVERY 7        /* every so many driver windows, if the scenario asks for garbage */
#define GPM_SHORTEST 100000000 /* nanoseconds between two GPM samples that give numbers */

/* With MIG on, a GPU and its instances report no utilization but through GPM. */
static bool is_mig(nvmlDevice_t device)
{
    return device->mig_mode || device->parent >= 0;
}

/* ---- Utilization ---- */

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER_DEVICE(device);
    if (is_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlUtilization_t rates = {0, 0};
    int64_t newest = driver_newest_window(&scenario);
    if (newest >= 0) {
        rates.gpu = rounded(gpu_window_mean(&scenario, device, BUSY_PERCENT, newest));
        rates.memory = rounded(gpu_window_mean(&scenario, device, MEMORY_BUSY_PERCENT, newest));
    }
    GIVE(out, rates);
}

static nvmlReturn_t sampled_quantity(unsigned type, enum quantity *quantity)
{
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES:
        *quantity = POWER_MW;
        return NVML_SUCCESS;
    case NVML_GPU_UTILIZATION_SAMPLES:
        *quantity = BUSY_PERCENT;
        return NVML_SUCCESS;
    case NVML_MEMORY_UTILIZATION_SAMPLES:
        *quantity = MEMORY_BUSY_PERCENT;
        return NVML_SUCCESS;
    case NVML_PROCESSOR_CLK_SAMPLES:
        *quantity = SM_CLOCK_MHZ;
        return NVML_SUCCESS;
    case NVML_MEMORY_CLK_SAMPLES:
        *quantity = MEMORY_CLOCK_MHZ;
        return NVML_SUCCESS;
    default:
        return NVML_ERROR_NOT_SUPPORTED;
    }
}

/* With `samples` NULL it answers how many the ring holds, whatever is new: so do drivers. */
EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long last_seen_us,
                                         unsigned *value_type, unsigned *count, nvmlSample_t *samples)
{
    ENTER_DEVICE(device);
    enum quantity quantity;
    RETURN_UNLESS_GOOD(sampled_quantity(type, &quantity));
    bool followed = quantity == BUSY_PERCENT && scenario.tenants_folder;
    if (is_mig(device) || (!gpu_has(device, quantity) && !followed))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!value_type || !count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!samples)
        GIVE(count, scenario.ring);

    int64_t newest = driver_newest_window(&scenario);
    unsigned found = 0;
    for (int64_t window = driver_oldest_window(&scenario, newest); window <= newest && found < *count; window++) {
        if (driver_window_stamp_us(&scenario, window) <= last_seen_us)
            continue;
        if (scenario.dry_when_idle && gpu_window_mean(&scenario, device, BUSY_PERCENT, window) == 0.0)
            continue;
        bool garbage = scenario.garbage && window % GARBAGE_EVERY == GARBAGE_EVERY - 1;
        samples[found].timeStamp = driver_window_stamp_us(&scenario, window);
        samples[found++].sampleValue.uiVal =
            garbage ? GARBAGE : rounded(gpu_window_mean(&scenario, device, quantity, window));
    }
    *count = found;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t give_coder(nvmlDevice_t device, enum quantity quantity, unsigned *percent, unsigned *period_us)
{
    if (is_mig(device))
        return NVML_ERROR_NOT_SUPPORTED;
    RETURN_UNLESS_GOOD(give_quantity(device, quantity, percent));
    GIVE(period_us, (unsigned)(scenario.window / 1000));
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    ENTER_DEVICE(device);
    return give_coder(device, ENCODER_PERCENT, percent, period_us);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *percent, unsigned *period_us)
{
    ENTER_DEVICE(device);
    return give_coder(device, DECODER_PERCENT, percent, period_us);
}

/* ---- Processes ---- */

/* The two-step protocol that all lists of running processes have; `set` fills one row. */
#define RUNNING(function, row_type, process_kind, ...) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *count, row_type *rows) \
    { \
        ENTER_DEVICE(device); \
        if (!count) \
            return NVML_ERROR_INVALID_ARGUMENT; \
        size_t found; \
        struct running_process *list = gpu_running(&scenario, device, process_kind, &found); \
        bool fits = rows ? found <= *count : found == 0; \
        for (size_t i = 0; fits && i < found; i++) \
            rows[i] = (row_type){list[i].pid, list[i].memory_bytes __VA_ARGS__}; \
        free(list); \
        *count = (unsigned)found; \
        return fits ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE; \
    }

static unsigned instance_id(nvmlDevice_t device, unsigned id)
{
    return device->parent < 0 ? NOT_AVAILABLE : id;
}

#define INSTANCES , instance_id(device, device->gpu_instance), instance_id(device, device->compute_instance)

RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, COMPUTE)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, COMPUTE, INSTANCES)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, COMPUTE, INSTANCES)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, GRAPHICS)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, GRAPHICS, INSTANCES)
RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, GRAPHICS, INSTANCES)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, MPS)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, MPS, INSTANCES)
RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, MPS, INSTANCES)

/* What ran since a stamp, with the rows that drivers have been seen to make up if the scenario asks for them. */
static struct process_use *process_rows(nvmlDevice_t device, unsigned long long last_seen_us, size_t *count)
{
    struct process_use *list = gpu_process_use(&scenario, device, last_seen_us, count);
    if (scenario.garbage) {
        unsigned pid = *count ? list[0].pid : 0;
        uint64_t stamp_us = *count ? list[0].stamp_us : 0;
        list = realloc(list, (*count + 2) * sizeof *list);
        list[(*count)++] = (struct process_use){0, GARBAGE, 0};
        list[(*count)++] = (struct process_use){pid, GARBAGE, stamp_us};
    }
    return list;
}

/* Both calls for utilization by process are asked twice. The first time drivers answer the size of their ring,
 * whatever is new; some answer "success" when there is nothing, which pynvml then raises as an error. */
static nvmlReturn_t size_of_process_rows(size_t found, unsigned *count)
{
    *count = found || !scenario.empty_size_is_success ? scenario.ring : 0;
    return *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define PROCESS_USE(device, since_us, count, rows) \
    do { \
        if (is_mig(device)) \
            return NVML_ERROR_NOT_SUPPORTED; \
        size_t found; \
        struct process_use *list = process_rows(device, since_us, &found); \
        nvmlReturn_t answer = NVML_SUCCESS; \
        if (!(rows)) \
            answer = size_of_process_rows(found, &(count)); \
        else if (found == 0) \
            answer = NVML_ERROR_NOT_FOUND; \
        else if (found > (count)) \
            answer = NVML_ERROR_INSUFFICIENT_SIZE; \
        for (size_t i = 0; (rows) && answer == NVML_SUCCESS && i < found; i++) { \
            memset(&(rows)[i], 0, sizeof *(rows)); \
            (rows)[i].pid = list[i].pid; \
            (rows)[i].timeStamp = list[i].stamp_us; \
            (rows)[i].smUtil = list[i].busy_percent; \
        } \
        if (rows) \
            (count) = (unsigned)found; \
        free(list); \
        return answer; \
    } while (0)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *rows,
                                                    unsigned *count, unsigned long long last_seen_us)
{
    ENTER_DEVICE(device);
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    PROCESS_USE(device, last_seen_us, *count, rows);
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          nvmlProcessesUtilizationInfo_v1_t *info)
{
    ENTER_DEVICE(device);
    if (!info)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (info->version != STRUCT_VERSION(nvmlProcessesUtilizationInfo_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    PROCESS_USE(device, info->lastSeenTimeStamp, info->processSamplesCount, info->procUtilArray);
}

/* ---- GPM: activity of the units of a GPU, exact between two samples ---- */

EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
    ENTER_DEVICE(device);
    if (!support)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (support->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = device->gpm_supported;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *out)
{
    ENTER(NULL);
    GIVE(out, calloc(1, sizeof **out));
}

EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
    ENTER(NULL);
    free(sample);
    return NVML_SUCCESS;
}

static nvmlReturn_t take_gpm_sample(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    if (!device || !sample)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (!device->gpm_supported)
        return NVML_ERROR_NOT_SUPPORTED;
    sample->device = device;
    sample->t = driver_now(&scenario);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(device);
    return take_gpm_sample(device, sample);
}

EXPORT nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned gpu_instance, nvmlGpmSample_t sample)
{
    ENTER_DEVICE(device);
    nvmlDevice_t instance = NULL;
    for (size_t i = 0; i < scenario.gpu_count; i++)
        if (scenario.gpus[i].parent == device - scenario.gpus && scenario.gpus[i].gpu_instance == gpu_instance)
            instance = &scenario.gpus[i];
    return take_gpm_sample(instance, sample);
}

static const struct {
    unsigned id;
    const char *short_name, *long_name;
} gpm_names[] = {
    {1, "GRAPHICS_UTIL", "Percentage of time any compute or graphics app was active"},
    {2, "SM_UTIL", "Percentage of SMs that were busy"},
    {3, "SM_OCCUPANCY", "Percentage of warps that were active vs theoretical maximum"},
    {5, "ANY_TENSOR_UTIL", "Percentage of time SMs were doing any tensor operation"},
    {10, "DRAM_BW_UTIL", "Percentage of DRAM bandwidth used vs theoretical maximum"},
};

static void measure_gpm(nvmlGpmSample_t first, nvmlGpmSample_t second, nvmlGpmMetric_t *metric)
{
    nvmlDevice_t device = first->device;
    metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    metric->value = 0.0;
    memset(&metric->metricInfo, 0, sizeof metric->metricInfo);
    for (size_t i = 0; i < sizeof gpm_names / sizeof *gpm_names; i++)
        if (gpm_names[i].id == metric->metricId) {
            metric->metricInfo.shortName = gpm_names[i].short_name;
            metric->metricInfo.longName = gpm_names[i].long_name;
            metric->metricInfo.unit = "%";
        }
    for (size_t i = 0; i < device->gpm_count; i++)
        if (device->gpm[i].id == metric->metricId) {
            bool too_close = second->t - first->t < GPM_SHORTEST;
            metric->nvmlReturn = NVML_SUCCESS;
            metric->value =
                too_close ? NAN : gpu_mean(&scenario, device, &device->gpm[i].waveform, first->t, second->t);
        }
}

/* Never touches what lies beyond numMetrics. */
EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
    ENTER(NULL);
    if (!get)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (get->version != 1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!get->sample1 || !get->sample2 || !get->sample1->device || get->sample1->device != get->sample2->device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned i = 0; i < get->numMetrics; i++)
        measure_gpm(get->sample1, get->sample2, &get->metrics[i]);
    return NVML_SUCCESS;
}
