"""Peers: other tuning methods as their users run them, with their own order of trials and their own end.

Each is a generator: it yields the next point and is sent its measured speed in samples per second, None for a trial
that gave no number. All begin with the baseline, all answer with the best single measurement, and none knows which
combinations cannot work. As a sampler of Optuna each can propose the points of our tuner, too.
"""

import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import product
from math import dist
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from autotune.records import Scalar, Values
from autotune.sampler.config_sampler import distribution_of
from autotune.space.knob import Knob, same_scalar
from autotune.space.space import Space

Proposals = Generator[Values, float | None, None]
"""Generator that yields points and is sent speeds; it returns when the method ends."""

_Point = tuple[int, ...]  # positions among the choices

_MOST_DRAWS = 100_000  # of the random search: more than any budget pays for
_WITHOUT_GAIN = 5
_RADIUS = 3
_LEAST_MEASURED = 3
_STEP_BOUNDS = (0.09, 0.3, 1.0)  # a pull above the first of them moves by 1, above the second by 2, ...
_MOST_VISITS = 2


def random_search(space: Space, seed: int) -> Proposals:
    """Draw from all combinations uniformly, without repeats (Bergstra & Bengio 2012, on a finite space)."""
    yield space.baseline
    baseline = space.name(space.baseline)
    sizes = [len(knob.choices) for knob in space.knobs]
    for number in random.Random(seed).sample(range(space.size), min(space.size, _MOST_DRAWS)):
        rest, indices = number, []
        for size in sizes:
            rest, index = divmod(rest, size)
            indices.append(index)
        values = _values_at(space, indices)
        if space.name(values) != baseline:
            yield values


def tpe(space: Space, seed: int) -> Proposals:
    """Optuna's default sampler with its defaults: ten random points, then the multivariate TPE."""
    return _from_optuna(space, TPESampler(seed=seed))


def gaussian_process(space: Space, seed: int) -> Proposals:
    """Optuna's `GPSampler` with its defaults: ten random points, then log expected improvement."""
    return _from_optuna(space, GPSampler(seed=seed), takes_pruned=False)


def cma_es(space: Space, seed: int) -> Proposals:
    """Optuna's `CmaEsSampler` with margin, for whole numbers; it cannot move categories, which are drawn at random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # the margin
        sampler = CmaEsSampler(seed=seed, with_margin=True, warn_independent_sampling=False)
    return _from_optuna(space, sampler, takes_pruned=False)


def _from_optuna(space: Space, sampler: BaseSampler, *, takes_pruned: bool = True) -> Proposals:
    """Ask a sampler of Optuna, and tell it what was measured.

    It gets the same domains as the others: positions in the list of choices where these are ordered, categories where
    they are not. A trial without a number is reported as pruned, which ranks below all others, or, to a sampler that
    looks at complete trials alone, as slow as the slowest; reported as failed it would be ignored, and similar points
    proposed again and again. A point that is proposed twice is measured twice.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {knob.path: distribution_of(knob) for knob in space.knobs}
    study.enqueue_trial({knob.path: knob.index(knob.baseline) for knob in space.knobs})
    slowest = math.inf
    while True:
        trial = study.ask(distributions)
        speed = yield {knob.path: knob.choices[trial.params[knob.path]] for knob in space.knobs}
        slowest = min(slowest, speed or math.inf)
        if speed is None and (takes_pruned or slowest == math.inf):
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, slowest if speed is None else speed)


def coordinate_descent(space: Space, _seed: int) -> Proposals:
    """Change one knob at a time and double numbers as long as that helps, as people do by hand.

    Where doubling does not help at once, the number is halved as long as that helps. Where a domain lacks the doubled
    value, the next smaller one is taken, at least the next choice. Switches and other lists are tried value by value.
    It ends after a round over all knobs without improvement; no point is measured twice.
    """
    here = space.baseline
    best = (yield here) or 0.0
    seen = {space.name(here)}
    has_helped = True
    while has_helped:
        has_helped = False
        for knob in space.knobs:
            for way in _ways(knob, here[knob.path]):
                start = here
                for value in way:
                    there = {**here, knob.path: value}
                    if space.name(there) in seen:
                        break
                    seen.add(space.name(there))
                    speed = (yield there) or 0.0
                    if speed <= best:
                        break
                    here, best, has_helped = there, speed, True
                if here is not start and knob.ordered:
                    break


