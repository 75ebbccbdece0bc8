/* A fake NVIDIA driver library, at NVML's own boundary.
 *
 * Built as libnvidia-ml.so.1 and found through LD_LIBRARY_PATH, it serves the unmodified pynvml, and whatever else
 * speaks NVML, from the scenario file that AUTOTUNE_FAKE_NVML names. The layers, from below:
 *
 *     waveform   quantities as functions of time, with exact means
 *     tenants    processes that say when their kernels run, one file each
 *     scenario   reads the scenario file
 *     driver     what the GPUs do at a time: driver windows, processes, memory
 *     call       this file: what every exported function begins with; starting and stopping the library; faults
 *     devices, activity, readings    the other exported functions
 *
 * Nothing is kept between calls but the scenario and the counts of the faults, so every process and every thread sees
 * the same GPUs. What it shows about a caller is plumbing and arithmetic. It is not evidence of what a driver does.
 * Memory that cannot be had is not handled: a test double may crash.
 */
#define _GNU_SOURCE
#include "call.h"

#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct scenario scenario;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the two below, and the counts of faults */
static bool scenario_is_read;
static unsigned users;

static const struct gpu *whole_gpu(nvmlDevice_t device)
{
    return device->parent < 0 ? device : &scenario.gpus[device->parent];
}

static bool fault_hits(struct fault *fault, const char *function, nvmlDevice_t device, int64_t now)
{
    if (fnmatch(fault->function, function, 0) != 0 || now < fault->from || now >= fault->until)
        return false;
    if (fault->gpu >= 0 && (!device || whole_gpu(device)->index != (unsigned)fault->gpu))
        return false;
    unsigned long before = fault->seen++;
    return before >= fault->after_calls && before - fault->after_calls < fault->calls;
}

static nvmlReturn_t apply_faults(const char *function, nvmlDevice_t device)
{
    int64_t delay = 0, now = driver_now(&scenario);
    nvmlReturn_t answer = NVML_SUCCESS;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < scenario.fault_count; i++)
        if (fault_hits(&scenario.faults[i], function, device, now)) {
            delay += scenario.faults[i].delay;
            if (answer == NVML_SUCCESS)
                answer = (nvmlReturn_t)scenario.faults[i].code;
        }
    pthread_mutex_unlock(&lock);
    struct timespec rest = {delay / 1000000000, delay % 1000000000};
    while (delay > 0 && nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
    return answer;
}

nvmlReturn_t enter(const char *function, nvmlDevice_t device)
{
    pthread_mutex_lock(&lock);
    bool is_up = users > 0;
    pthread_mutex_unlock(&lock);
    return is_up ? apply_faults(function, device) : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t enter_device(const char *function, nvmlDevice_t device)
{
    for (size_t i = 0; i < scenario.gpu_count; i++)
        if (device == &scenario.gpus[i])
            return enter(function, device);
    RETURN_UNLESS_GOOD(enter(function, NULL));
    return NVML_ERROR_INVALID_ARGUMENT;
}

unsigned rounded(double value)
{
    return value <= 0.0 ? 0 : (unsigned)(value + 0.5);
}

nvmlReturn_t give_text(char *out, unsigned room, const char *text)
{
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

nvmlReturn_t give_quantity(nvmlDevice_t device, enum quantity quantity, unsigned *out)
{
    if (!gpu_has(device, quantity))
        return NVML_ERROR_NOT_SUPPORTED;
    GIVE(out, rounded(gpu_value(&scenario, device, quantity)));
}

nvmlReturn_t give_number(unsigned number, unsigned *out)
{
    if (number == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    GIVE(out, number);
}

static nvmlReturn_t initialize(const char *function)
{
    pthread_mutex_lock(&lock);
    const char *path = getenv("AUTOTUNE_FAKE_NVML");
    if (!scenario_is_read)
        scenario_is_read = scenario_read(path ? path : "(AUTOTUNE_FAKE_NVML is not set)", &scenario);
    bool good = scenario_is_read;
    pthread_mutex_unlock(&lock);
    if (!good)
        return NVML_ERROR_UNKNOWN;
    RETURN_UNLESS_GOOD(apply_faults(function, NULL));
    pthread_mutex_lock(&lock);
    users++;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return initialize(__func__);
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return initialize(__func__);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    ENTER(NULL);
    pthread_mutex_lock(&lock);
    users--;
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}
