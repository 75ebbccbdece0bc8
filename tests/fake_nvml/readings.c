/* Exported functions: memory, power, heat, clocks, and what monitors show beside them. */
#define _GNU_SOURCE
#include "call.h"

/* ---- Memory ---- */

/* The first version has no field for what the driver reserves, and counts it as used. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER_DEVICE(device);
    nvmlMemory_t memory = {.total = device->memory_total_bytes};
    memory.used = gpu_memory_used(&scenario, device) + device->memory_reserved_bytes;
    memory.free = memory.total - memory.used;
    GIVE(out, memory);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    ENTER_DEVICE(device);
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->total = device->memory_total_bytes;
    out->reserved = device->memory_reserved_bytes;
    out->used = gpu_memory_used(&scenario, device);
    out->free = out->total - out->reserved - out->used;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    ENTER_DEVICE(device);
    GIVE(out, ((nvmlBAR1Memory_t){device->memory_total_bytes, device->memory_total_bytes, 0}));
}

/* ---- Power, heat, clocks ---- */

/* Millijoules since the scenario's origin: milliwatts times seconds. */
static uint64_t energy_mj(nvmlDevice_t device)
{
    int64_t now = driver_now(&scenario);
    if (now <= 0)
        return 0;
    double mean_mw = gpu_mean(&scenario, device, &device->quantities[POWER_MW], 0, now);
    return (uint64_t)(mean_mw * (double)now / 1e9);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_quantity(device, POWER_MW, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *out)
{
    ENTER_DEVICE(device);
    if (!gpu_has(device, POWER_MW))
        return NVML_ERROR_NOT_SUPPORTED;
    GIVE(out, energy_mj(device));
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->power_limit_mw, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->power_limit_mw, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->default_power_limit_mw, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    ENTER_DEVICE(device);
    return sensor == NVML_TEMPERATURE_GPU ? give_quantity(device, TEMPERATURE_C, out) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out)
{
    ENTER_DEVICE(device);
    if (!out)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (out->version != STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (out->sensorType != NVML_TEMPERATURE_GPU || !gpu_has(device, TEMPERATURE_C))
        return NVML_ERROR_NOT_SUPPORTED;
    out->temperature = (int)rounded(gpu_value(&scenario, device, TEMPERATURE_C));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *out)
{
    ENTER_DEVICE(device);
    if (threshold == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)
        return give_number(device->shutdown_c, out);
    return threshold == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN ? give_number(device->slowdown_c, out)
                                                            : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_quantity(device, FAN_PERCENT, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *out)
{
    ENTER_DEVICE(device);
    if (type == NVML_CLOCK_MEM)
        return give_quantity(device, MEMORY_CLOCK_MHZ, out);
    return type <= NVML_CLOCK_SM ? give_quantity(device, SM_CLOCK_MHZ, out) : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *out)
{
    ENTER_DEVICE(device);
    if (type == NVML_CLOCK_MEM)
        return give_number(device->max_memory_clock_mhz, out);
    return type <= NVML_CLOCK_SM ? give_number(device->max_sm_clock_mhz, out) : NVML_ERROR_NOT_SUPPORTED;
}

static nvmlReturn_t give_event_reasons(nvmlDevice_t device, unsigned long long *out)
{
    if (!gpu_has(device, EVENT_REASONS))
        return NVML_ERROR_NOT_SUPPORTED;
    GIVE(out, (unsigned long long)gpu_value(&scenario, device, EVENT_REASONS));
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *out)
{
    ENTER_DEVICE(device);
    return give_event_reasons(device, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *out)
{
    ENTER_DEVICE(device);
    return give_event_reasons(device, out);
}

/* ---- What monitors show beside it ---- */

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, 0u);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, device->persistence);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, 0u);
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, 0u);
}

EXPORT nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    GIVE(out, 0u);
}

/* Driver models are a matter of Windows. */
EXPORT nvmlReturn_t nvmlDeviceGetDriverModel(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    (void)current;
    (void)pending;
    ENTER_DEVICE(device);
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    (void)current;
    (void)pending;
    ENTER_DEVICE(device);
    return NVML_ERROR_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                                unsigned long long *out)
{
    (void)type;
    (void)counter;
    ENTER_DEVICE(device);
    GIVE(out, 0ull);
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *out)
{
    ENTER_DEVICE(device);
    if (counter == NVML_PCIE_UTIL_TX_BYTES)
        return give_quantity(device, PCIE_TX_KIB_S, out);
    return counter == NVML_PCIE_UTIL_RX_BYTES ? give_quantity(device, PCIE_RX_KIB_S, out)
                                              : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->pcie_generation, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->pcie_width, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->pcie_generation, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(device);
    return give_number(device->max_pcie_width, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    ENTER_DEVICE(device);
    if (!values || count < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (nvmlFieldValue_t *field = values; field < values + count; field++) {
        field->nvmlReturn = gpu_has(device, POWER_MW) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        field->timestamp = (scenario.origin_ns + driver_now(&scenario) + scenario.stamp_offset_ns) / 1000;
        switch (field->fieldId) {
        case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION:
            field->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            field->value.ullVal = energy_mj(device);
            break;
        case NVML_FI_DEV_POWER_AVERAGE:
        case NVML_FI_DEV_POWER_INSTANT:
            field->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
            field->value.uiVal = rounded(gpu_value(&scenario, device, POWER_MW));
            break;
        default:
            field->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        }
    }
    return NVML_SUCCESS;
}
