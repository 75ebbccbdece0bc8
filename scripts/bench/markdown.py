"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table; every row has as many cells as there are heads."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def regret_cells(regrets: Sequence[float] | NDArray[np.float64]) -> list[str]:
    """Return median, mean and 90th percentile of regrets as texts, in percent."""
    middle, high = np.percentile(regrets, (50, 90))
    return [f"{regret:.1%}" for regret in (middle, np.mean(regrets), high)]
