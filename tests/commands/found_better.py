"""``autotune search`` whose search is over at once, and found something better: ``python found_better.py search …``.

``FOUND_BETTER`` in the environment says what happens on the way: ``typed`` waits for a line that is typed during the
search, ``background`` runs the command as a background job of its terminal, ``unvalidated`` is for ``--validate``.
"""

import os
import select
import sys
from types import SimpleNamespace
from typing import Any

from autotune.__main__ import main
from autotune.commands import search_run
from autotune.commands.apply_answer import changes_to_offer
from autotune.records import Ratio, SearchResult, Side, Verdict

MODE = os.environ.get("FOUND_BETTER", "")


def _finished(problem: Any, _request: object, answer: Any, _clock: object, **_more: object) -> search_run.Finished:
    answer.begin(
        problem, SimpleNamespace(name="s", study=SimpleNamespace(name=problem.study, records=list, undelivered=""))
    )
    if MODE == "typed":
        print("searching", flush=True)
        select.select([sys.stdin], [], [])
    today = problem.space.baseline
    best = {**today, "data.batch_size": 64}
    result = SearchResult(
        verdict=Verdict.NO_CHANGE if MODE == "no change" else Verdict.BETTER,
        why="confirmed",
        baseline=Side(point=problem.space.name(today), values=today, metrics=None),
        best=Side(point=problem.space.name(best), values=best, metrics=None),
        candidate=None,
        speedup=Ratio(ratio=2.0, low=1.9, high=2.1),
        score_ratio=Ratio(ratio=2.0, low=1.9, high=2.1),
        smallest_gain=0.05,
        same_training=None,
        trials=10,
        outcomes={},
        changes=(),
    )
    changes = changes_to_offer(problem, problem.study, (), result)
    return search_run.Finished(result=result, written=result, changes=changes, failures=[], ended_by=None)


if __name__ == "__main__":
    if MODE == "background" and (child := os.fork()):
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if MODE == "background":
        os.setpgid(0, 0)
    search_run.search_with_display = _finished
    main()
