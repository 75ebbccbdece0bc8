/* What every exported function begins and ends with. */
#ifndef FAKE_NVML_CALL_H
#define FAKE_NVML_CALL_H

#include "driver.h"
#include "nvml.h"

extern struct scenario scenario; /* read by the first nvmlInit, constant from then on but for its faults */

/* Is the library up, is the handle one of ours, does the scenario want a fault here? Waits, if it wants a delay. */
nvmlReturn_t enter(const char *function, nvmlDevice_t device);
nvmlReturn_t enter_device(const char *function, nvmlDevice_t device);

#define RETURN_UNLESS_GOOD(call) \
    do { \
        nvmlReturn_t refused = (call); \
        if (refused != NVML_SUCCESS) \
            return refused; \
    } while (0)

/* `device` may be NULL: the call concerns none. */
#define ENTER(device) RETURN_UNLESS_GOOD(enter(__func__, device))
#define ENTER_DEVICE(device) RETURN_UNLESS_GOOD(enter_device(__func__, device))

#define GIVE(out, value) \
    do { \
        if (!(out)) \
            return NVML_ERROR_INVALID_ARGUMENT; \
        *(out) = (value); \
        return NVML_SUCCESS; \
    } while (0)

nvmlReturn_t give_text(char *out, unsigned room, const char *text);

/* A quantity now; not supported if the scenario says nothing of it. */
nvmlReturn_t give_quantity(nvmlDevice_t device, enum quantity quantity, unsigned *out);

/* A plain number of the scenario; 0 stands for "does not have it". */
nvmlReturn_t give_number(unsigned number, unsigned *out);

unsigned rounded(double value);

#endif
