"""Rule about the sources of a trainer: what to look for, what it means, and what to do."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.diagnose.findings import Limit, Severity
from autotune.diagnose.static.code.live_code import Unit
from autotune.diagnose.static.code.training import Training

Places = Iterator[tuple[Unit, ast.AST]]
"""Nodes with the functions or modules that they are in."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Surroundings of a trainer that a rule may depend on.

    Attributes:
        cores: CPUs that it may run on.
        has_gpu: Whether it trains on a GPU.
        tensorflow: Version of TensorFlow; None where it is not known.
    """

    cores: int
    has_gpu: bool
    tensorflow: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rule about sources.

    Attributes:
        id: Its id, lower-case words with hyphens.
        sentence: What the code does and what that costs.
        remedy: What to do.
        find: Function that yields the places.
        severity: Weight of a finding.
        limit: Part of the training that it slows down; None for none in particular.
        applies: Whether it matters in these surroundings.
        case: Name of this case of it, where several rows have one id.
    """

    id: str
    sentence: str
    remedy: str
    find: Callable[[Training], Places]
    severity: Severity = Severity.WARNING
    limit: Limit | None = None
    applies: Callable[[Surroundings], bool] = lambda _surroundings: True
    case: str = ""

    @property
    def message_id(self) -> str:
        """Id of its sentence, for other languages; that of its remedy has ``.remedy`` behind it."""
        return f"rule.{self.id}.{self.case}" if self.case else f"rule.{self.id}"
