"""Known knobs found by name, and the space that they span."""

import pytest

from autotune.records import Gpu, Machine, Scalar
from autotune.space.find import build_space
from autotune.space.knob import Label
from autotune.space.space import Space, point_name, same_training, without_settling

CPU_ONLY = Machine(cpu_cores=2, cpu_model="test", memory_bytes=8 * 2**30)
GPU = Gpu(name="H200", uuid="GPU-1", memory_bytes=140 * 2**30)
ONE_GPU = Machine(cpu_cores=16, cpu_model="test", memory_bytes=64 * 2**30, gpus=(GPU,))
CONFIG: dict[str, Scalar] = {
    "data.batch_size": 8,
    "data.num_workers": 1,
    "data.cache": "none",
    "data.pad_to_fixed_length": False,
    "data.prefetch_to_gpu": False,
    "training.enable_graph_mode": True,
    "training.enable_xla_compilation": False,
    "training.mixed_precision": "float32",
    "training.learning_rate": 0.001,
}


def _space_of(config: dict[str, Scalar], machine: Machine = CPU_ONLY) -> Space:
    return build_space(config, None, machine, {})[0]


def test_the_machine_shapes_the_domains() -> None:
    """Without a GPU there is nothing to prefetch to, and float16 would be emulated."""
    on_cpu, on_gpu = _space_of(CONFIG), _space_of(CONFIG, ONE_GPU)
    assert "data.prefetch_to_gpu" not in {knob.path for knob in on_cpu.knobs}
    assert on_cpu.knob("training.mixed_precision").choices == ("float32", "mixed_bfloat16")
    assert "mixed_float16" in on_gpu.knob("training.mixed_precision").choices
    assert on_gpu.within_reach({}).knob("data.num_workers").choices[-1] == 32


def test_far_values_are_tried_only_within_reach() -> None:
    """Workers go up to two a core until a search asks for more; a user's own list has no such limit."""
    space = _space_of(CONFIG)
    near = space.within_reach({}).knob("data.num_workers")
    assert near.choices[-1] == 2 * CPU_ONLY.cpu_cores
    assert space.within_reach({"data.num_workers": 16.0}).knob("data.num_workers").choices[-1] == 16
    listed = build_space(CONFIG, {"data.num_workers": [1, 128]}, CPU_ONLY, {})[0]
    assert listed.within_reach({}) == listed


def test_all_xla_switches_are_one_knob() -> None:
    """Two switches of one thing move together; one that holds another value is left out, and named."""
    config: dict[str, Scalar] = {**CONFIG, "data.enable_xla": False, "model.use_xla": True}
    space, skipped = build_space(config, None, CPU_ONLY, {})
    knob = space.knob("training.enable_xla_compilation")
    assert knob.paths == ("training.enable_xla_compilation", "data.enable_xla")
    assert [item.path for item in skipped] == ["model.use_xla"]
    turned = {**space.baseline, knob.path: True}
    assert space.keys(turned)["data.enable_xla"] is True


def test_xla_needs_graph_mode_and_fixed_shapes() -> None:
    """A combination that cannot work is named, and a heuristic proposal sets the other knobs that a value needs."""
    space = _space_of(CONFIG)
    alone = {**space.baseline, "training.enable_xla_compilation": True}
    assert "pad_to_fixed_length" in str(space.why_infeasible(alone))
    turned = space.with_heuristic(space.baseline, "training.enable_xla_compilation", True)
    assert turned["data.pad_to_fixed_length"] is True
    assert space.why_infeasible(turned) is None


def test_what_the_user_runs_now_is_feasible() -> None:
    """The baseline's combination is always feasible, and may be kept while other knobs change."""
    config: dict[str, Scalar] = {**CONFIG, "training.enable_xla_compilation": True}
    space = _space_of(config)
    assert space.why_infeasible(space.baseline) is None
    assert space.why_infeasible({**space.baseline, "data.batch_size": 32}) is None


@pytest.mark.parametrize(
    ("machine", "choices"),
    [
        (CPU_ONLY, ("float32", "bfloat16")),
        (ONE_GPU, ("float32", "float16", "bfloat16")),
        (CPU_ONLY, ("bf16", "fp32")),
        (ONE_GPU, ("bf16", "fp32", "fp16")),
    ],
)
def test_types_of_numbers_are_spelled_as_the_config_spells_them(machine: Machine, choices: tuple[str, ...]) -> None:
    """As PyTorch's trainers write them; without a GPU, float16 is no choice."""
    assert _space_of({"dtype": choices[0]}, machine).knob("dtype").choices == choices


def test_same_training_freezes_batch_and_precision() -> None:
    """``--same-training`` keeps every key in its points, so that it shares the study's record."""
    space = same_training(_space_of(CONFIG))
    assert space.knob("data.batch_size").choices == (8,)
    assert space.knob("training.mixed_precision").choices == ("float32",)
    assert len(space.knob("data.cache").choices) == 3
    assert set(space.baseline) == set(_space_of(CONFIG).baseline)


def test_knobs_of_the_users_own_are_not_taken_for_harmless() -> None:
    """A key that the table does not know may change the training, so `--same-training` leaves it alone."""
    space, _ = build_space({"model.width": 4}, {"model.width": [2, 4, 8]}, CPU_ONLY, {})
    assert space.knob("model.width").label is Label.UNKNOWN
    assert not space.is_same_training({"model.width": 8})


def test_a_value_that_cannot_be_edited_is_left_out_with_its_reason() -> None:
    """An alias cannot be changed alone, so it is no knob here, and the user is told why."""
    space, skipped = build_space(CONFIG, None, CPU_ONLY, {"data.batch_size": "it is an alias"})
    assert "data.batch_size" not in space.baseline
    assert ("data.batch_size", "it is an alias") in {(item.path, item.why) for item in skipped}


def test_points_are_named_by_their_values_alone() -> None:
    """The same values have the same name in any order; a switch is not a number."""
    assert point_name({"a": 1, "b": 2}) == point_name({"b": 2, "a": 1.0})
    assert point_name({"a": 1}) != point_name({"a": True})


def test_a_cache_that_takes_too_long_to_fill_stays_as_it_is() -> None:
    """The cache is not turned off either: without one, anything looks fast beside a cache that is being filled."""
    domain = {"data.cache": ("none", "memory", "disk"), "data.batch_size": (8, 16)}
    for cache in ("memory", "none"):
        space, _ = build_space({"data.cache": cache, "data.batch_size": 8}, domain, CPU_ONLY, {})
        assert without_settling(space).knob("data.cache").choices == (cache,)
