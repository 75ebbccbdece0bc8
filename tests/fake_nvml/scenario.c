/* The scenario file: one setting per line, "key value"; "#" begins a comment line. Written by scenario.py, whose
 * dataclasses say what everything means.
 *
 *     driver_version 565.57.01          settings of the driver come first
 *     fault nvmlInit* code=9            any number of these
 *     gpu                               begins a GPU; "mig" begins an instance of the GPU above it
 *     name NVIDIA H100 80GB HBM3
 *     busy_percent square low=10 high=90 period_s=2 duty=0.5 phase_s=0
 *     busy_percent noise low=-5 high=5 period_s=0.2 seed=1      lines of the same quantity add up
 *     gpm 5 of_busy factor=0.25
 *     process pid=4242 memory_bytes=1e9 share=1 kind=0
 */
#define _GNU_SOURCE
#include "scenario.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_PER_S 1e9

enum field_type { NUMBER, INTEGER, SECONDS, TEXT, PATH };

struct field {
    const char *key;
    enum field_type type;
    size_t offset, size;
};

#define FIELD(owner, member, type) {#member, type, offsetof(struct owner, member), sizeof(((struct owner *)0)->member)}
#define SPAN(owner, member) {#member "_s", SECONDS, offsetof(struct owner, member), sizeof(int64_t)}

static const struct field driver_fields[] = {
    FIELD(scenario, driver_version, TEXT),
    FIELD(scenario, nvml_version, TEXT),
    FIELD(scenario, cuda_version, NUMBER),
    FIELD(scenario, origin_ns, INTEGER),
    FIELD(scenario, stamp_offset_ns, INTEGER),
    SPAN(scenario, window),
    SPAN(scenario, publish_delay),
    FIELD(scenario, ring, NUMBER),
    FIELD(scenario, dry_when_idle, NUMBER),
    FIELD(scenario, garbage, NUMBER),
    FIELD(scenario, empty_size_is_success, NUMBER),
    FIELD(scenario, pid_offset, NUMBER),
    FIELD(scenario, clock_file, PATH),
    FIELD(scenario, tenants_folder, PATH),
    {NULL, NUMBER, 0, 0},
};

static const struct field gpu_fields[] = {
    FIELD(gpu, name, TEXT),
    FIELD(gpu, uuid, TEXT),
    FIELD(gpu, serial, TEXT),
    FIELD(gpu, memory_total_bytes, INTEGER),
    FIELD(gpu, memory_reserved_bytes, INTEGER),
    FIELD(gpu, power_limit_mw, NUMBER),
    FIELD(gpu, default_power_limit_mw, NUMBER),
    FIELD(gpu, persistence, NUMBER),
    FIELD(gpu, max_pcie_width, NUMBER),
    FIELD(gpu, max_sm_clock_mhz, NUMBER),
    FIELD(gpu, max_memory_clock_mhz, NUMBER),
    FIELD(gpu, slowdown_c, NUMBER),
    FIELD(gpu, shutdown_c, NUMBER),
    FIELD(gpu, compute_major, NUMBER),
    FIELD(gpu, compute_minor, NUMBER),
    FIELD(gpu, architecture, NUMBER),
    FIELD(gpu, pcie_generation, NUMBER),
    FIELD(gpu, pcie_width, NUMBER),
    FIELD(gpu, mig_mode, NUMBER),
    FIELD(gpu, gpu_instance, NUMBER),
    FIELD(gpu, compute_instance, NUMBER),
    FIELD(gpu, gpm_supported, NUMBER),
    {NULL, NUMBER, 0, 0},
};

static const char *const quantity_keys[QUANTITY_COUNT] = {
    [BUSY_PERCENT] = "busy_percent",
    [MEMORY_BUSY_PERCENT] = "memory_busy_percent",
    [ENCODER_PERCENT] = "encoder_percent",
    [DECODER_PERCENT] = "decoder_percent",
    [MEMORY_USED_BYTES] = "memory_used_bytes",
    [POWER_MW] = "power_mw",
    [TEMPERATURE_C] = "temperature_c",
    [SM_CLOCK_MHZ] = "sm_clock_mhz",
    [MEMORY_CLOCK_MHZ] = "memory_clock_mhz",
    [FAN_PERCENT] = "fan_percent",
    [EVENT_REASONS] = "event_reasons",
    [PCIE_TX_KIB_S] = "pcie_tx_kib_s",
    [PCIE_RX_KIB_S] = "pcie_rx_kib_s",
};

