"""Knobs found in a config, and the keys that move together."""

from itertools import product

import pytest

from autotune.records import Gpu, Machine, Scalar, Values
from autotune.space.find import build_space, of_other_sections
from autotune.space.knob import Knob, Label
from autotune.space.space import Space, same_training, with_batch_up_to


def _machine(gpus: int | tuple[str, ...] = 0) -> Machine:
    """Return a machine with so many GPUs that are alike, or with those of these names."""
    names = gpus if isinstance(gpus, tuple) else ("H200",) * gpus
    found = tuple(Gpu(name=name, uuid=f"GPU-{i}", memory_bytes=140 * 2**30) for i, name in enumerate(names))
    return Machine(cpu_cores=4, cpu_model="test", memory_bytes=8 * 2**30, gpus=found)


def _knob(config: dict[str, Scalar], path: str, **more: object) -> Knob:
    """Return the knob of a config found by its name."""
    return build_space(config, None, _machine(), {}, **more)[0].knob(path)  # type: ignore[arg-type]


def _placed(data: Scalar, model: Scalar, machine: Machine) -> Space:
    """Return the space of a config that says which GPU is for data and model, and nothing else."""
    return build_space({"data.data_gpu": data, "model_gpu": model}, None, machine, {})[0]


def _keys(space: Space, path: str, value: Scalar) -> dict[str, Scalar]:
    """Return the config's keys and values with one knob changed."""
    return space.keys({**space.baseline, path: value})


@pytest.mark.parametrize("name", ["batch_size", "batch-size", "batchSize", "BATCH_SIZE", "per_device_train_batch_size"])
def test_keys_are_found_however_their_words_are_joined(name: str) -> None:
    """YAML files of all schools: snake, kebab, camel, upper case."""
    assert _knob({f"train.{name}": 8}, f"train.{name}").kind == "batch_size"


@pytest.mark.parametrize(
    "section", ["model.validation_ds", "valid_dataloader_opts", "eval", "data.testLoader", "dev_set"]
)
def test_what_is_for_validation_is_no_knob(section: str) -> None:
    """No trial reaches validation, so its batch has no effect; and the user learns why it is left out."""
    config: dict[str, Scalar] = {"train.batch_size": 8, f"{section}.batch_size": 4}
    space, skipped = build_space(config, None, _machine(), {})
    assert list(space.baseline) == ["train.batch_size"]
    assert [(one.path, "validation" in one.why) for one in skipped] == [(f"{section}.batch_size", True)]


def test_a_switch_moves_its_likes_though_they_are_not_listed() -> None:
    """One XLA switch on and one off is a config that nobody means."""
    config: dict[str, Scalar] = {"data.enable_xla": False, "training.enable_xla_compilation": False}
    path = "training.enable_xla_compilation"
    space, _ = build_space(config, {path: (False, True)}, _machine(), {})
    assert _keys(space, path, True) == {path: True, "data.enable_xla": True}
    assert _keys(space, path, False) == config


PLACEMENTS = {None: None, 1: 0, 0: 1}
"""The GPU of the data at each GPU of the model: one GPU for both, and one for each in both ways."""


@pytest.mark.parametrize(
    ("data", "model", "tried"),
    [
        *((None, None, PLACEMENTS), (0, 1, PLACEMENTS), (1, 0, PLACEMENTS)),
        *((0, 0, {0: 0, 1: 0}), (1, 1, {1: 1, 0: 1}), (2, 0, {0: 2, 2: 0, None: None})),
    ],
)
def test_a_placement_is_one_knob_that_writes_both_keys(data: Scalar, model: Scalar, tried: Values) -> None:
    """One GPU for both, or one for each, in both ways where they are unlike; a pair that is half set is never tried."""
    knob = _placed(data, model, _machine(gpus=("A10", "H200", "T4"))).knob("model_gpu")
    assert (knob.label, knob.baseline) == (Label.SAME_TRAINING, model)
    assert {choice: knob.keys(choice)["data.data_gpu"] for choice in knob.choices} == tried
    apart = [choice for choice, other in tried.items() if choice != other and choice != model]
    assert set(knob.heuristic_values) == set(apart)


