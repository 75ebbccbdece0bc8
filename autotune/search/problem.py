"""Problem of a search: all that is read and checked before the first process starts."""

import os
import secrets
import shlex
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from autotune import __version__
from autotune.config.command import (
    TypedOptions,
    ranks_on_node,
    resolve_executable,
    takes_values,
    typed_tokens,
    with_further,
)
from autotune.config.hydra import ComposedDocument
from autotune.config.keys import closest
from autotune.config.load import Settings, load_settings
from autotune.config.schema import (
    DEFAULT_BATCH_LIMIT,
    ENV,
    SECTION,
    BatchLimit,
    Range,
    TrialLimits,
    parse_batch_limit,
)
from autotune.config.sources import Script, trainer_files, words_in
from autotune.errors import ConfigError
from autotune.files import project_folder
from autotune.measure.score import OBJECTIVES, Objective
from autotune.records import CODE, Conditions, Machine, Purpose, Scalar, TrialRecord, Values
from autotune.search.hardware import GPU_SELECTION_VARIABLES, Hardware, this_hardware
from autotune.search.study_place import StudyPlace
from autotune.search.trainer_code import ProjectCode, TrainerCode
from autotune.search.traps import FoundTrap, find_traps
from autotune.space.catalog import (
    is_for_validation,
    is_global,
    is_per_device,
    is_searched_by_default,
    keys_with,
    known_knob,
    traits_of,
)
from autotune.space.find import Skipped, build_space, of_other_sections
from autotune.space.knob import Knob, Label, ladder, number_of
from autotune.space.space import Space, is_batch_size, same_training, with_batch_fixed, with_batch_up_to
from autotune.study.identity import StudyIdentity, framework_versions
from autotune.study.storage.address import GivenAddress, StorageAddress, address_in_environment, address_of
from autotune.trial.folders import StateFolder

if TYPE_CHECKING:
    from autotune.options import SearchOptions, SearchRequest
    from autotune.study.storage.storage import Storage
    from autotune.trial.execution import Trainer

