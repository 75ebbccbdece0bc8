"""Section of the advice: better values with what they gain, and the change to the config."""

from collections.abc import Sequence
from typing import TypedDict

from autotune.daemon.advice import Advice, AdviceState, AdvisedChange
from autotune.daemon.web.page_text import block, line
from autotune.records import Scalar
from autotune.report.plain_text import value_text

_MOST = 12
_MOST_CHANGES = 30
_DIFF_LETTERS = 3000


class ChangePart(TypedDict):
    """One value that an advice changes, with its speed over that without it."""

    path: str
    old: str
    new: str
    label: str
    worth: tuple[float, float, float] | None


class AdvicePart(TypedDict):
    """One advice."""

    id: str
    config: str
    study: str
    state: str
    ratio: tuple[float, float, float]
    changes: list[ChangePart]
    diff: str
    why: list[str]
    may_learn_more_slowly: bool
    made_utc: str
    applied_utc: str | None
    actions: list[str]


class AdvicesPart(TypedDict):
    """Section of the advice, newest first."""

    advice: list[AdvicePart]
    left_out: int


def advice_section(advices: Sequence[Advice], *, actions: bool) -> AdvicesPart:
    """Return the section of the advice.

    Args:
        advices: All advice, the oldest first.
        actions: Whether the page may change something.
    """
    shown = list(reversed(advices))[:_MOST]
    return AdvicesPart(advice=[_advice(one, actions) for one in shown], left_out=len(advices) - len(shown))


def _advice(advice: Advice, actions: bool) -> AdvicePart:
    # One that may learn more slowly is a question to its user, which `autotune apply` asks in full.
    can_apply = advice.state is AdviceState.GIVEN and not advice.may_learn_more_slowly
    return AdvicePart(
        id=advice.id,
        config=line(advice.config) or "",
        study=line(advice.study, 120) or "",
        state=advice.state.value,
        ratio=advice.ratio,
        changes=[_change(change) for change in advice.changes[:_MOST_CHANGES]],
        diff=block(advice.diff, _DIFF_LETTERS),
        why=[line(sentence, 400) or "" for sentence in advice.why[:8]],
        may_learn_more_slowly=advice.may_learn_more_slowly,
        made_utc=advice.made_utc,
        applied_utc=advice.applied_utc,
        actions=["apply"] if actions and can_apply else [],
    )


def _change(change: AdvisedChange) -> ChangePart:
    return ChangePart(
        path=line(change.path, 120) or "",
        old=_value(change.old),
        new=_value(change.new),
        label=line(change.label, 40) or "",
        worth=change.worth,
    )


def _value(value: Scalar) -> str:
    return value_text(value)[:120]
