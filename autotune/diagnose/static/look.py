"""What the static checks look at: the problem, and what several of them need, read once."""

from dataclasses import dataclass
from functools import cached_property

from autotune.clock import Clock
from autotune.diagnose.static.dataset_files import DatasetPlace, dataset_places
from autotune.diagnose.static.framework_answers import FrameworkAnswers, ask_framework
from autotune.gpu.discovery import in_time, look_for_gpus
from autotune.gpu.driver import GpuFacts
from autotune.problem.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Look:
    """Subject of the static checks.

    Attributes:
        problem: What is diagnosed; None for this machine and this installation alone.
        clock: The machine's clock.
        is_run: Whether trials of it are made next, so that programs that its config names may be started.
    """

    problem: Problem | None
    clock: Clock
    is_run: bool = False

    @cached_property
    def gpus(self) -> tuple[GpuFacts, ...]:
        """All GPUs of this machine."""
        return look_for_gpus().gpus if self.problem is None else self.problem.gpus

    @cached_property
    def places(self) -> tuple[DatasetPlace, ...] | None:
        """Folders and files of the dataset that the config names; None if a file system does not answer."""
        problem = self.problem
        return () if problem is None else in_time(lambda: dataset_places(problem, self.clock))

    @cached_property
    def framework(self) -> FrameworkAnswers:
        """Answers of the framework that the trainer's interpreter has."""
        sample = next((file for place in self.places or () for file in place.decodable), None)
        return ask_framework(self.problem, sample, is_run=self.is_run)