_PYTHON_FIELD = "{python}"


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Subject of one search: config, command, hardware and study.

    Attributes:
        skipped: Known knobs that are not tuned, with the reason.
        typed: Options to repeat in other commands on this study.
        typed_command: Command from the command line; None for the config's.
        frameworks: Versions next to the trainer's interpreter.
        address: Storage; None for journals in the state folder.
        batch_remark: Sentence on batches excluded by `batch_limit`.
        whole_space: Space without the limits of this search; None if there are none.
        allowed, excluded: Kinds of change of the training that were requested, and ruled out.
        data_key: Key of the hashes of samples.
    """

    config_path: Path
    settings: Settings
    space: Space
    skipped: tuple[Skipped, ...]
    hardware: Hardware
    typed: TypedOptions
    typed_command: tuple[str, ...] | None
    state: StateFolder
    frameworks: Mapping[str, str]
    address: StorageAddress | None = None
    batch_limit: BatchLimit | None = None
    batch_remark: str | None = None
    whole_space: Space | None = None
    allowed: frozenset[Label] = frozenset()
    excluded: frozenset[Label] = frozenset()
    data_key: str = field(default_factory=lambda: secrets.token_hex(16))

    @cached_property
    def trainer(self) -> "Trainer":
        from autotune.trial.execution import Trainer  # slow: imports all that starts processes

        return Trainer(
            config_path=self.config_path,
            settings=self.settings,
            typed_command=self.typed_command,
            state=self.state,
            study=self.study,
            excluded=(self.state.path, *(self.address.paths if self.address else ())),
            data_key=self.data_key,
        )

    @property
    def command(self) -> tuple[str, ...]:
        """Command with placeholders; empty if there is none."""
        return self.typed_command or self.settings.command or ()

    @property
    def machine(self) -> Machine:
        """Machine with the GPUs that trials can see."""
        return self.hardware.machine

    @cached_property
    def place(self) -> StudyPlace:
        section = self.settings.section
        # Variables that select GPUs count by the selected GPUs, not by what sets them.
        chooses = GPU_SELECTION_VARIABLES if self.hardware.gpus else ()
        identity = StudyIdentity(
            stem=self.config_path.stem,
            config=self.settings.trial_document.data,
            left_out=[*(path for knob in self.space.knobs for path in knob.paths), *self.settings.outputs.redirected],
            fixed=section.fixed,
            command=self.command,
            environment={name: text for name, text in section.env.items() if name not in chooses},
            objective=section.objective,
            machine=self.machine,
            frameworks=self.frameworks,
        )
        known = [path for path, value in self.settings.scalars.items() if known_knob(path, value)]
        known += [skipped.path for skipped in self.skipped]
        return StudyPlace(identity=identity, state=self.state, address=self.address, known_knobs=known)

    @property
    def study(self) -> str:
        return self.place.name

    @property
    def storage(self) -> "Storage":
        return self.place.storage

    @cached_property
    def code(self) -> ProjectCode:
        """The trainer's code, seen from each folder that an unknown command may run in."""
        folders = [self.settings.folder]
        if not self.command:
            config, project = Path(os.path.realpath(self.config_path)), project_folder(self.config_path)
            folders += [folder for folder in config.parents if folder.is_relative_to(project)]
        excluded = (*self.settings.paths, self.state.path)
        return ProjectCode([TrainerCode(self.command, folder, excluded) for folder in dict.fromkeys(folders)])

    @cached_property
    def traps(self) -> tuple[FoundTrap, ...]:
        """Code in which other values of a knob give other data."""
        folder, named = self.settings.folder, words_in((*self.settings.scalars.values(), *self.command))
        paths = trainer_files(self.command, folder) if self.command else ()
        return find_traps(paths, folder, named, has_gpu=bool(self.machine.gpus))

    @property
    def can_vary(self) -> bool:
        return any(len(knob.choices) > 1 for knob in self.space.knobs)

    @property
    def trap_remarks(self) -> list[str]:
        return list(filter(None, (found.remark(self.space) for found in self.traps)))

    @property
    def limits(self) -> TrialLimits:
        return self.settings.section.trial

    @property
    def objective(self) -> Objective:
        return OBJECTIVES[self.settings.section.objective]

    @property
    def measures(self) -> str:
        parts = self.objective.measures
        return f"{parts}; GPU utilization not measured: {why}" if (why := self.hardware.why_no_gpu) else parts

    @cached_property
    def conditions(self) -> Conditions:
        """Conditions shared by all trials on this machine."""
        return Conditions(
            autotune=__version__,
            host=socket.gethostname(),
            machine=self.machine.name or None,
            cpu_model=self.machine.cpu_model,
            cpu_cores=self.machine.cpu_cores,
            memory_bytes=self.machine.memory_bytes,
            gpus=", ".join(gpu.name for gpu in self.machine.gpus) or None,
            frameworks=self.frameworks,
        )

    @cached_property
    def batch_key(self) -> str | None:
        """Key of the samples per step; None if there is none."""
        sizes = [path for path in keys_with(self.settings.scalars, counts="samples") if not is_for_validation(path)]
        # a step is a part of a global or an accumulated batch
        return next(iter(sorted(sizes, key=lambda path: (is_global(path), not is_per_device(path)))), None)

    def batch_size(self, values: Values) -> float | None:
        """Samples per step by the config, for trainers that do not report them; None if unknown."""
        if self.batch_key is None:
            return None
        # it may move along with a knob
        held = self.space.keys(values) if self.space.contains(values) else values
        size = number_of(held.get(self.batch_key, self.settings.scalars[self.batch_key]))
        return float(size) if isinstance(size, int) else None

    def require_runnable(self) -> None:
        """Raise `AutotuneError` if something is missing that a search on this machine needs."""
        self.require_command()
        if not self.can_vary:
            raise ConfigError(
                "no knob was found in this config" if not self.space.knobs else "no knob is left to tune",
                where=str(self.config_path),
                remedy="Name what may vary, for example:\n  autotune:\n    knobs:\n      data.batch_size: [8, 16, 32]",
            )
        if self.objective.by_utilization and self.hardware.why_no_gpu:
            raise ConfigError(
                f"objective: utilization needs a GPU whose utilization is measured: {self.hardware.why_no_gpu}",
                where=str(self.config_path),
                remedy="Use effective_utilization, which without a GPU is throughput and steadiness, or throughput.",
            )
        self.require_program()

    def require_program(self) -> None:
        """Raise `ConfigError` without the folder of the command, `CommandError` without its program."""
        self.settings.require_folder()
        if not self.command[0].startswith(_PYTHON_FIELD):
            resolve_executable(self.command[0], self.settings.folder)

    def require_command(self) -> None:
        """Raise `AutotuneError` unless there is a command whose placeholders can be filled in."""
        if not self.command:
            name = shlex.quote(str(self.config_path))
            sections = {key for key, value in self.settings.document.data.items() if isinstance(value, Mapping)}
            mistyped = closest(SECTION, sections - {SECTION})
            raise ConfigError(
                "there is no training command" + (f"; is {mistyped} meant to be {SECTION}?" if mistyped else ""),
                where=str(self.config_path),
                remedy="Set it once:\n"
                f"  {self.typed.command('init')} -- python train.py --config {name}\n"
                "or for this search only, after --:\n"
                f"  {self.typed.command('search')} -- python train.py --config {name}",
            )
        self.settings.argv(
            config=self.config_path,
            config_text=self.settings.trial_document.text,
            python=sys.executable,
            command=self.typed_command,
        )


