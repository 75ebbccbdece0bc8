"""Spaces whose effective batch is limited."""

from itertools import product

import pytest

from autotune.records import Machine, Scalar
from autotune.space.find import build_space
from autotune.space.knob import Label, same_scalar
from autotune.space.space import (
    Space,
    effective_batch_ratio,
    same_training,
    with_batch_fixed,
    with_batch_up_to,
    without_settling,
)

MACHINE = Machine(cpu_cores=4, cpu_model="test", memory_bytes=8 * 2**30)
Config = dict[str, Scalar]


def _space(config: Config, domains: dict[str, tuple[Scalar, ...]] | None = None) -> Space:
    return build_space(config, domains, MACHINE, {})[0]


@pytest.mark.parametrize(
    ("factor", "choices", "heuristic_values"),
    [(4.0, (4, 8, 16, 32), (32,)), (3.0, (4, 8, 16), (16,)), (1.0, (4, 8), ()), (99.0, None, (32, 64, 128))],
)
def test_larger_sizes_are_left_out_and_smaller_ones_stay(
    factor: float, choices: tuple[int, ...] | None, heuristic_values: tuple[int, ...]
) -> None:
    """Relative to today's size; the largest that is left is what an expert would try."""
    whole = _space({"batch_size": 8, "num_workers": 1})
    knob = with_batch_up_to(whole, factor).knob("batch_size")
    assert knob.choices == (choices or whole.knob("batch_size").choices)
    assert knob.heuristic_values == heuristic_values
    assert with_batch_up_to(whole, factor).knob("num_workers") == whole.knob("num_workers")


def test_what_leaves_the_effective_batch_as_it_is_is_not_limited() -> None:
    """Sizes that accumulation or the trainer itself makes up for, and that of validation."""
    kept = _space({"batch_size": 8, "grad_accum": 16}, {"batch_size": (8, 64)})
    part = _space({"micro_batch_size": 4, "global_batch_size": 64})
    for_validation = _space({"eval.batch_size": 4}, {"eval.batch_size": (4, 64)})
    for space in (kept, part, for_validation):
        assert with_batch_up_to(space, 2.0) == space
    assert with_batch_fixed(kept) == kept
    assert with_batch_fixed(part) == part


def test_of_a_batch_and_its_accumulation_the_product_counts() -> None:
    """A smaller batch may be accumulated more often; neither by itself is too large."""
    domains: dict[str, tuple[Scalar, ...]] = {"batch_size": (4, 8, 32), "grad_accum": (1, 2, 8)}
    whole = _space({"batch_size": 8, "grad_accum": 1}, domains)
    space = with_batch_up_to(whole, 4.0)
    assert space.choices == whole.choices
    for size, steps in product((4, 8, 32), (1, 2, 8)):
        why = space.why_infeasible({"batch_size": size, "grad_accum": steps})
        assert (why is None) == (size * steps <= 32)
    why = space.why_infeasible({"batch_size": 32, "grad_accum": 8})
    assert why == "the effective batch would be 32x today's; the limit is 4x"
    assert without_settling(space).most_batch == 4.0
    assert with_batch_fixed(space).size == 1


def test_a_fixed_batch_stays_a_knob() -> None:
    """So that the study is the same; what shares a batch is not turned either."""
    whole = _space({"batch_size": 8, "bucket_by_length": False, "mixed_precision": "float32", "num_workers": 1})
    space = with_batch_fixed(whole)
    assert space.choices == {**whole.choices, "batch_size": (8,), "bucket_by_length": (False,)}
    assert space.knob("batch_size").heuristic_values == ()