def grid(space: Space, _seed: int) -> Proposals:
    """Enumerate all combinations, the last knob fastest, until five in a row have not helped.

    The autotuner of DeepSpeed with its defaults, ``"tuner_type": "gridsearch"`` and ``"tuner_early_stopping": 5``
    (deepspeed/autotuning/constants.py and tuner/base_tuner.py), on this space instead of its own.
    """
    best = (yield space.baseline) or 0.0
    without_gain = 0
    for indices in product(*(range(len(knob.choices)) for knob in space.knobs)):
        values = _values_at(space, indices)
        if space.name(values) == space.name(space.baseline):
            continue
        speed = (yield values) or 0.0
        without_gain = 0 if speed > best else without_gain + 1
        best = max(best, speed)
        if without_gain == _WITHOUT_GAIN:
            return


def hill_climb(space: Space, _seed: int) -> Proposals:
    """Quick search of Triton Model Analyzer, on positions in the lists of choices.

    Around a home coordinate, at most 3 away, it measures until 3 neighbours gave a number, each time the neighbour
    with the most values that no measured neighbour has. Every neighbour then pulls by its gain over home (relative to
    the mean of the two) in each of its dimensions, divided by the length of the way; the pull of a dimension becomes
    a step of 1, 2 or 3 beyond 0.09, 0.3 and 1.0, and the stepped coordinate is the next home. It ends where nothing
    pulls or at a home for the third time. A home that does not run is left for the neighbour nearest to the best
    coordinate, of which all adjacent ones are measured, and the best of what was measured is the next home. No
    coordinate is measured twice.

    Source: model_analyzer/config/generate/quick_run_config_generator.py and neighborhood.py; docs/config_search.md,
    "Quick Search Mode". Left out is what has no meaning here: constraints, and the sweep of concurrency afterwards.
    It starts from the baseline instead of the lowest corner.
    """
    sizes = [len(knob.choices) for knob in space.knobs]
    speeds: dict[_Point, float | None] = {}

    def measure(coordinate: _Point) -> Proposals:
        if coordinate not in speeds:
            speeds[coordinate] = yield _values_at(space, coordinate)

    home = tuple(knob.index(knob.baseline) or 0 for knob in space.knobs)  # never None: today's value is a choice
    visits = Counter[_Point]()
    is_slow = False
    while True:
        yield from measure(home)
        around = list(_neighbours(home, sizes))
        if speeds[home] is None:
            best = max(speeds, key=lambda coordinate: speeds[coordinate] or 0.0)
            back = min((home, *around), key=lambda coordinate: dist(coordinate, best))
            if back == home:
                return
            home, is_slow = back, True
            continue
        if is_slow:
            for neighbour in around:
                if sum(abs(a - b) for a, b in zip(neighbour, home, strict=True)) == 1:
                    yield from measure(neighbour)
            step = max((home, *around), key=lambda coordinate: speeds.get(coordinate) or 0.0)
        else:
            while len(known := _measured(around, speeds)) < _LEAST_MEASURED:
                telling = _most_telling(around, speeds, known)
                if telling is None:
                    return
                yield from measure(telling)
            step = _step(home, speeds[home] or 0.0, known, sizes)
        if step == home or visits[step] >= _MOST_VISITS:
            return
        home, is_slow = step, False
        visits[home] += 1


PEERS: Mapping[str, Callable[[Space, int], Proposals]] = {
    "random": random_search,
    "TPE": tpe,
    "coordinate descent": coordinate_descent,
    "hill climb": hill_climb,
    "grid": grid,
}
"""Peers by the name in the tables; each takes the space and a seed."""


def _values_at(space: Space, indices: Sequence[int]) -> Values:
    return {knob.path: knob.choices[index] for knob, index in zip(space.knobs, indices, strict=True)}


def _ways(knob: Knob, value: Scalar) -> Iterator[Iterator[Scalar]]:
    """Yield the sequences of values that a knob is changed along: each is followed as long as it helps."""
    if knob.ordered:
        numbers = [choice for choice in knob.choices if isinstance(choice, int | float)]
        start = next(number for number in numbers if same_scalar(number, value))
        yield _doubled(numbers, start)
        yield _halved(numbers, start)
    else:
        for choice in knob.choices:
            if not same_scalar(choice, value):
                yield iter((choice,))


def _doubled(numbers: Sequence[float], value: float) -> Iterator[float]:
    while above := [number for number in numbers if number > value]:
        value = max((number for number in above if number <= 2 * value), default=above[0])
        yield value


def _halved(numbers: Sequence[float], value: float) -> Iterator[float]:
    while below := [number for number in numbers if number < value]:
        value = min((number for number in below if 2 * number >= value), default=below[-1])
        yield value


