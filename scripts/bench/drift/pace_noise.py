"""Simulated paces of trainings that nothing is wrong with, with the noise of real ones.

What was measured on real trainers, and is drawn anew for each training here: the times of steps are autocorrelated
(integrated time 2.6 at the median, 12 at the 90th percentile), the speed of whole trainings differs by 8 % (bimodal,
1.23x from end to end), and so do slow phases of minutes within a training. Steps after the end of an epoch are slower,
some trainings fill a cache in their first one, evaluations and checkpoints take time, some without being seen as
pauses, and the machine's temperature wanders.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

WINDOW_S = 10.0
BETWEEN_SD = 0.08
"""Standard deviation of ln speed between trainings of the same config."""

_MODES = 0.14  # ln distance of the two modes; the rest of the spread is within them
_MODE_SD = 0.04
_PAUSE_S = (5.0, 60.0)


@dataclass(frozen=True, kw_only=True)
class PaceNoise:
    """Noise of one training.

    Attributes:
        window_sd: Standard deviation of the ln pace of a window, from its steps.
        wander_sd: The same of what lasts for some minutes.
        wander_windows: How long that lasts.
        phase_depth: How much slower slow phases are, in ln pace; 0 for none.
        phase_windows: Their mean length.
        phase_share: Share of the time that is in them.
        epoch_windows: Length of an epoch.
        epoch_cost: How much slower the window after the end of an epoch is.
        first_epoch: How much slower the first epoch is.
        pause_windows: Mean time between pauses that nobody marks; 0 for none.
        daily: Amplitude of the machine's daily ups and downs.
    """

    window_sd: float
    wander_sd: float
    wander_windows: float
    phase_depth: float
    phase_windows: float
    phase_share: float
    epoch_windows: int
    epoch_cost: float
    first_epoch: float
    pause_windows: float
    daily: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "PaceNoise":
        """Draw the noise of a training."""
        step_sd = float(np.exp(rng.normal(np.log(0.12), 0.7)))
        time = float(np.exp(rng.normal(np.log(2.6), 1.19)))  # p90 at 12
        steps = float(np.clip(np.exp(rng.normal(np.log(60.0), 1.3)), 2.0, 5000.0))
        return cls(
            window_sd=min(step_sd * np.sqrt(max(time, 1.0) / max(steps, time)), 0.3),
            wander_sd=abs(rng.normal(0.0, 0.015)),
            wander_windows=float(np.exp(rng.uniform(np.log(6), np.log(180)))),
            phase_depth=rng.uniform(0.04, 0.21) if rng.random() < 0.5 else 0.0,
            phase_windows=float(np.exp(rng.uniform(np.log(6), np.log(30)))),
            phase_share=rng.uniform(0.01, 0.4),
            epoch_windows=int(np.exp(rng.uniform(np.log(12), np.log(1800)))),
            epoch_cost=rng.uniform(0.0, 0.3),
            first_epoch=rng.uniform(0.05, 0.3) if rng.random() < 0.2 else 0.0,
            pause_windows=float(np.exp(rng.uniform(np.log(60), np.log(720)))) if rng.random() < 0.3 else 0.0,
            daily=rng.uniform(0.0, 0.01),
        )

    def windows(self, rng: np.random.Generator, count: int) -> Values:
        """Return the ln pace of so many windows, 0 being the usual one."""
        pace = rng.normal(0.0, self.window_sd, count)
        keep = np.exp(-1.0 / self.wander_windows)
        pace += _autoregressive(rng.normal(0.0, self.wander_sd * np.sqrt(1.0 - keep**2), count), keep)
        if self.phase_depth:
            pace += self.phase_depth * self._slow_phases(rng, count)
        places = np.arange(count)
        pace[places % self.epoch_windows == 0] += self.epoch_cost
        pace[: min(count, self.epoch_windows)] += self.first_epoch
        if self.pause_windows:
            pauses = rng.random(count) < 1.0 / self.pause_windows
            pace[pauses] += np.log1p(rng.uniform(*_PAUSE_S, pauses.sum()) / WINDOW_S)
        pace += self.daily * np.sin(2 * np.pi * (places * WINDOW_S / 86400.0 + rng.random()))
        return pace

    def _slow_phases(self, rng: np.random.Generator, count: int) -> Values:
        """Return 1 where a slow phase is, else 0: two states with exponential lengths."""
        between = self.phase_windows * (1.0 - self.phase_share) / self.phase_share
        pairs = int(count / (between + self.phase_windows) * 2) + 20
        lengths = np.stack([rng.exponential(between, pairs), rng.exponential(self.phase_windows, pairs)], axis=1)
        ends = np.cumsum(lengths.ravel() + 1.0).astype(int)
        return (np.searchsorted(ends, np.arange(count), side="right") % 2).astype(float)


def between_trainings(rng: np.random.Generator, count: int) -> Values:
    """Return ln speeds of repeated trainings of one config: two modes, 8 % of spread."""
    modes = rng.random(count) < 0.5
    return np.where(modes, _MODES / 2, -_MODES / 2) + rng.normal(0.0, _MODE_SD, count)


def hours(rng: np.random.Generator) -> float:
    """Return the length of a training: 10 h at the median, half an hour to five days."""
    return float(np.clip(np.exp(rng.normal(np.log(10.0), 1.2)), 0.5, 120.0))


def _autoregressive(innovations: Values, keep: float) -> Values:
    """Return an AR(1) process, by blocks in which its powers do not underflow."""
    out = np.empty_like(innovations)
    level, size = 0.0, max(8, int(20.0 / -np.log(keep)))
    powers = keep ** np.arange(1, size + 1)
    for start in range(0, len(innovations), size):
        part = innovations[start : start + size]
        scale = powers[: len(part)]
        out[start : start + size] = scale * (level + np.cumsum(part / scale))
        level = out[start + len(part) - 1]
    return out
