"""Table of the measured checks, in the order in which they are shown."""

from autotune.diagnose.check import Check

MEASURED_CHECKS: tuple[Check, ...] = ()