static const char *const term_names[] = {
    [TERM_CONSTANT] = "constant", [TERM_SQUARE] = "square", [TERM_TIMELINE] = "timeline", [TERM_RAMP] = "ramp",
    [TERM_NOISE] = "noise",       [TERM_BURSTS] = "bursts", [TERM_OF_BUSY] = "of_busy",
};

/* Appends one zeroed element to an array that is kept as pointer and count; evaluates to a pointer to it. */
#define APPEND(list, count) \
    ((list) = realloc((list), ((count) + 1) * sizeof *(list)), \
     memset(&(list)[(count)], 0, sizeof *(list)), &(list)[(count)++])

/* The word after "name=" in a line of such pairs, or NULL. */
static const char *pair(const char *line, const char *name)
{
    size_t length = strlen(name);
    for (const char *word = line; *word; word += strcspn(word, " ")) {
        word += strspn(word, " ");
        if (strncmp(word, name, length) == 0 && word[length] == '=')
            return word + length + 1;
    }
    return NULL;
}

static double number(const char *line, const char *name, double otherwise)
{
    const char *text = pair(line, name);
    return text ? strtod(text, NULL) : otherwise;
}

static int64_t nanoseconds(double seconds)
{
    if (isinf(seconds))
        return seconds < 0 ? INT64_MIN : INT64_MAX;
    return (int64_t)(seconds * NS_PER_S + (seconds < 0 ? -0.5 : 0.5));
}

static bool read_points(const char *text, struct term *term)
{
    for (char *rest; *(text += strspn(text, " ")); text = rest) {
        double t = strtod(text, &rest);
        if (*rest != '=')
            return false;
        struct point *point = APPEND(term->points, term->point_count);
        point->t = nanoseconds(t);
        point->value = strtod(rest + 1, &rest);
    }
    return term->point_count > 0;
}

static bool read_term(const char *text, struct waveform *waveform)
{
    size_t length = strcspn(text, " ");
    struct term term = {
        .low = number(text, "low", 0),
        .high = number(text, "high", 0),
        .duty = number(text, "duty", 0.5),
        .factor = number(text, "factor", 1),
        .period = nanoseconds(number(text, "period_s", 0)),
        .phase = nanoseconds(number(text, "phase_s", 0)),
        .start = nanoseconds(number(text, "start_s", 0)),
        .end = nanoseconds(number(text, "end_s", 0)),
        .length = nanoseconds(number(text, "length_s", 0)),
        .seed = (uint64_t)number(text, "seed", 0),
    };
    bool known = false;
    for (size_t kind = 0; kind < sizeof term_names / sizeof *term_names; kind++)
        if (strncmp(text, term_names[kind], length) == 0 && !term_names[kind][length]) {
            term.kind = (enum term_kind)kind;
            known = true;
        }
    bool repeats = term.kind == TERM_SQUARE || term.kind == TERM_NOISE || term.kind == TERM_BURSTS;
    if (!known || (repeats && term.period <= 0) || (term.kind == TERM_BURSTS && term.length > term.period) ||
        (term.kind == TERM_RAMP && term.end <= term.start) ||
        (term.kind == TERM_TIMELINE && !read_points(text + length, &term)))
        return false;
    *APPEND(waveform->terms, waveform->count) = term;
    return true;
}

static bool read_fault(const char *text, struct scenario *scenario)
{
    struct fault *fault = APPEND(scenario->faults, scenario->fault_count);
    size_t length = strcspn(text, " ");
    if (length >= sizeof fault->function)
        return false;
    memcpy(fault->function, text, length);
    fault->gpu = (int)number(text, "gpu", -1);
    fault->code = (int)number(text, "code", 0);
    fault->after_calls = (unsigned long)number(text, "after_calls", 0);
    fault->calls = (unsigned long)number(text, "calls", 1e18);
    fault->from = nanoseconds(number(text, "from_s", -INFINITY));
    fault->until = nanoseconds(number(text, "until_s", INFINITY));
    fault->delay = nanoseconds(number(text, "delay_s", 0));
    return true;
}

