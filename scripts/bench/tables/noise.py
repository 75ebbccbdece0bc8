"""Noise of the simulated trials of a table: what varies from trial to trial, and over minutes.

`USUAL` is that of the simulated trainings, whose spread was measured on real ones. The others are what such a machine
is not, at about the same spread: a tuner that expects the usual one must not break under them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.testing.simulated_runner import Drift

_SPREAD = 0.08


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Kind of noise.

    Attributes:
        spread: Standard deviation of ln speed between trials of one point, in two modes.
        slow_trials: Share of the trials that something slows down as a whole ...
        slow_speed: ... to this relative speed.
        drift: Drift of the machine; None for none.
    """

    spread: float
    slow_trials: float = 0.0
    slow_speed: float = 1.0
    drift: Drift | None = None


USUAL = "usual"

NOISES: Mapping[str, Noise] = {
    USUAL: Noise(spread=_SPREAD),
    "heavy-tailed": Noise(spread=0.04, slow_trials=0.1, slow_speed=0.6),
    # On average three minutes of every seven and a half are slow.
    "bimodal over minutes": Noise(
        spread=0.03, drift=Drift(throttles_per_h=13.0, throttled_s=180.0, throttled_speed=0.85)
    ),
    "autocorrelated": Noise(spread=0.03, drift=Drift(spread=_SPREAD, memory_s=120.0)),
}
"""Noises by their names in tables and on the command line."""
