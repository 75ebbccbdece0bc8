#include "waveform.h"

/* A stretch on which a term is a straight line. */
struct piece {
    double first, last; /* value at its beginning, and the value it has reached at its end */
    int64_t end;
};

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t quotient = a / b;
    return quotient * b > a ? quotient - 1 : quotient;
}

/* One number in [0, 1) for every cell of time: splitmix64 (Steele, Lea, Flood 2014). No state is kept, so any
 * reader may ask for any moment, in any order, and all see the same noise. */
static double uniform(uint64_t seed, int64_t cell)
{
    uint64_t z = seed * UINT64_C(0xD1342543DE82EF95) + ((uint64_t)cell + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1.0p-53;
}

static struct piece level(double value, int64_t end)
{
    return (struct piece){value, value, end};
}

static struct piece square(const struct term *term, int64_t t)
{
    int64_t begin = term->phase + floor_div(t - term->phase, term->period) * term->period;
    int64_t fall = begin + (int64_t)((double)term->period * term->duty + 0.5);
    return t < fall ? level(term->high, fall) : level(term->low, begin + term->period);
}

static struct piece timeline(const struct term *term, int64_t t)
{
    size_t after = 0;
    while (after < term->point_count && term->points[after].t <= t)
        after++;
    double value = term->points[after ? after - 1 : 0].value;
    return level(value, after < term->point_count ? term->points[after].t : INT64_MAX);
}

static double on_ramp(const struct term *term, int64_t t)
{
    return term->low + (term->high - term->low) * (double)(t - term->start) / (double)(term->end - term->start);
}

static struct piece ramp(const struct term *term, int64_t t, int64_t until)
{
    if (t < term->start)
        return level(term->low, term->start);
    if (t >= term->end)
        return level(term->high, INT64_MAX);
    int64_t end = until < term->end ? until : term->end;
    return (struct piece){on_ramp(term, t), on_ramp(term, end), end};
}

static struct piece noise(const struct term *term, int64_t t)
{
    int64_t cell = floor_div(t, term->period);
    return level(term->low + (term->high - term->low) * uniform(term->seed, cell), (cell + 1) * term->period);
}

static struct piece bursts(const struct term *term, int64_t t)
{
    int64_t cell = floor_div(t, term->period);
    double place = uniform(term->seed, cell) * (double)(term->period - term->length);
    int64_t rise = cell * term->period + (int64_t)place;
    if (t < rise)
        return level(term->low, rise);
    if (t < rise + term->length)
        return level(term->high, rise + term->length);
    return level(term->low, (cell + 1) * term->period);
}

/* The piece that t lies in; its end is after t. */
static struct piece piece_at(const struct term *term, int64_t t, int64_t until)
{
    switch (term->kind) {
    case TERM_SQUARE:
        return square(term, t);
    case TERM_TIMELINE:
        return timeline(term, t);
    case TERM_RAMP:
        return ramp(term, t, until);
    case TERM_NOISE:
        return noise(term, t);
    case TERM_BURSTS:
        return bursts(term, t);
    case TERM_CONSTANT:
    case TERM_OF_BUSY:
        break;
    }
    return level(term->low, INT64_MAX);
}

double term_mean(const struct term *term, int64_t t0, int64_t t1)
{
    if (t1 <= t0)
        return piece_at(term, t0, t0 + 1).first;
    double area = 0.0;
    for (int64_t t = t0; t < t1;) {
        struct piece piece = piece_at(term, t, t1);
        int64_t end = piece.end < t1 ? piece.end : t1;
        area += (piece.first + piece.last) / 2.0 * (double)(end - t);
        t = end;
    }
    return area / (double)(t1 - t0);
}
