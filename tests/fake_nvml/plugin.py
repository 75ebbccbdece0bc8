"""Lends fake GPUs to the tests: the fixtures below; `tests/conftest.py` names this plugin.

The fake driver stands at NVML's own boundary, so that the unmodified ``pynvml`` runs where there is no GPU.
`scenario` says what the GPUs do, `busy_writer` is what fake trainers say with when their kernels run, `library` builds
the C sources here (begin with call.c) and makes machines of them, and `plugin` has the fixture ``fake_gpu``:

    machine = fake_gpu(Scenario(gpus=(Gpu(busy_percent=Square(10, 90, period_s=2.0)),)), at_s=20)
    machine.run("nvmlInit(); tell(nvmlDeviceGetUtilizationRates(nvmlDeviceGetHandleByIndex(0)).gpu)")
    subprocess.run(command, env=machine.env)
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_nvml.library import NO_COMPILER, FakeGpu, build
from tests.fake_nvml.scenario import Scenario


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver, built once, under the name that `pynvml` loads; skips the test where there is no C compiler."""
    library = tmp_path_factory.mktemp("fake_nvml") / "libnvidia-ml.so.1"
    try:
        build(library)
    except FileNotFoundError:
        pytest.skip(NO_COMPILER)
    return library


@pytest.fixture
def fake_gpu(nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., FakeGpu]:
    """Makes machines with fake GPUs: ``fake_gpu(scenario, at_s=20)`` with a frozen clock, else with the real one.

    Options: ``at_s``, the frozen time in seconds since the scenario's origin; without it ``began_s_ago``, how long
    the origin lies back on the machine's clock.
    """

    def make(scenario: Scenario | None = None, *, at_s: float | None = None, began_s_ago: float = 0.0) -> FakeGpu:
        folder = tmp_path_factory.mktemp("machine")
        return FakeGpu(nvml_library, folder, scenario or Scenario(), at_s=at_s, began_s_ago=began_s_ago)

    return make
