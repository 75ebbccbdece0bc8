"""What a search finds out about the trainer besides how fast it is, and what is said of it.

What it leaves outside its runs' folders, which knobs it does not heed, whether its steps hold as many samples as the
config says, and how its loss goes: each is found in runs that are made anyway, told once when it is found, and again in
the end.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path

from autotune.clock import Clock
from autotune.files import read_beginning
from autotune.protect.side_effects import RUNS_LOOKED_AROUND, Leftovers
from autotune.records import Purpose, RunRecord, Values
from autotune.sampler.inert import effects_seen, is_large, printed_values, said_the_same, same_batch, without_effect
from autotune.sampler.observations import PointLevel
from autotune.search.problem import Setup
from autotune.space.space import Space
from autotune.statistics import Series
from autotune.trial.losses import Losses
from autotune.trial.step_samples import unlike_the_config

_READ_BYTES = 1 << 16  # of what a trainer prints: its configuration comes first


class Findings:
    """What one search has found out; made before its first run.

    Args:
        setup: What is tuned.
        clock: Source of time.
        cwd: Where runs start.

    Attributes:
        dead: Knobs that the trainer does not heed, with what shows it.
        todays_losses: How the loss of today's config went; None as long as no run of it has told.
        remarks: Sentences for the user, each said once; to be taken off.
    """

    def __init__(self, setup: Setup, clock: Clock, *, cwd: Path) -> None:
        self._setup = setup
        self._leftovers = Leftovers(setup.trainer, clock, cwd=cwd)
        self._looks = 0
        self._samples_differ = False
        self._said: list[str] = []
        self._printed: list[tuple[Values, Mapping[str, frozenset[str]]]] = []
        self.dead: dict[str, str] = {}
        self.todays_losses: Losses | None = None
        self.remarks: deque[str] = deque()

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the reader of the answer should know of all this."""
        return tuple(self._said)

    def look_around(self, number: int) -> bool:
        """Looks for what the run that has just ended left outside its folder, after the first ones.

        Returns:
            Whether the run seems to have filled a cache beside its data, so that later ones are not like it.
        """
        if self._looks >= RUNS_LOOKED_AROUND:
            return False
        self._looks += 1
        leftover = self._leftovers.of_the_run(number)
        if leftover is None:
            return False
        self._say(leftover.sentence)
        return leftover.fills_a_cache

    def learn(
        self,
        record: RunRecord,
        losses: Losses,
        stdout: Path,
        *,
        samples: Series | None,
        space: Space,
        records: Iterable[RunRecord],
        levels: Mapping[str, PointLevel],
        sd: float,
    ) -> bool:
        """Takes one more run.

        Args:
            record: The run.
            losses: How its loss went.
            stdout: What it printed.
            samples: Samples of each step of its steady window; None if they were not seen.
            space: What may vary.
            records: All runs of this search.
            levels: What is known of each point.
            sd: Standard deviation of ln score between runs of one point.

        Returns:
            Whether a knob was found that the trainer does not heed.
        """
        if record.purpose is Purpose.TODAY and record.comparable and self.todays_losses is None:
            self.todays_losses = losses
        if record.comparable and samples is not None:
            self._compare_with_config(record.values, samples)
        if record.comparable:
            self._printed.append((record.values, printed_values(_beginning(stdout), space)))
        # What a trainer prints, and what its batches hold, is worth more than an effect that was not seen.
        said, batch = said_the_same(self._printed, space), same_batch(records, space)
        effects = effects_seen(levels, space, sd)
        known = len(self.dead)
        heeded = {effect.path for effect in effects if is_large(effect)}
        for path, why in {**without_effect(effects, levels, space), **said, **batch}.items():
            if path not in self.dead and path not in heeded:
                self.dead[path] = why
                self._say(f"{path}: {why}; it is left as it is from now on. See whether a flag or another key beats it")
        return len(self.dead) > known

    def _compare_with_config(self, values: Values, samples: Series) -> None:
        path, size = self._setup.batch_key, self._setup.batch_size(values)
        if path is None or size is None or self._samples_differ:
            return
        sentence = unlike_the_config(
            path,
            size,
            samples,
            config={**self._setup.settings.scalars, **self._setup.space.keys(values)},
            devices=max(1, len(self._setup.visible_gpus(values).uuids)),
        )
        if sentence is not None:
            self._samples_differ = True
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        self._said.append(sentence)
        self.remarks.append(sentence)


def _beginning(path: Path) -> str:
    return read_beginning(path, _READ_BYTES).decode("utf-8", "replace")
