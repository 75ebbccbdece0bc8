"""Promises kept on whole timelines: no start that should not be, and somebody who comes has the machine at once.

The hundred timelines are among the services; these are some of them.
"""

import pytest

from tests.daemon.idle.machines import played, staged
from tests.daemon.idle.timelines import Kind, machine_of

WORST_NOTICE_S = 1.4  # of virtual time: a quarter of a second, and a second of load
TIMELINES = [1, *(pytest.param(seed, marks=pytest.mark.services) for seed in range(100) if seed != 1)]


def test_the_timelines_hold_what_they_promise():
    """All kinds of visits, machines with and without GPUs, and jobs of cron on many of them."""
    machines = [machine_of(seed) for seed in range(100)]
    assert {visit.kind for machine in machines for visit in machine.visits} == set(Kind)
    assert {machine.gpus for machine in machines} == {0, 1, 2, 4, 8}
    assert sum(machine.blip_every_s is not None for machine in machines) > 50
    assert machine_of(3) == machine_of(3)


@pytest.mark.parametrize("seed", TIMELINES)
def test_no_start_while_somebody_is_there_and_no_stay_when_somebody_comes(seed, nvml_library, in_memory):
    """On the fake driver, in virtual time, with all that decides."""
    outcome = played(nvml_library, in_memory, seed)
    assert outcome["wrong"] == []
    assert outcome["left_for_nobody"] == []
    assert len(outcome["starts_s"]) >= 1
    assert all(one["noticed_s"] - one["came_s"] <= WORST_NOTICE_S for one in outcome["leavings"])
    assert outcome["missed_s"] / len(outcome["starts_s"]) < 30.0


@pytest.mark.services
@pytest.mark.parametrize(("stranger", "mood"), [("gpu", ""), ("cpu", ""), ("gpu", "ignores SIGTERM")])
def test_a_real_search_leaves_when_a_real_process_comes(nvml_library, tmp_path, stranger, mood):
    """Whoever it is, and whatever the trainer does: the reason names the process, and nothing of the search stays."""
    outcome = staged(nvml_library, tmp_path, stranger=stranger, mood=mood)
    expected = {"gpu": f"GPU 0 is in use by python (process {outcome['stranger']})", "cpu": "of 2 cores"}
    assert expected[stranger] in outcome["reason"]
    assert outcome["left"] == []
