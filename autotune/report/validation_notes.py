"""Notes on the validation trials of a search: what the point came through, or what broke."""

from collections.abc import Iterator

from rich.text import Text

from autotune.durations import format_duration
from autotune.records import Validation
from autotune.report.plain_text import changes_text, plain
from autotune.results import SearchResult

_LONGEST = 500


def validation_notes(result: SearchResult) -> Iterator[Text]:
    """Yield what the answer's reader should know of the validation; nothing if there was none.

    Args:
        result: The answer of the search.
    """
    for point in result.broken:
        faster = f"{point.speedup.ratio:.2f}x as fast, but " if point.speedup else ""
        broke = plain("; ".join(point.validation.broke), longest=_LONGEST)
        yield Text(f"Not chosen: {changes_text(point.changes)}: {faster}it broke in a longer training: {broke}.")
    if result.validation is not None:
        word, style = ("Broke: ", "bold red") if result.validation.broke else ("Validated: ", "bold green")
        yield Text.assemble((word, style), f"{_sentence(result.validation)}.")
        for remark in result.validation.remarks:
            yield Text(f"{plain(remark[:1].upper() + remark[1:], longest=_LONGEST)}.", style="dim")


def _sentence(validation: Validation) -> str:
    trained = f"trained for {format_duration(validation.trained_s)}, {_passed(validation)}"
    if validation.broke:
        return f"{trained}; {plain('; '.join(validation.broke), longest=_LONGEST)}"
    held = [
        "its loss goes the way of today's" if validation.loss_ratio is not None else "",
        _speeds(validation),
        "memory does not grow" if validation.memory_growth_bytes_per_s == 0 else "",
    ]
    return "; ".join((trained, *filter(None, held)))


def _speeds(validation: Validation) -> str:
    if validation.speed_ratio is None:
        return ""
    steps = f"{validation.speed_ratio:.2f}x as fast as today's config"
    if validation.overall_ratio is None:
        return steps
    return f"{steps}, {validation.overall_ratio:.2f}x with all that comes between its steps"


def _passed(validation: Validation) -> str:
    counts = {
        ("end of an epoch", "ends of epochs"): validation.epoch_ends,
        ("evaluation", "evaluations"): validation.evaluations,
        ("checkpoint", "checkpoints"): validation.checkpoints,
    }
    passed = [f"{count} {one if count == 1 else several}" for (one, several), count in counts.items() if count]
    missed = [one for (one, _), count in counts.items() if not count]
    through = f"through {', '.join(passed)}" if passed else ""
    without = f"no {' or '.join(missed)} came" if missed else ""
    return ", ".join(filter(None, (through, without)))
