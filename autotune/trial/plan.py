"""The plan of one run: everything decided before anything is started."""

import sys
from pathlib import Path

from autotune.folders.trial_folder import RunFolder
from autotune.records import RunPlan, Values
from autotune.search.problem import Setup
from autotune.settings.trackers import quiet_trackers


def plan_run(setup: Setup, values: Values, *, run: str) -> RunPlan:
    """Plans a run of a point.

    Args:
        setup: What is tuned, where.
        values: The point.
        run: Name of the run, which its folder gets too.

    Raises:
        ConfigError: The run's copy of the config, or its command line, cannot be made.
    """
    folder = setup.state.run(setup.study, run)
    keys = setup.space.keys(values)
    config_text = setup.settings.trial_text(keys, folder.outputs)
    argv = setup.settings.argv(
        command=setup.typed_command, config=folder.config, python=sys.executable, config_text=config_text
    )
    return RunPlan(
        run_id=f"{setup.study}/{run}",
        folder=folder.path,
        argv=argv,
        cwd=Path.cwd(),
        env=_environment(setup, keys, folder),
        config_text=config_text,
    )


def _environment(setup: Setup, keys: Values, folder: RunFolder) -> dict[str, str]:
    """What a run's environment gets; what the user says goes before what we would rather have."""
    wished = {
        **quiet_trackers(folder.outputs),
        # Python's own files beside the user's modules would be the one thing that every run leaves behind.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**wished, **setup.settings.trial_env(keys), "AUTOTUNE_CACHE_DIR": str(setup.state.cache)}
