"""Trainer of a search's trials, and the plan of one: everything decided before anything is started."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.config.load import Copy, Settings
from autotune.config.outputs import path_of, quiet_trackers, unquoted
from autotune.records import CONFIGS_VARIABLE, EACH_LOSS_VARIABLE, PHASE_VARIABLE, TrialExit, TrialPlan, Values
from autotune.trial.error_text import last_error
from autotune.trial.folder import TEMPORARY_VARIABLE, TrialFolder, has_space, temporary_folder
from autotune.trial.launch import Runner, Watch
from autotune.trial.state_folder import StateFolder


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """Trainer that trials start: its config, command and working place.

    Attributes:
        settings: The config and its ``autotune:`` section.
        typed_command: The command as typed in place of the config's, placeholders not filled in; None if it was not.
        study: Name of the study, and of the folder of its trials.
        apart: Folders and files that are autotune's own, the state folder among them.
        makes: Keys of outputs whose folder it makes itself, and refuses where it exists.
    """

    config_path: Path
    settings: Settings
    typed_command: tuple[str, ...] | None
    state: StateFolder
    study: str
    apart: tuple[Path, ...]
    makes: set[str] = field(default_factory=set)

    def make_folder(self, trial: str) -> TrialFolder:
        """Make the folder of a trial, in which its instruments keep what they read.

        Raises:
            TrialError: It cannot be made, or there is too little room for a trial.
        """
        self.state.require_space()
        folder = self.state.trial(self.study, trial)
        folder.create()
        return folder

    def run(
        self,
        runner: Runner,
        plan: TrialPlan,
        watch: Watch,
        deadline_s: float,
        *,
        fill_outputs: Callable[[Path], None] = lambda _outputs: None,
    ) -> TrialExit:
        """Make a planned trial, in its folder with all that is needed for the outputs that are pointed into it.

        What is a folder outside is one inside as well: many trainers write into one that they do not make. One that
        refuses it, as its last error says, is started again without it.

        Args:
            fill_outputs: Puts what training starts from into the folder of the trial's outputs.

        Raises:
            TrialError: The folder cannot be made, or the trainer cannot be started.
        """
        folder = TrialFolder(plan.folder)
        moved = self.settings.moved_outputs(folder.outputs)
        folders = {key for key, _, path in self.outputs() if os.path.isdir(path)} - self.makes
        made = {key: path for key, path in moved.items() if key in folders}
        folder.create(output_paths=moved.values(), output_folders=made.values())
        fill_outputs(folder.outputs)
        trial_exit = runner.run(plan, watch, deadline_s)
        error = last_error(trial_exit.stderr_tail, folder.stdout_tail()) if trial_exit.exit_code else ""
        refused = {key for key, path in made.items() if _says_it_exists(error, path)}
        if not refused:
            return trial_exit
        self.makes.update(refused)
        folder.discard_outputs()
        return self.run(runner, plan, watch, deadline_s, fill_outputs=fill_outputs)

    def outputs(self) -> Iterator[tuple[str, str, Path]]:
        """Yield each key that says where the trainer writes, its text, and the path that it may mean.

        A path is seen from where trials start, and from the config.
        """
        for key in self.settings.outputs.redirected:
            text = unquoted(self.settings.trial_document.leaf(key).text)
            for base in (self.settings.folder, self.config_path.absolute().parent):
                if (path := path_of(os.path.expandvars(text), base)) is not None:
                    yield key, text, path


def _says_it_exists(error: str, path: str) -> bool:
    named = re.search(rf"{re.escape(path.rstrip('/'))}(?![\w.-]|/\w)", error)
    return named is not None and re.search(r"(?<!not )\bexists?\b|not empty", error, re.IGNORECASE) is not None


_COMPILED = ("JAX_COMPILATION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


def plan_trial(
    trainer: Trainer, keys: Values, *, trial: str, phase_s: float | None = None, reads_each_loss: bool = False
) -> TrialPlan:
    """Plan a trial of a point.

    Args:
        keys: Every key of the config that the point sets.
        trial: Name of the trial, which its folder gets too.
        phase_s: Length of each phase of one that is taken through phases; None for the others.

    Raises:
        ConfigError: The trial's copy of the config, or its command line, cannot be made.
    """
    folder = trainer.state.trial(trainer.study, trial)
    further = trainer.settings.copies(keys, folder.path, folder.outputs)
    copy = further.pop("")
    argv = trainer.settings.argv(
        command=trainer.typed_command,
        config=copy.path,
        python=sys.executable,
        config_text=copy.text,
        outputs=folder.outputs,
        further=further,
        added=trainer.settings.overrides(keys, folder.outputs),
    )
    copies = {"": copy, **further} if trainer.settings.are_opened_by_name else {}
    return TrialPlan(
        trial_id=f"{trainer.study}/{trial}",
        folder=folder.path,
        argv=argv,
        cwd=trainer.settings.folder,
        env={
            **_environment(trainer, keys, folder),
            **({} if phase_s is None else {PHASE_VARIABLE: f"{phase_s:g}"}),
            **({EACH_LOSS_VARIABLE: "1"} if reads_each_loss else {}),
            **({CONFIGS_VARIABLE: _by_file(trainer, copies)} if copies else {}),
        },
        config_text=copy.text,
        config_name=copy.path.name,
        further_configs={one.path.name: one.text for one in further.values()},
    )


def _by_file(trainer: Trainer, copies: Mapping[str, Copy]) -> str:
    """Return the paths of copies as JSON, by those of the user's files."""
    files = {**trainer.settings.files, "": trainer.config_path}
    return json.dumps({os.path.abspath(files[prefix]): str(one.path) for prefix, one in copies.items()})


def _environment(trainer: Trainer, keys: Values, folder: TrialFolder) -> dict[str, str]:
    """Return the variables added to a trial's environment; the user's own values take precedence over our defaults."""
    wished = {
        **quiet_trackers(folder.outputs),
        # Else every trial would leave Python's own files beside the user's modules.
        "PYTHONDONTWRITEBYTECODE": "1",
        TEMPORARY_VARIABLE: str(temporary_folder(folder.path)),
        # What is compiled is kept from one trial to the next, unless torch.compile would split the path.
        **{
            name: str(trainer.state.cache / name.lower())
            for name in _COMPILED
            if name not in os.environ and not has_space(trainer.state.cache)
        },
    }
    return {**wished, **trainer.settings.trial_env(keys), "AUTOTUNE_CACHE_DIR": str(trainer.state.cache)}