static bool read_process(const char *text, struct gpu *gpu)
{
    struct process *process = APPEND(gpu->processes, gpu->process_count);
    process->pid = (unsigned)number(text, "pid", 0);
    process->kind = (enum process_kind)number(text, "kind", COMPUTE);
    process->memory_bytes = (uint64_t)number(text, "memory_bytes", 0);
    process->share = number(text, "share", 0);
    process->from = nanoseconds(number(text, "from_s", -INFINITY));
    process->until = nanoseconds(number(text, "until_s", INFINITY));
    return process->pid != 0;
}

static bool read_gpm(const char *text, struct gpu *gpu)
{
    char *rest;
    unsigned id = (unsigned)strtoul(text, &rest, 10);
    if (rest == text || *rest != ' ')
        return false;
    struct gpm_metric *metric = APPEND(gpu->gpm, gpu->gpm_count);
    metric->id = id;
    return read_term(rest + 1, &metric->waveform);
}

static bool read_field(const struct field *field, const char *key, const char *value, void *owner)
{
    while (field->key && strcmp(field->key, key) != 0)
        field++;
    if (!field->key)
        return false;
    char *place = (char *)owner + field->offset;
    switch (field->type) {
    case NUMBER:
        *(unsigned *)place = (unsigned)strtoul(value, NULL, 10);
        return true;
    case INTEGER:
        *(int64_t *)place = strtoll(value, NULL, 10);
        return true;
    case SECONDS:
        *(int64_t *)place = nanoseconds(strtod(value, NULL));
        return true;
    case TEXT:
        return (size_t)snprintf(place, field->size, "%s", value) < field->size;
    case PATH:
        return (*(char **)place = strdup(value)) != NULL;
    }
    return false;
}

static void begin_gpu(struct scenario *scenario, bool is_instance)
{
    int parent = -1;
    unsigned index = 0;
    for (size_t i = 0; is_instance && i < scenario->gpu_count; i++)
        if (scenario->gpus[i].parent < 0)
            parent = (int)i;
    for (size_t i = 0; i < scenario->gpu_count; i++)
        index += scenario->gpus[i].parent == parent;
    struct gpu *gpu = APPEND(scenario->gpus, scenario->gpu_count);
    gpu->parent = parent;
    gpu->index = index;
}

static bool read_line(const char *key, const char *value, struct scenario *scenario)
{
    if (strcmp(key, "fault") == 0)
        return read_fault(value, scenario);
    if (strcmp(key, "gpu") == 0 || (strcmp(key, "mig") == 0 && scenario->gpu_count)) {
        begin_gpu(scenario, key[0] == 'm');
        return true;
    }
    if (!scenario->gpu_count)
        return read_field(driver_fields, key, value, scenario);
    struct gpu *gpu = &scenario->gpus[scenario->gpu_count - 1];
    if (strcmp(key, "process") == 0)
        return read_process(value, gpu);
    if (strcmp(key, "gpm") == 0)
        return read_gpm(value, gpu);
    if (strcmp(key, "pci_bus_id") == 0)
        return sscanf(value, "%x:%x:%x", &gpu->pci_domain, &gpu->pci_bus, &gpu->pci_device) == 3;
    for (size_t i = 0; i < QUANTITY_COUNT; i++)
        if (strcmp(key, quantity_keys[i]) == 0)
            return read_term(value, &gpu->quantities[i]);
    return read_field(gpu_fields, key, value, gpu);
}

bool scenario_read(const char *path, struct scenario *scenario)
{
    FILE *file = fopen(path, "re");
    if (!file) {
        fprintf(stderr, "fake NVML: no scenario at %s\n", path);
        return false;
    }
    *scenario = (struct scenario){0};
    char *line = NULL;
    size_t room = 0, line_number = 0;
    bool good = true;
    while (good && getline(&line, &room, file) >= 0) {
        line_number++;
        line[strcspn(line, "\n")] = '\0';
        if (!*line || *line == '#')
            continue;
        char *value = line + strcspn(line, " ");
        if (*value)
            *value++ = '\0';
        good = read_line(line, value, scenario);
        if (!good)
            fprintf(stderr, "fake NVML: %s:%zu: cannot read \"%s %s\"\n", path, line_number, line, value);
    }
    if (good && scenario->window <= 0) {
        fprintf(stderr, "fake NVML: %s: window_s has to be positive\n", path);
        good = false;
    }
    free(line);
    fclose(file);
    return good;
}
