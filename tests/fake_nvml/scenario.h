/* What the scenario file says; read once by a process, never changed afterwards. */
#ifndef FAKE_NVML_SCENARIO_H
#define FAKE_NVML_SCENARIO_H

#include <stdbool.h>

#include "waveform.h"

enum quantity {
    BUSY_PERCENT,
    MEMORY_BUSY_PERCENT,
    ENCODER_PERCENT,
    DECODER_PERCENT,
    MEMORY_USED_BYTES, /* beyond what the processes hold */
    POWER_MW,
    TEMPERATURE_C,
    SM_CLOCK_MHZ,
    MEMORY_CLOCK_MHZ,
    FAN_PERCENT,
    EVENT_REASONS, /* bit mask of why clocks are held down */
    PCIE_TX_KIB_S,
    PCIE_RX_KIB_S,
    QUANTITY_COUNT,
};

enum process_kind { COMPUTE, GRAPHICS, MPS };

struct process {
    unsigned pid;
    enum process_kind kind;
    uint64_t memory_bytes;
    double share; /* of what keeps the GPU busy */
    int64_t from, until;
};

struct gpm_metric {
    unsigned id;
    struct waveform waveform;
};

struct gpu {
    int parent; /* of a MIG instance: the index in `gpus` of its GPU; -1 of a GPU */
    unsigned index; /* NVML index: of a MIG instance, among those of its GPU */
    char name[96], uuid[96], serial[30];
    unsigned pci_domain, pci_bus, pci_device;
    uint64_t memory_total_bytes, memory_reserved_bytes;
    unsigned power_limit_mw, default_power_limit_mw, persistence, max_pcie_width, max_sm_clock_mhz, max_memory_clock_mhz, slowdown_c, shutdown_c;
    unsigned compute_major, compute_minor, architecture, pcie_generation, pcie_width;
    unsigned mig_mode, gpu_instance, compute_instance, gpm_supported;
    struct waveform quantities[QUANTITY_COUNT];
    struct gpm_metric *gpm;
    size_t gpm_count;
    struct process *processes;
    size_t process_count;
};

struct fault {
    char function[64]; /* a pattern of fnmatch(3) */
    int gpu;           /* NVML index; -1 for any, and for calls that concern none */
    int code;          /* what the call answers; 0: it is only delayed */
    unsigned long after_calls, calls;
    int64_t from, until, delay;
    unsigned long seen; /* matching calls of this process so far */
};

struct scenario {
    char driver_version[80], nvml_version[80];
    unsigned cuda_version;
    int64_t origin_ns;       /* CLOCK_MONOTONIC at t = 0 */
    int64_t stamp_offset_ns; /* what the driver's stamps add to CLOCK_MONOTONIC */
    int64_t window, publish_delay;
    unsigned ring;
    unsigned dry_when_idle, garbage, empty_size_is_success;
    unsigned pid_offset;
    char *clock_file, *tenants_folder; /* NULL: the machine's clock; no tenants */
    struct gpu *gpus;
    size_t gpu_count; /* MIG instances among them */
    struct fault *faults;
    size_t fault_count;
};

/* Reads the file; false, and a sentence on stderr, if it cannot be understood. */
bool scenario_read(const char *path, struct scenario *scenario);

#endif
