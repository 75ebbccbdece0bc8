/* Exported functions: the system, which devices there are, and MIG. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "call.h"

EXPORT const char *nvmlErrorString(nvmlReturn_t code)
{
    switch (code) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT:
        return "Timeout";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED:
        return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        return "Driver/library version mismatch";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned room)
{
    ENTER(NULL);
    return give_text(out, room, scenario.driver_version);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned room)
{
    ENTER(NULL);
    return give_text(out, room, scenario.nvml_version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
    ENTER(NULL);
    GIVE(out, (int)scenario.cuda_version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER(NULL);
    GIVE(out, (int)scenario.cuda_version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned room)
{
    ENTER(NULL);
    char path[64], name[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    size_t length = fread(name, 1, sizeof name - 1, file);
    fclose(file);
    name[length] = '\0'; /* arguments end with a zero byte, so this is the program alone */
    return give_text(out, room, name);
}

/* ---- Which devices there are ---- */

static nvmlDevice_t find_gpu(int parent, unsigned index)
{
    for (size_t i = 0; i < scenario.gpu_count; i++)
        if (scenario.gpus[i].parent == parent && scenario.gpus[i].index == index)
            return &scenario.gpus[i];
    return NULL;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out)
{
    ENTER(NULL);
    unsigned count = 0;
    while (find_gpu(-1, count))
        count++;
    GIVE(out, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    nvmlDevice_t device = find_gpu(-1, index);
    ENTER(device);
    if (!device)
        return NVML_ERROR_INVALID_ARGUMENT;
    GIVE(out, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    nvmlDevice_t device = NULL;
    for (size_t i = 0; uuid && i < scenario.gpu_count; i++)
        if (strcmp(scenario.gpus[i].uuid, uuid) == 0)
            device = &scenario.gpus[i];
    ENTER(device);
    if (!device)
        return NVML_ERROR_NOT_FOUND;
    GIVE(out, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out)
{
    unsigned domain = 0, bus = 0, slot = 0;
    nvmlDevice_t device = NULL;
    if (bus_id && sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) == 3)
        for (size_t i = 0; i < scenario.gpu_count; i++) {
            const struct gpu *gpu = &scenario.gpus[i];
            if (gpu->parent < 0 && gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot)
                device = gpu;
        }
    ENTER(device);
    if (!device)
        return NVML_ERROR_NOT_FOUND;
    GIVE(out, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned room)
{
    ENTER_DEVICE(device);
    return give_text(out, room, device->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned room)
{
    ENTER_DEVICE(device);
    return give_text(out, room, device->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned room)
{
    ENTER_DEVICE(device);
    return device->serial[0] ? give_text(out, room, device->serial) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, device->index);
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, device->index);
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, device->architecture);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(device);
    if (!major)
        return NVML_ERROR_INVALID_ARGUMENT;
    *major = (int)device->compute_major;
    GIVE(minor, (int)device->compute_minor);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    ENTER_DEVICE(device);
    nvmlPciInfo_t pci = {.domain = device->pci_domain, .bus = device->pci_bus, .device = device->pci_device};
    snprintf(pci.busId, sizeof pci.busId, "%08X:%02X:%02X.0", pci.domain, pci.bus, pci.device);
    snprintf(pci.busIdLegacy, sizeof pci.busIdLegacy, "%04X:%02X:%02X.0", pci.domain & 0xFFFF, pci.bus & 0xFF,
             pci.device & 0xFF);
    GIVE(out, pci);
}

/* ---- MIG ---- */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(device);
    if (device->architecture < 7 || device->parent >= 0)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!current)
        return NVML_ERROR_INVALID_ARGUMENT;
    *current = device->mig_mode;
    GIVE(pending, device->mig_mode);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, device->mig_mode ? 7u : 0u);
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    ENTER_DEVICE(device);
    nvmlDevice_t instance = find_gpu((int)(device - scenario.gpus), index);
    if (!device->mig_mode || !instance)
        return NVML_ERROR_NOT_FOUND;
    GIVE(out, instance);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    ENTER_DEVICE(device);
    if (device->parent < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    GIVE(out, &scenario.gpus[device->parent]);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, device->parent >= 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    if (device->parent < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    GIVE(out, device->gpu_instance);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    if (device->parent < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    GIVE(out, device->compute_instance);
}