def _neighbours(home: _Point, sizes: Sequence[int]) -> Iterator[_Point]:
    """Yield all coordinates within the radius but home, the last dimension fastest, steps up before steps down."""

    def extend(done: _Point, left: int) -> Iterator[_Point]:
        dimension = len(done)
        if dimension == len(home):
            yield done
            return
        for size in range(_RADIUS + 1):
            if size**2 > left:
                return
            for position in {home[dimension] + size: None, home[dimension] - size: None}:
                if 0 <= position < sizes[dimension]:
                    yield from extend((*done, position), left - size**2)

    return (coordinate for coordinate in extend((), _RADIUS**2) if coordinate != home)


def _measured(around: Sequence[_Point], speeds: Mapping[_Point, float | None]) -> list[tuple[_Point, float]]:
    return [(neighbour, speed) for neighbour in around if (speed := speeds.get(neighbour)) is not None]


def _most_telling(
    around: Sequence[_Point], speeds: Mapping[_Point, float | None], known: Sequence[tuple[_Point, float]]
) -> _Point | None:
    """Return the unmeasured neighbour with the most values that no measured one has; None if all are measured."""
    covered = {(dimension, position) for neighbour, _ in known for dimension, position in enumerate(neighbour)}
    return max(
        (neighbour for neighbour in around if neighbour not in speeds),
        key=lambda neighbour: sum(pair not in covered for pair in enumerate(neighbour)),
        default=None,
    )


def _step(home: _Point, speed: float, known: Sequence[tuple[_Point, float]], sizes: Sequence[int]) -> _Point:
    """Return the coordinate that the measured neighbours pull the home to."""
    there = []
    for dimension, position in enumerate(home):
        pull, way = 0.0, 0
        for neighbour, other in known:
            offset = neighbour[dimension] - position
            if offset:
                gain = (other - speed) / ((other + speed) / 2)
                pull += gain if offset > 0 else -gain
                way += abs(offset)
        mean = pull / way if way else 0.0
        size = sum(abs(mean) > bound for bound in _STEP_BOUNDS)
        there.append(min(max(position + (size if mean > 0 else -size), 0), sizes[dimension] - 1))
    return tuple(there)


_HOMES = 10  # that the first home is chosen from, with the baseline
_CHANGED_KNOBS = 3  # by a perturbation
_RESTART_CHANCE = 0.01
_MOST_VAIN_ROUNDS = 1_000  # without a new point: all that can be reached is measured


def iterated_local_search(space: Space, seed: int) -> Proposals:
    """Climb by the first better change of one knob; from each local optimum change three at random and climb again."""
    rng = random.Random(seed)
    home = top = space.baseline
    speeds: dict[str, float] = {}

    def measure(values: Values) -> Proposals:
        name = space.name(values)
        if name not in speeds:
            speeds[name] = (yield values) or 0.0

    def speed(values: Values) -> float:
        return speeds[space.name(values)]

    def climb(start: Values) -> Proposals:
        nonlocal top
        top = start
        improved = True
        while improved:
            improved = False
            for neighbour in _changed_by_one(space, top, rng):
                yield from measure(neighbour)
                if speed(neighbour) > speed(top):
                    top, improved = neighbour, True
                    break

    yield from measure(home)
    for _ in range(_HOMES):
        other = _anywhere(space, rng)
        yield from measure(other)
        home = max(home, other, key=speed)
    yield from climb(home)
    home, vain = top, 0
    while vain < _MOST_VAIN_ROUNDS:
        known = len(speeds)
        start = _anywhere(space, rng) if rng.random() < _RESTART_CHANCE else _perturbed(space, home, rng)
        yield from measure(start)
        yield from climb(start)
        home = top if speed(top) >= speed(home) else home
        vain = vain + 1 if len(speeds) == known else 0


def _changed_by_one(space: Space, home: Values, rng: random.Random) -> Iterator[Values]:
    """Yield all points that differ in one knob, in random order."""
    changes = [
        (knob.path, choice)
        for knob in space.knobs
        for choice in knob.choices
        if not same_scalar(choice, home[knob.path])
    ]
    rng.shuffle(changes)
    return ({**home, path: choice} for path, choice in changes)


def _perturbed(space: Space, home: Values, rng: random.Random) -> Values:
    knobs = rng.sample(space.knobs, min(_CHANGED_KNOBS, len(space.knobs)))
    return {**home, **{knob.path: rng.choice(knob.choices) for knob in knobs}}


def _anywhere(space: Space, rng: random.Random) -> Values:
    return {knob.path: rng.choice(knob.choices) for knob in space.knobs}


