"""Environment that keeps experiment trackers quiet: no dashboard fills with short trials, no upload slows them down.

Only documented settings of the trackers are used, and only through the environment, so a trainer's code can override
them. The user's own variables under ``env:`` take precedence.

* Weights & Biases: ``WANDB_MODE`` (docs.wandb.ai, "environment variables"): ``disabled`` makes every call a no-op.
* MLflow: no switch; ``MLFLOW_TRACKING_URI`` is set to the trial's own folder. Versions from 3.13 refuse a folder
  without ``MLFLOW_ALLOW_FILE_STORE``, older ones ignore that variable.
* Comet: ``COMET_START_ONLINE`` is for ``comet_ml.start()``; what is then logged offline goes to
  ``COMET_OFFLINE_DIRECTORY``. ``COMET_MODE`` is read by transformers. ``Experiment()`` has no such switch.
* Neptune: both its clients have the mode ``offline`` (``disabled`` is known to the newer one only, ``debug`` to the
  older), and each a variable for the folder.
* ClearML: ``CLEARML_OFFLINE_MODE``; offline data go into its cache folder, which data sets share.
* SwanLab: ``SWANLAB_MODE``.

The Hugging Face Hub is left as it is: ``HF_HUB_OFFLINE`` would also stop downloads that a trainer may need. Keys
that make a trainer upload are named instead (`autotune.settings.outputs`).
"""

from collections.abc import Mapping
from pathlib import Path


def quiet_trackers(outputs: Path) -> Mapping[str, str]:
    """Return the environment variables that keep trackers quiet.

    Args:
        outputs: The folder of the trial's outputs, which is deleted with them.
    """
    neptune = str(outputs / "neptune")
    return {
        "WANDB_MODE": "disabled",
        "MLFLOW_TRACKING_URI": str(outputs / "mlflow"),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "COMET_MODE": "DISABLED",
        "COMET_START_ONLINE": "false",
        "COMET_OFFLINE_DIRECTORY": str(outputs / "comet"),
        "NEPTUNE_MODE": "offline",
        "NEPTUNE_DATA_DIRECTORY": neptune,
        "NEPTUNE_LOG_DIRECTORY": neptune,
        "CLEARML_OFFLINE_MODE": "1",
        "SWANLAB_MODE": "disabled",
    }