@pytest.mark.parametrize(
    ("domain", "tried"), [((None, 0, 1), PLACEMENTS), ((None, 1), {None: None, 1: 0}), ((None, 2), {None: None, 2: 0})]
)
def test_the_users_own_placements_are_whole_pairs(domain: tuple[Scalar, ...], tried: dict[Scalar, Scalar]) -> None:
    """A list of GPUs for the model is taken as it is, also where no GPU is seen; the data's moves with it."""
    config: dict[str, Scalar] = {"data.data_gpu": None, "model_gpu": None}
    knob = build_space(config, {"model_gpu": domain}, _machine(), {})[0].knob("model_gpu")
    assert {choice: knob.keys(choice)["data.data_gpu"] for choice in knob.choices} == tried


@pytest.mark.parametrize(
    ("gpus", "data", "model", "why"),
    [(1, 0, 0, "there is one"), (0, None, None, "there is none"), (2, 0, None, "unknown")],
)
def test_there_is_nothing_to_place_with_one_gpu(gpus: int, data: Scalar, model: Scalar, why: str) -> None:
    """Nor where one of the two is not set, because what that means is not known; and the reason is said."""
    space, skipped = build_space({"data_gpu": data, "model_gpu": model}, None, _machine(gpus), {})
    assert space.knobs == ()
    assert [(one.path, why in one.why) for one in skipped] == [("model_gpu", True)]


def test_a_buffer_between_gpus_exists_only_where_there_are_two() -> None:
    """Under one GPU for both its depth stays as it is; the first proposal that turns it places data and model apart."""
    config: dict[str, Scalar] = {"data_gpu": None, "model_gpu": None, "pipeline_buffer_size": 16}
    space, _ = build_space(config, None, _machine(gpus=("A10", "H200")), {})
    depths = space.knob("pipeline_buffer_size").choices
    assert depths == (1, 2, 4, 8, 16)
    for model, depth in product(PLACEMENTS, depths):
        why = space.why_infeasible({"model_gpu": model, "pipeline_buffer_size": depth})
        assert (why is None) == (model is not None or depth == 16)
    why = space.why_infeasible({"model_gpu": None, "pipeline_buffer_size": 4})
    assert why == "pipeline_buffer_size has no effect with model_gpu: None"
    together = space.with_heuristic({"model_gpu": 1, "pipeline_buffer_size": 4}, "model_gpu", None)
    assert together == space.baseline


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"batch_size": 8}, "The effective batch changes from 8 to 64"),
        ({"per_device_batch_size": 8}, "The effective batch of each device changes from 8 to 64"),
        ({"batch_size_per_gpu": 8}, "The effective batch of each device changes from 8 to 64"),
        ({"global_batch_size": 8, "grad_accum": 4}, "The effective batch of all devices together changes from 8 to 64"),
        ({"batch_size": 8, "trainer.accumulate_grad_batches": 4}, "changes from 32 to 64"),
        ({"batch_size_per_gpu": 8, "grad_accum": 2}, "of each device changes from 16 to 64"),
        (
            {"a.batch_size": 8, "b.batch_size": 8, "grad_accum": 4},
            "changes from 32 to 256 (8 and 64, accumulated 4 times)",
        ),
    ],
)
def test_the_effective_batch_is_told_as_far_as_the_names_say_it(config: dict[str, Scalar], said: str) -> None:
    """Per device, over all devices, or unsaid; with what is accumulated."""
    counted = _knob(config, next(iter(config))).batch
    assert counted is not None
    assert counted.change(8, 64).endswith(said)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"batch_size": 8}, "The effective batch changes from 16 to 128 (8 and 64, on each of 2 devices)"),
        ({"batch_size_per_gpu": 8}, "The effective batch changes from 16 to 128 (8 and 64, on each of 2 devices)"),
        ({"batch_size": 8, "grad_accum": 4}, "changes from 64 to 128 (8 and 64, on each of 2 devices)"),
    ],
)
def test_the_effective_batch_counts_the_devices_that_were_seen(config: dict[str, Scalar], said: str) -> None:
    """Whatever the name says of them."""
    counted = _knob(config, next(iter(config))).batch
    assert counted is not None
    assert counted.change(8, 64, 2).endswith(said)


def test_a_global_batch_stays_where_each_devices_part_can_be_searched() -> None:
    """The trainer accumulates up to the global batch by itself: the per-device batch is free."""
    config: dict[str, Scalar] = {"model.micro_batch_size": 4, "model.global_batch_size": 24}
    space, skipped = build_space(config, None, _machine(), {})
    assert space.knob("model.micro_batch_size").choices == (2, 4, 8)
    assert space.is_same_training({"model.micro_batch_size": 8})
    assert [one.path for one in skipped] == ["model.global_batch_size"]