_RANDOM_POINTS = 10
_ANYWHERE = 1_000
_BEST = 5

_Array = NDArray[np.float64]


def forest(space: Space, seed: int) -> Proposals:
    """Propose by expected improvement of ln speed, by the mean and the spread of the trees; no point twice."""
    from sklearn.ensemble import RandomForestRegressor  # of the extra `bench`, which the others do without

    rng = random.Random(seed)
    baseline = space.indices(space.baseline)
    speeds: dict[_Point, float | None] = {baseline: (yield space.baseline)}
    while len(speeds) < space.size:
        logs = {point: math.log(speed) for point, speed in speeds.items() if speed}
        new = _candidates(space, sorted(logs, key=lambda point: -logs[point])[:_BEST], rng)
        new = [point for point in new if point not in speeds]
        if not new:
            continue
        chosen = new[0]
        if len(speeds) > _RANDOM_POINTS and logs:
            model = RandomForestRegressor(random_state=rng.getrandbits(31))
            worst = min(logs.values())
            model.fit(_coded(space, list(speeds)), [logs.get(point, worst) for point in speeds])
            codes = _coded(space, new).astype(np.float32)
            trees = np.array([tree.predict(codes) for tree in model.estimators_])
            chosen = new[int(np.argmax(_improvement(trees.mean(axis=0), trees.std(axis=0), max(logs.values()))))]
        speeds[chosen] = yield space.at(chosen)


def _candidates(space: Space, best: Sequence[_Point], rng: random.Random) -> list[_Point]:
    """Return points without duplicates, the random ones first."""
    sizes = [len(knob.choices) for knob in space.knobs]
    points = [tuple(rng.randrange(size) for size in sizes) for _ in range(_ANYWHERE)]
    for point in best:
        for column, size in enumerate(sizes):
            points += [(*point[:column], position, *point[column + 1 :]) for position in range(size)]
    return list(dict.fromkeys(points))


def _coded(space: Space, points: Sequence[_Point]) -> _Array:
    """Return positions where choices are ordered, one column a category where they are not."""
    rows = np.array(points)
    columns = []
    for column, knob in enumerate(space.knobs):
        codes = rows[:, column : column + 1]
        columns.append(codes if knob.ordered else (codes == np.arange(len(knob.choices))))
    return np.hstack(columns).astype(np.float64)


def _improvement(mean: _Array, sd: _Array, best: float) -> _Array:
    """Return the expected improvement over the best."""
    sd = np.maximum(sd, 1e-9)
    distance = (mean - best) / sd
    density = np.exp(-0.5 * distance**2) / math.sqrt(2 * math.pi)
    above = np.array([0.5 * math.erfc(-z / math.sqrt(2)) for z in distance])
    improvement: _Array = sd * (distance * above + density)
    return improvement


class PeerSampler(BaseSampler):
    """Sampler that asks a peer, for a study of positions among a space's choices with the ln speed as its value.

    The peer is sent what the study knows of its point, whoever wanted that measured; the first trial counts, and None
    stands for one without a value. Until there is one, the point is proposed again. With the peer the study ends.

    Args:
        peer: The peer, a method that proposes no point twice; takes the space and a seed.
    """

    def __init__(self, peer: Callable[[Space, int], Proposals], space: Space, seed: int) -> None:
        self._peer = peer
        self._space = space
        self._seed = seed
        self._independent = RandomSampler(seed=seed)
        self._proposals: Proposals | None = None  # begun late: until then the sampler can be copied
        self._proposed: Values | None = None

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return all knobs."""
        return {knob.path: distribution_of(knob) for knob in self._space.knobs}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the peer's next point without a trial; nothing if the peer has ended."""
        if self._proposals is None:
            self._proposals = self._peer(self._space, self._seed)
            self._proposed = next(self._proposals)
        speeds = self._speeds(study)
        while self._proposed is not None and (point := self._space.indices(self._proposed)) in speeds:
            try:
                self._proposed = self._proposals.send(speeds[point])
            except StopIteration:
                self._proposed = None
        if self._proposed is None:
            study.stop()
            return {}
        return dict(zip((knob.path for knob in self._space.knobs), self._space.indices(self._proposed), strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value at random."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _speeds(self, study: Study) -> Mapping[_Point, float | None]:
        """Return what the first trial of each point showed."""
        speeds: dict[_Point, float | None] = {}
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
            point = tuple(trial.params[knob.path] for knob in self._space.knobs)
            speed = None if trial.state is TrialState.PRUNED else math.exp(trial.value or 0.0)
            speeds.setdefault(point, speed)
        return speeds
