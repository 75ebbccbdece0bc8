"""Table of the deep-learning frameworks that autotune supports.

To add one: add a row, and its observer to `observe.OBSERVERS` in `autotune.trainee`, which cannot import this module.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Framework.

    Attributes:
        module: Import name.
        distributions: Packages that install it.
        library: Package with its shared libraries; None if it computes with another framework.
        gpu_build: How to install its GPU build; None if `diagnose` does not query the framework.
        built_on_it: Packages that train with it.
    """

    name: str
    module: str
    distributions: tuple[str, ...]
    library: str | None
    gpu_build: str | None = None
    built_on_it: tuple[str, ...] = ()


FRAMEWORKS = (
    Framework(
        name="TensorFlow",
        module="tensorflow",
        distributions=("tensorflow", "tensorflow-cpu"),
        library="tensorflow",
        gpu_build="pip install 'tensorflow[and-cuda]'",
    ),
    Framework(name="Keras", module="keras", distributions=("keras",), library=None),
    Framework(
        name="PyTorch",
        module="torch",
        distributions=("torch",),
        library="torch",
        gpu_build="see pytorch.org/get-started for the command",
        built_on_it=("lightning", "transformers"),
    ),
    Framework(name="JAX", module="jax", distributions=("jax",), library="jaxlib"),
)