def test_accumulation_makes_up_for_another_batch() -> None:
    """Batch x accumulation stays where it can, so it is the same training; sizes that do not divide are left out."""
    config: dict[str, Scalar] = {"data.batch_size": 12, "optim.grad_accum": 2}
    domain: dict[str, tuple[Scalar, ...]] = {"data.batch_size": (4, 5, 6, 8, 12, 24, 48)}
    space, _ = build_space(config, domain, _machine(), {})
    knob = space.knob("data.batch_size")
    keys = [_keys(space, knob.path, choice) for choice in knob.choices]
    written = [(one["data.batch_size"], one["optim.grad_accum"]) for one in keys]
    assert written == [(4, 6), (6, 4), (8, 3), (12, 2), (24, 1), (48, 1)]
    assert [space.is_same_training({knob.path: choice}) for choice in knob.choices] == [True] * 5 + [False]
    assert same_training(space).knob("data.batch_size").choices == knob.choices[:-1]


def test_what_moves_with_a_batch_is_part_of_the_point() -> None:
    """The same batch accumulated twice as often is another training, and never pooled with the first."""
    spaces = [build_space({"batch_size": 8, "grad_accum": steps}, None, _machine(), {})[0] for steps in (2, 4)]
    names = [space.name({"batch_size": 4}) for space in spaces]
    assert names[0] != names[1]
    assert spaces[0].is_named(names[0], {"batch_size": 4})
    assert not spaces[1].is_named(names[0], {"batch_size": 4})
    assert not spaces[0].is_named(names[0], {"batch_size": 5})


def test_what_only_workers_have_exists_with_workers_only() -> None:
    """Where it stands in the code, the call is made without it; a config's key would be an error of the trainer's."""
    loader = "code:train.py:4 DataLoader"
    space, _ = build_space({f"{loader}.num_workers": 0, f"{loader}.persistent_workers": False}, None, _machine(), {})
    kept = {f"{loader}.persistent_workers": True}
    assert "no effect" in (space.why_infeasible({**space.baseline, **kept}) or "")
    assert space.why_infeasible({f"{loader}.num_workers": 2, **kept}) is None


@pytest.mark.parametrize(("gpus", "workers", "is_there"), [(0, False, True), (1, False, False), (1, True, True)])
def test_the_threads_of_a_script_vary_beside_a_loader_or_without_a_gpu(gpus: int, workers: bool, is_there: bool):
    """Else the GPU makes the steps, and nobody wants the cores."""
    threads = "code:train.py:2 torch.set_num_threads"
    config: dict[str, Scalar] = {"num_workers": 2, threads: 0}
    config |= {"code:train.py:9 DataLoader.num_workers": 0} if workers else {}
    space, _ = build_space(config, None, _machine(gpus), {})
    found = {knob.path: knob.heuristic_values for knob in space.knobs}
    assert (threads in found) is is_there
    assert found.get(threads, (2,)) == (2,), "half of the cores are left to what loads"


def test_of_a_table_of_trainings_the_one_counts_that_the_command_names() -> None:
    """As in the files of RL Zoo: a section for each environment, all with the same keys."""
    names = ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v2")
    config: dict[str, Scalar] = {f"{name}.{key}": 64 for name in names for key in ("batch_size", "n_steps")}
    others = of_other_sections(config, ["train.py", "--env", "Acrobot-v1"])
    assert {path.partition(".")[0] for path in others} == set(names) - {"Acrobot-v1"}
    space, skipped = build_space(config, None, _machine(), others)
    assert [knob.path for knob in space.knobs] == ["Acrobot-v1.batch_size"]
    assert {one.why for one in skipped} == {"it is not in section Acrobot-v1, which the command names"}
    assert of_other_sections(config, ["train.py"]) == {}
    assert of_other_sections({"train.batch_size": 8, "eval.batch_size": 8, "data.workers": 2}, ["train"]) == {}


def test_a_batch_of_tokens_has_the_limit_of_a_batch() -> None:
    """However it is counted: a larger one is another training."""
    space, _ = build_space({"batch_bins": 1000}, None, _machine(), {})
    assert with_batch_up_to(space, 4.0).knob("batch_bins").choices[-1] == 4000
