"""Narrator of a search."""

from collections import deque

from autotune.events import Event, PhaseChanged, Remark
from autotune.search.parts import Narrator

TOLD = Remark | PhaseChanged


def test_each_consumer_is_told_each_event_and_the_remarks_after_it() -> None:
    """Remarks that come up while others are told follow them; none is told twice."""
    one: list[Event] = []
    other: list[Event] = []
    remarks = deque(["a log was written", "a knob is not heeded"])

    def consumer(event: Event) -> None:
        one.append(event)
        if event == Remark(text="a log was written"):
            remarks.append("said meanwhile")

    narrator = Narrator([consumer, other.append], remarks)
    narrator.tell_phase("exploring", "looking for better values")
    narrator.tell_phase("ending", "nothing is left")
    texts = [event.text if isinstance(event, Remark) else event.phase for event in one if isinstance(event, TOLD)]
    assert texts == ["exploring", "a log was written", "a knob is not heeded", "said meanwhile", "ending"]
    assert one == other
