"""Training progress as a trainer's own log tells it: steps and samples, without anything of autotune's."""

import re
from dataclasses import dataclass, field

_ENDS_OF_LINES = re.compile(r"[\r\n\b]+")  # progress bars go back with a carriage return, some with backspaces
_COLORS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, kw_only=True)
class OwnLog:
    """Form of a trainer's progress lines.

    Attributes:
        pattern: Regular expression of one such line. A group ``n`` is a counter, which may start anew with each epoch;
            without it each matching line stands for `every` steps.
        every: Steps that a matching line stands for, where there is no counter.
        counts_samples: Whether the counter counts samples; else it counts updates of the optimizer.
        micro: Whether it counts batches, not updates: accumulation of gradients is no factor then.
        starts_at: Counter of the line that the first step prints.
        ignore: Regular expression of lines that look like it and are not, such as those of an evaluation.
    """

    pattern: str
    every: int = 1
    counts_samples: bool = False
    micro: bool = True
    starts_at: int = 1
    ignore: str | None = None

    def samples(self, done: float, *, batch: float, accumulation: float = 1) -> float:
        """Compute the samples that some progress stands for.

        Args:
            done: Progress as `Progress.done` counts it, or a difference of two: samples or steps.
            batch: Samples in one batch.
            accumulation: Batches in an update of the optimizer.
        """
        return done if self.counts_samples else done * batch * (1 if self.micro else accumulation)


@dataclass(kw_only=True)
class Progress:
    """Progress that a log has shown so far; fed with its text piece by piece.

    Attributes:
        log: Form of the lines.
        done: Samples or steps so far, see `OwnLog`; of a counter that starts at 0, the step that it names is done.
    """

    log: OwnLog
    done: float = 0.0
    _rest: str = ""
    _before: float = 0.0
    _last: float = field(default=-1.0)

    def feed(self, text: str) -> bool:
        """Read on; return whether there was progress."""
        *lines, self._rest = _ENDS_OF_LINES.split(self._rest + text)
        if "n" in re.compile(self.log.pattern).groupindex:
            lines.append(self._rest)  # a bar's end is written with the next bar; a number read twice is no progress
        return sum(self._line(_COLORS.sub("", line)) for line in lines) > 0

    def _line(self, line: str) -> bool:
        found = re.search(self.log.pattern, line)
        if found is None or (self.log.ignore and re.search(self.log.ignore, line)):
            return False
        counter = found.groupdict().get("n")
        if counter is None:
            self.done += self.log.every
            return True
        number = float(counter) + (0 if self.log.counts_samples else 1 - self.log.starts_at)
        if number < self._last:  # another epoch
            self._before += self._last
        is_progress = number != self._last
        self._last = number
        self.done = self._before + number
        return is_progress