def open_requested(request: "SearchRequest") -> Problem:
    """Open and check the problem of a request."""
    command = typed_tokens(request.trainer, request.config, Path.cwd())
    problem = open_problem(request.config, command=command, state_dir=request.state_dir, storage=request.storage)
    problem = limited(problem, request)
    problem.require_runnable()
    return problem


def open_problem(
    config: Path,
    *,
    command: Sequence[str] | None,
    state_dir: Path | None,
    machine: Machine | None = None,
    folder: Path | None = None,
    runs_in: Path | None = None,
    storage: str | None = None,
) -> Problem:
    """Read the config and detect the machine.

    Args:
        command: Typed command, split; None for the config's.
        machine: Simulated machine; None for this one.
        folder: Base of relative paths of further configs; None for the config's folder.
        runs_in: Working folder of the command; None for the section's, or the shell's for a typed command.
        storage: As typed.

    Raises:
        AutotuneError: The config is invalid.
    """
    settings = load_settings(config, folder=folder, typed_command=command, runs_in=runs_in)
    domains, env = _domains(settings), settings.section.env
    if machine is None:
        hardware = this_hardware(env, domains or {})
    else:
        hardware = Hardware(machine=machine, why_no_gpu="the machine is simulated")
    typed_command = with_further(command, settings.further, Path.cwd()) if command else None
    used = typed_command or settings.command
    values = settings.scalars
    is_read = isinstance(settings.document, ComposedDocument) or settings.are_opened_by_name
    unread: dict[str, str] = {}
    if used and settings.code and not is_read and not takes_values(used):
        unread = {path: _UNREAD for path in values if not path.startswith((ENV, CODE))}
    words = [word for part in used or () for word in part.split("=")]
    refused = {**unread, **of_other_sections(values, words), **settings.refused}
    if used and domains is None:
        refused |= dict.fromkeys(_rank_counts(values, used, settings.folder), _RANKS)
    # each rank has its own loader workers and threads
    own_cores = max(1, hardware.machine.cpu_cores // ranks_on_node(used or ()))
    space, skipped = build_space(values, domains, replace(hardware.machine, cpu_cores=own_cores), refused)
    if domains is None and not (used and _loads_by_pytorch(used, settings.folder)):
        space = replace(space, knobs=tuple(map(_with_workers, space.knobs)))
    return Problem(
        config_path=config,
        settings=settings,
        space=space,
        skipped=skipped,
        hardware=hardware,
        typed=TypedOptions(config=config, state_dir=state_dir, storage=storage),
        typed_command=typed_command,
        state=StateFolder.locate(config, explicit=state_dir, environ=os.environ),
        frameworks=framework_versions(_interpreter(used[0], settings.folder)) if used else {},
        address=_address(settings, storage) if machine is None else None,
        allowed=frozenset(knob.label for knob in space.knobs) if domains is not None else frozenset(),
    )


_UNREAD = "it would not reach the trainer: the command contains neither {config} nor a {key} of it"


_RANKS = "it is the number of ranks: other numbers change the training"


def _rank_counts(config: Iterable[str], command: Sequence[str], folder: Path) -> list[str]:
    """Return the keys that the trainer's code passes to Ray Train as the number of ranks."""
    found = []
    for path in trainer_files(command, folder):
        for names in Script(path=path, text=path.read_text("utf-8", "replace")).rank_counts:
            named = [key for key in config if key.rpartition(".")[2] in names]
            found += [key for key in named if names.issuperset(key.split("."))] or named
    return found


def _loads_by_pytorch(command: Sequence[str], folder: Path) -> bool:
    """Return whether the trainer's code has a loader known to work without workers."""
    scripts = (Script(path=path, text=path.read_text("utf-8", "replace")) for path in trainer_files(command, folder))
    loading = (one for one in scripts if "DataLoader" in one.text or "TrainingArguments" in one.text)
    return any(one.imports(name) for one in loading for name in ("torch", "torch_geometric", "transformers"))


def _with_workers(knob: Knob) -> Knob:
    """Return a knob without the choice of 0 workers, unless it is the baseline."""
    if traits_of(knob).counts != "workers" or knob.baseline == 0:
        return knob
    return knob.narrowed(choice for choice in knob.choices if choice != 0)


def _address(settings: Settings, typed: str | None) -> StorageAddress | None:
    """Return the storage: as typed, else of the environment, else of the section."""
    here, section = Path.cwd(), settings.section
    given = GivenAddress(text=typed, where="--storage", folder=here) if typed else None
    listed = None
    if section.storage:
        folder = settings.path.absolute().parent
        listed = GivenAddress(text=section.storage, where=section.place("storage"), folder=folder)
    return address_of(given, address_in_environment(os.environ, here), listed)


def _domains(settings: Settings) -> dict[str, tuple[Scalar, ...]] | None:
    """Return the choices of the user's own knobs, and of those in the code if only variables are listed.

    None to find known knobs by name.
    """
    knobs = settings.section.knobs
    if knobs is None:
        return None
    in_code = settings.code if settings.section.varies_environment_alone else ()
    found = (path for path in in_code if is_searched_by_default(path, settings.value(path)))
    choices: dict[str, tuple[Scalar, ...]] = dict.fromkeys(found, ())
    for path, one in knobs.items():
        choices[path] = ladder(one.low, one.high, step=one.step, log=one.log) if isinstance(one, Range) else one
    return choices


def _interpreter(program: str, cwd: Path) -> Path:
    """Guess the path of the trainer's interpreter, which affects the study's name."""
    if program.startswith(_PYTHON_FIELD):
        return Path(sys.executable)
    # Relative, so that it never equals autotune's own interpreter, whose packages count only if PATH finds it.
    for folder in [os.path.relpath(cwd), *os.environ.get("PATH", "").split(os.pathsep)]:
        candidate = Path(folder, program)
        if os.path.isfile(candidate):  # unlike `Path.is_file`, accepts any name
            return candidate
    return Path(program)


# Limits of a search: the effective batch, and knobs that change the training.


def limited(problem: Problem, options: "SearchOptions") -> Problem:
    """Return a problem with the limits of a search; raise ConfigError for an invalid one.

    Without a limit in the options or the section, a batch listed under ``knobs:`` varies as listed, others up to
    `DEFAULT_BATCH_LIMIT`.
    """
    problem = replace(problem, whole_space=problem.space)
    if options.same_training:
        excluded = frozenset(Label) - {Label.SAME_TRAINING}
        return replace(problem, space=same_training(problem.space), allowed=frozenset(), excluded=excluded)
    limit = _limit(problem, options.batch)
    if limit is not None and limit.is_fixed:
        problem = replace(problem, allowed=problem.allowed - {Label.BATCH}, excluded=frozenset({Label.BATCH}))
    elif options.batch is not None or problem.settings.section.batch is not None:
        problem = replace(problem, allowed=problem.allowed | {Label.BATCH})
    if limit is None or limit.is_free:
        return problem
    space = with_batch_fixed(problem.space) if limit.is_fixed else with_batch_up_to(problem.space, limit.factor)
    return replace(problem, space=space, batch_limit=limit, batch_remark=_limit_remark(problem.space, space, limit))


def growth_remark(problem: Problem, records: Iterable[TrialRecord]) -> str | None:
    """Return a sentence if `apply` has moved the batch limit, relative to the baseline, since the study began."""
    first = next((trial for trial in records if trial.purpose is Purpose.BASELINE), None)
    if first is None or problem.batch_limit is None:
        return None
    for knob in filter(is_batch_size, problem.space.knobs):
        began, now, largest = first.values.get(knob.path), knob.baseline, knob.choices[-1]
        if not (isinstance(began, int) and isinstance(now, int) and isinstance(largest, int)):
            continue
        if 0 < began < now < largest and largest > problem.batch_limit.factor * began:
            grown = f"{knob.path} was {began} when this study began and is {now} now: the search goes up to {largest}"
            return f"{grown}, {largest / began:g} times the first value. --batch same keeps it at {now}."
    return None


def _limit(problem: Problem, typed: str | None) -> BatchLimit | None:
    """Return the limit in force; None if the user's own list of sizes counts."""
    section = problem.settings.section
    if typed is not None:
        try:
            return parse_batch_limit(typed)
        except ValueError as error:
            raise ConfigError(str(error), where="batch", remedy="Without it, a search uses 4x.") from error
    if section.batch is not None:
        return section.batch
    return DEFAULT_BATCH_LIMIT if section.knobs is None else None


def _limit_remark(whole: Space, space: Space, limit: BatchLimit) -> str | None:
    if space.most_batch is not None:
        return f"Combinations of batch size and accumulation are searched up to {limit.factor:g} times today's batch."
    pairs = ((knob, space.knob(knob.path)) for knob in whole.knobs)
    cut = [(knob, left) for knob, left in pairs if len(left.choices) < len(knob.choices)]
    if not cut:
        return None
    if limit.is_fixed:
        return f"{' and '.join(_kept(knob) for _, knob in cut)}, because of batch: same."
    text = " and ".join(_up_to(knob, limit) for _, knob in cut)
    most = " and ".join(str(knob.choices[-1]) for knob, _ in cut)
    why = "a larger batch gives more samples per second, but each teaches less"
    return f"{text}: {why}. --batch free searches up to {most}."


def _kept(knob: Knob) -> str:
    if len(knob.choices) == 1:
        return f"{knob.path} stays {knob.baseline}"
    return f"{knob.path} is searched up to {knob.choices[-1]}, while accumulation compensates for it"


def _up_to(knob: Knob, limit: BatchLimit) -> str:
    today = f"effective {knob.batch.kept_up_to}" if knob.batch and knob.batch.kept_up_to else str(knob.baseline)
    return f"{knob.path} is searched up to {knob.choices[-1]}, at most {limit.factor:g} times today's {today}"
