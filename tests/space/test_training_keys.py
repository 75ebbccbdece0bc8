"""Keys of training that are no knobs: the learning rate and the seed, by their names."""

import pytest

from autotune.search.race import LearningRate, learning_rate, seed


@pytest.mark.parametrize(
    ("scalars", "path"),
    [
        ({"training.learning_rate": 1e-3, "training.epochs": 3}, "training.learning_rate"),
        ({"lr": 0.1, "min_lr": 1e-5, "warmup_lr": 1e-6}, "lr"),
        ({"optimizer.lr": 0.1, "scheduler.max_lr": 0.2}, "optimizer.lr"),
        ({"train.baseLr": 0.1}, "train.baseLr"),
        ({"optim.peak_lr": 0.1, "optim.lr_decay": 0.5}, "optim.peak_lr"),
        ({"generator.learning_rate": 0.1, "discriminator.learning_rate": 0.2}, "generator.learning_rate"),
    ],
)
def test_the_learning_rate_is_known_by_its_name(scalars: dict[str, float], path: str) -> None:
    """Rates of schedules and of other networks are none."""
    found = learning_rate(scalars)
    assert found is not None
    assert found.path == path


@pytest.mark.parametrize(
    "scalars",
    [
        *({"batch_size": 8}, {"learning_rate": "auto"}, {"learning_rate": 0.0}, {"lr": True}, {"min_lr": 0.1}),
        {"encoder.lr": 0.1, "decoder.lr": 0.2},
    ],
)
def test_what_may_be_another_rate_is_none(scalars: dict[str, float]) -> None:
    """Nothing is scaled that is not known."""
    assert learning_rate(scalars) is None


@pytest.mark.parametrize(
    ("optimizer", "scaled"),
    [
        ({"optimizer": "sgd"}, 0.4),
        ({"optimizer.name": "SGD"}, 0.4),
        ({"optimizer._target_": "torch.optim.SGD"}, 0.4),
        ({"optimizer.type": "nesterov"}, 0.4),
        ({"optimizer": "adamw"}, 0.2),
        ({}, 0.2),
    ],
)
def test_it_goes_with_the_batch_or_with_its_square_root(optimizer: dict[str, str], scaled: float) -> None:
    """Linear for SGD; the root for Adam, and where the optimizer is not known."""
    found = learning_rate({"lr": 0.1, **optimizer})
    assert isinstance(found, LearningRate)
    assert found.scaled(4.0) == scaled


def test_the_scaled_rate_has_three_digits() -> None:
    """A person reads it in the config."""
    assert LearningRate(path="lr", value=3e-4, is_linear=False).scaled(2.0) == 4.24e-4


@pytest.mark.parametrize(
    ("scalars", "found"),
    [
        ({"seed": 3}, ("seed", 3)),
        ({"training.random_seed": 0}, ("training.random_seed", 0)),
        ({"run.manualSeed": 1}, ("run.manualSeed", 1)),
        ({"seed": True}, None),
        ({"seed": None}, None),
        ({"seed": -1}, None),
        ({"data.seed": 1, "model.seed": 2}, None),
        ({"seeds": 5}, None),
    ],
)
def test_the_seed_is_the_one_key_of_that_name(scalars: dict[str, int], found: tuple[str, int] | None) -> None:
    """Of two, neither is turned."""
    assert seed(scalars) == found
