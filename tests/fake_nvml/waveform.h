/* Quantities as functions of time, with exact means.
 *
 * All times are nanoseconds since the scenario's origin. A waveform is a sum of terms; each term is made of
 * linear pieces, so the mean over any window is exact and needs no stepping.
 */
#ifndef FAKE_NVML_WAVEFORM_H
#define FAKE_NVML_WAVEFORM_H

#include <stddef.h>
#include <stdint.h>

enum term_kind {
    TERM_CONSTANT, /* low */
    TERM_SQUARE,   /* high for duty * period from phase on, else low */
    TERM_TIMELINE, /* the value of the latest point; before the first one, the value of that */
    TERM_RAMP,     /* low until start, then a line to high at end */
    TERM_NOISE,    /* one seeded value between low and high for every period */
    TERM_BURSTS,   /* low, with one burst of high, length long, at a seeded place in every period */
    TERM_OF_BUSY,  /* factor times how busy the GPU is, in percent; only a driver can work it out */
};

struct point {
    int64_t t;
    double value;
};

struct term {
    enum term_kind kind;
    double low, high, duty, factor;
    int64_t period, phase, start, end, length;
    uint64_t seed;
    struct point *points; /* of a timeline, in order of time */
    size_t point_count;
};

struct waveform {
    struct term *terms;
    size_t count; /* 0: the scenario does not give this quantity */
};

/* Mean over [t0, t1) of one term that is not TERM_OF_BUSY; its value at t0 if the window is empty. */
double term_mean(const struct term *term, int64_t t0, int64_t t1);

#endif
