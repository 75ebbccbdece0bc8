"""Environment that an entry keeps for its search: what trainers are known to depend on, and never a secret."""

import re
from collections.abc import Iterable, Mapping

from autotune.settings.secrets import is_secret_name, masked_text

_USUAL = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|TZ|TMPDIR|VIRTUAL_ENV|NO_COLOR"
    r"|AUTOTUNE_DIR|AUTOTUNE_STORAGE|XDG_(?:STATE|CONFIG|CACHE|DATA)_HOME"
    r"|(?:LC|LD|CUDA|CUDNN|NCCL|NVIDIA|OMP|MKL|OPENBLAS|KMP|GOMP|MALLOC|CONDA|MAMBA|TF|XLA|JAX|KERAS|PYTORCH)_.*"
    r"|(?:PYTHON|TORCH).*",
    re.DOTALL,
)


def kept_environment(environ: Mapping[str, str], further: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables that are kept on disk, for a search that starts when nobody is there.

    Args:
        environ: The environment of whoever asks for the search.
        further: Names that are kept besides, because the user says so; a secret is kept only if it is named here.
    """
    named = set(further)
    return {
        name: value
        for name, value in environ.items()
        if name in named or (_USUAL.fullmatch(name) and not is_secret_name(name) and masked_text(value) == value)
    }
