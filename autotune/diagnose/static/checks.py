"""Table of the static checks, in the order in which they are shown."""

from autotune.diagnose.check import Check

STATIC_CHECKS: tuple[Check, ...] = ()
