"""Dry run of a search: what it would do, and what could be in its way."""

from rich.console import Console

from autotune.clock import Clock
from autotune.commands.search_request import SearchRequest
from autotune.commands.showing import show_plan
from autotune.problem.gpus import busy_remarks, remarks_on_gpus
from autotune.problem.problem import Problem
from autotune.report.plain_text import plain
from autotune.search.warm_start import warm_start


def show_dry_run(console: Console, problem: Problem, request: SearchRequest, clock: Clock) -> None:
    """Show what a search would do, and what could be in its way.

    Raises:
        GpuError: The GPU that trials would use is not there.
    """
    on_batch = [problem.batch_remark] if problem.batch_remark else []
    begins = [warm_start(problem).sentence] if request.warm_start and not request.fresh else []
    remarks = (*problem.state.remarks, *problem.settings.remarks, *remarks_on_gpus(problem), *on_batch)
    show_plan(console, problem, request)
    for sentence in (f"score: {problem.measures}", *remarks, *busy_remarks(problem, clock)):
        console.print(sentence, soft_wrap=True)
    for sentence in filter(None, begins):  # it names hardware that others may have written down
        console.print(plain(sentence, longest=1000), soft_wrap=True)
