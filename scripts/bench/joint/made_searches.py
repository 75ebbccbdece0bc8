"""Searches of several simulated machines, each with what its tables need."""

import os
from dataclasses import dataclass
from enum import StrEnum

from scripts.bench.joint.joint_search import JointSearch, search_together
from scripts.bench.joint.simulated_site import site
from scripts.bench.resumable import work_folder
from scripts.bench.simulation.scenarios import null_scenario, scenario


class Ground(StrEnum):
    """Kind of search."""

    FINDS = "finds"  # there is something to find, on machines that all work
    NULL = "null"  # nothing matters: whatever is found is false
    BLACK_HOLE = "black hole"  # there is something to find, and on one machine every trial fails


@dataclass(frozen=True, kw_only=True)
class JointPiece:
    """One search to make.

    Attributes:
        ground: Its kind.
        seed: Number of the scenario.
        machines: Number of machines.
        budget_s: Budget of each.
    """

    ground: Ground
    seed: int
    machines: int
    budget_s: float

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{self.ground.value} {self.seed} on {self.machines}"


@dataclass(frozen=True, kw_only=True)
class MadeSearch:
    """Search that was made; times in seconds since its beginning.

    Attributes:
        piece: The piece.
        is_solved: Whether the baseline is close to the best: then there is nothing to find.
        baseline_s: Time at which the first baseline was measured; None if none was.
        found_s: Time at which a trial of a point close to the best first ended; None if none did.
        answered_s: Time from which on its answer was close to the best for good; None if it is not.
        says_better: Whether any machine's answer is that there are better values.
        ended_s: Time at which its last machine ended.
        trials: Number of trials of all machines.
        doubles: Number of exploring trials of points that had been explored.
        named: Whether the black hole left, with a reason; None where there is none.
        named_s: Time at which it left; None if it did not.
        lost_trials: Trials that failed on the black hole.
        wronged: Number of working machines that left with a reason.
        reasons: Reasons of all machines that left.
        cpu_s: CPU time of the simulation.
    """

    piece: JointPiece
    is_solved: bool
    baseline_s: float | None
    found_s: float | None
    answered_s: float | None
    says_better: bool
    ended_s: float
    trials: int
    doubles: int
    named: bool | None
    named_s: float | None
    lost_trials: int
    wronged: int
    reasons: tuple[str, ...]
    cpu_s: float

    def time_s(self, *, answered: bool = False) -> float:
        """Return the time until it had found, or answered, a point close to the best; its budget if it never did."""
        found_s = self.answered_s if answered else self.found_s
        return self.piece.budget_s if found_s is None else found_s


def make_search(piece: JointPiece) -> MadeSearch:
    """Make one search."""
    before_s = _cpu_s()
    one = null_scenario(piece.seed) if piece.ground is Ground.NULL else scenario(piece.seed)
    machines = site(piece.seed, piece.machines, black_hole=piece.ground is Ground.BLACK_HOLE)
    with work_folder() as folder:
        made = search_together(one, machines, piece.budget_s, folder)
    return _of(piece, made, cpu_s=_cpu_s() - before_s)


def _of(piece: JointPiece, made: JointSearch, *, cpu_s: float) -> MadeSearch:
    broken = [part for part in made.parts if part.machine.fails_from_s is not None]
    working = [part for part in made.parts if part.machine.fails_from_s is None]
    left = [part for part in broken if part.why_left]
    return MadeSearch(
        piece=piece,
        is_solved=made.baseline_is_close,
        baseline_s=made.baseline_s(),
        found_s=made.found_s(),
        answered_s=made.answered_s(),
        says_better=made.says_better,
        ended_s=max(part.ended_s for part in made.parts),
        trials=len(made.trials),
        doubles=made.doubles,
        named=bool(left) if broken else None,
        named_s=min((part.ended_s for part in left), default=None),
        lost_trials=sum(not trial.comparable for part in broken for _, trial in part.trials),
        wronged=sum(bool(part.why_left) for part in working),
        reasons=tuple(f"{part.machine.name}: {part.why_left}" for part in made.parts if part.why_left),
        cpu_s=cpu_s,
    )


def _cpu_s() -> float:
    times = os.times()
    return times.user + times.system