@pytest.mark.parametrize(
    ("present", "domain", "choices"),
    [(8, ("8", "16", "32"), (8, 16, 32)), ("8", ("8", "16", "32"), ("8", "16", "32")), ("8", (16, 32), (16, 32, "8"))],
)
def test_sizes_that_are_written_as_texts_are_sizes(
    present: Scalar, domain: tuple[Scalar, ...], choices: tuple[Scalar, ...]
) -> None:
    """They are listed so, or the config has them so; what the config has as a number stays one."""
    whole = _space({"batch_size": present}, {"batch_size": domain})
    knob = whole.knob("batch_size")
    assert (knob.choices, knob.label) == (choices, Label.BATCH)
    assert [same_scalar(choice, value) for choice, value in zip(knob.choices, choices, strict=True)] == [True] * 3
    assert effective_batch_ratio(whole.knobs, {"batch_size": domain[-1]}) == 4.0
    assert {str(size) for size in with_batch_up_to(whole, 2.0).knob("batch_size").choices} == {"8", "16"}
    kept = with_batch_fixed(_space({"batch_size": present, "accum_steps": 2}, {"batch_size": domain}))
    assert kept.knob("batch_size").keys(choices[1] if present == 8 else domain[-2])["accum_steps"] == 1
    assert [same_scalar(choice, present) for choice in kept.knob("batch_size").choices] == [True, False]


def test_a_text_that_is_no_size_is_a_key_of_unknown_effect() -> None:
    """As a number that is listed beside texts of another kind."""
    for present, domain in ((8, ("8", "auto")), ("8", ("8", "auto")), ("auto", ("auto", "8"))):
        assert _space({"batch_size": present}, {"batch_size": domain}).knob("batch_size").label is Label.UNKNOWN


DEEPSPEED: Config = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
}


@pytest.mark.parametrize(
    ("config", "part", "steps", "devices"),
    [
        (DEEPSPEED, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", 1),
        ({**DEEPSPEED, "train_batch_size": 64}, "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", 2),
        (
            {"train.per_device_train_batch_size": 8, "train.gradient_accumulation_steps": 4},
            "train.per_device_train_batch_size",
            "train.gradient_accumulation_steps",
            1,
        ),
        (
            {"data.batch_size": 8, "trainer.accumulate_grad_batches": 4},
            "data.batch_size",
            "trainer.accumulate_grad_batches",
            1,
        ),
        (
            {"global_batch_size": 32, "micro_batch_size": 8, "accum_steps": 4},
            "micro_batch_size",
            "accum_steps",
            1,
        ),
    ],
)
def test_keys_that_make_up_one_batch_move_together(config: Config, part: str, steps: str, devices: int) -> None:
    """Fewer batches are accumulated of larger ones, up to the effective batch of today: that is the same training."""
    space = with_batch_up_to(_space(config), 4.0)
    assert [knob.path for knob in space.knobs] == [part]
    knob = space.knob(part)
    assert knob.choices == (4, 8, 16, 32, 64, 128)
    written = {choice: space.keys({part: choice}) for choice in knob.choices}
    assert [written[choice][steps] for choice in knob.choices] == [8, 4, 2, 1, 1, 1]
    for whole in [path for path in config if path not in (part, steps)]:
        assert [written[choice][whole] for choice in knob.choices] == [
            devices * max(32, choice if isinstance(choice, int) else 0) for choice in knob.choices
        ]
    assert [space.is_same_training({part: choice}) for choice in knob.choices] == [True] * 4 + [False] * 2
    assert same_training(space).knob(part).choices == (4, 8, 16, 32)
    assert effective_batch_ratio(space.knobs, {part: 16}) == 1.0
    assert effective_batch_ratio(space.knobs, {part: 128}) == 4.0
    assert knob.batch is not None
    assert knob.batch.change(8, 128).endswith("changes from 32 to 128")


def test_keys_that_do_not_make_up_one_batch_stay_knobs_of_their_own() -> None:
    """Products that differ, several accumulations, nothing that is accumulated; a key that cannot be edited."""
    odd = _space({**DEEPSPEED, "train_batch_size": 33})
    assert {knob.path for knob in odd.knobs} == {"train_batch_size", "train_micro_batch_size_per_gpu"}
    for config in ({"batch_size": 8, "accum_steps": 1}, {"batch_size": 8, "a.accum_steps": 2, "b.accum_steps": 2}):
        (knob,) = _space(config).knobs
        assert not knob.carries
    refused = build_space(DEEPSPEED, None, MACHINE, {"gradient_accumulation_steps": "it is fixed by set:"})[0]
    assert all(not knob.carries for knob in refused.knobs)


def test_a_batch_that_accumulation_follows_may_be_kept() -> None:
    """Then it ends at the effective batch of today; a larger one is another training."""
    (knob,) = with_batch_fixed(_space(DEEPSPEED)).knobs
    assert knob.choices == (4, 8, 16, 32)
