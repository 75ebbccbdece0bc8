"""State of the page, from the files of a daemon."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from autotune.clock import VirtualClock
from autotune.daemon.queue import EntryState
from autotune.daemon.web.search_section import MOST_DOTS
from autotune.events import IncumbentChanged
from autotune.records import Purpose
from tests.daemon.web.busy_daemon import HEADER, BusyDaemon, Searching, Training, quiet


def document(daemon: BusyDaemon) -> dict[str, Any]:
    """Return the state after a look of the daemon."""
    daemon.note(0.5)
    return daemon.page.document() or {}


def searched(daemon: BusyDaemon) -> dict[str, Any]:
    """Return the part of the search after a look of the daemon."""
    search: dict[str, Any] = document(daemon)["search"]
    return search


def test_an_idle_daemon_says_so(fresh: BusyDaemon) -> None:
    """No search, no entries, no advice; a machine without a driver says why there is no GPU."""
    fresh.note(None, gpus=(), why_no_gpus="there is no NVIDIA driver")
    state = fresh.page.document() or {}
    assert state["search"] is None
    assert (state["gpus"]["why_none"], state["gpus"]["devices"]) == ("there is no NVIDIA driver", [])
    assert (state["queue"]["entries"], state["advice"]["advice"], state["trainings"]["alarms"]) == ([], [], [])


def test_a_busy_daemon_in_all_sections(daemon: BusyDaemon) -> None:
    """Of GPUs, search, queue, training, alarm and advice there is what their files say."""
    state = document(daemon)
    (training,) = state["trainings"]["trainings"]
    assert training["is_slow"]
    assert training["ratio"] == pytest.approx(0.7, abs=0.05)
    (alarm,) = [alarm for alarm in state["trainings"]["alarms"] if alarm["is_open"]]
    assert "neighbour on the CPU" in alarm["message"]
    search = state["search"]
    assert (search["entry"], search["phase"], search["trials"]) == (2, "confirming", 19)
    assert search["best"][0][1] == 1.0
    assert search["best"] == sorted(search["best"])
    assert "num_workers=" in search["best_changes"]
    assert (search["now"]["number"], search["now"]["purpose"]) == (19, "pair 4")
    assert search["endings"] == {"stopped": 18, "out of GPU memory": 1}
    states = [entry["state"] for entry in state["queue"]["entries"]]
    assert states == ["running", "waiting", "paused", "failed", "done"]
    assert state["queue"]["entries"][1]["reason"] == "one search at a time: after entry 2"
    (advice,) = state["advice"]["advice"]
    assert (advice["ratio"], advice["diff"]) == ((1.5, 1.2, 1.8), "-num_workers: 1\n+num_workers: 4")


def test_a_gpu_shows_the_last_hour_and_who_is_on_it(daemon: BusyDaemon) -> None:
    """Means of 30 s; a process is the search's, a training's, or somebody else's; the unknown is null, never 0."""
    first, second = document(daemon)["gpus"]["devices"]
    series = first["history"]["series"]
    assert {name: len(values) for name, values in series.items()} == {"utilization": 120, "memory": 120, "power_w": 120}
    assert 0.5 < (series["utilization"][5] or 0.0) < 1.0
    assert [user["whose"] for user in first["users"]] == ["search", "training", "other"]
    assert first["users"][1]["name"] == "/project/tts/config.yaml"
    assert first["users"][2]["memory_bytes"] is None
    unknown = ("utilization", "memory_used_bytes", "power_w", "sm_clock_mhz", "throttled_by")
    assert [second[name] for name in unknown] == [None] * 5
    assert second["history"]["series"] == {}


def test_the_search_is_followed_as_it_writes(fresh: BusyDaemon) -> None:
    """Before its first event, in the middle of a line, and after: each trial counts once."""
    fresh.add_running()
    search = searched(fresh)
    assert (search["trials"], search["is_running"]) == (0, True)
    fresh.searching.begin()
    fresh.searching.trial(0, 1.0, Purpose.BASELINE)
    content = fresh.events.read_bytes()
    fresh.searching.trial(1, 1.2, **{"data.num_workers": 2})
    whole = fresh.events.read_bytes()
    fresh.events.write_bytes(content + whole[len(content) : len(content) + 200])
    search = searched(fresh)
    assert search["trials"] == 1
    fresh.events.write_bytes(whole)
    for _ in range(2):
        search = searched(fresh)
        assert (search["trials"], search["best_changes"]) == (2, "num_workers=2")


def test_what_matters_is_shown(fresh: BusyDaemon) -> None:
    """Knobs with what their values do, the one that does most first."""
    fresh.add_running()
    fresh.search()
    search = searched(fresh)
    assert [one["knob"] for one in search["knobs"]][-1] == "training.xla"
    first = search["knobs"][0]["values"]
    assert [(one["ratio"], one["is_kept"]) for one in first] == [(0.7, False), (1.0, True)]


def test_a_search_that_was_resumed_shows_the_whole_study(fresh: BusyDaemon) -> None:
    """Trials of an earlier search of the study come first, without the days between; other studies are left out."""
    earlier = Searching(fresh.events.with_name("20291231T000000Z-h-1.events.jsonl"), VirtualClock())
    earlier.begin()
    earlier.trial(0, 1.0, Purpose.BASELINE)
    other = Searching(fresh.events.with_name("20291231T000001Z-h-1.events.jsonl"), VirtualClock(), study="other")
    other.begin()
    other.trial(0, 5.0)
    fresh.add_running()
    fresh.searching.begin(trials_found=1)
    fresh.searching.trial(1, 1.0, Purpose.BASELINE)
    search = searched(fresh)
    assert [dot[0] for dot in search["dots"]] == [0, 1]
    assert (search["starts_s"], search["t_s"]) == ([0.0, 10.0], 20.0)


def test_the_best_speed_never_falls(fresh: BusyDaemon) -> None:
    """Neither where another search of the study begins, nor where a point that seemed to be faster was lucky."""
    earlier = Searching(fresh.events.with_name("20291231T000000Z-h-1.events.jsonl"), VirtualClock())
    earlier.begin()
    earlier.trial(0, 1.0, Purpose.BASELINE)
    earlier.trial(1, 3.0, **{"data.num_workers": 3})
    fresh.add_running()
    fresh.searching.begin(trials_found=2)
    fresh.searching.trial(2, 1.0, Purpose.BASELINE)
    assert [ratio for _, ratio in searched(fresh)["best"]] == [1.0, 3.0]
    fresh.searching.trial(3, 2.0, **{"data.num_workers": 2})
    assert [ratio for _, ratio in searched(fresh)["best"]] == [1.0, 2.0]


def test_the_events_of_a_named_state_folder_are_found(fresh: BusyDaemon) -> None:
    """A search with `--state-dir` writes there, from where it was asked for on; the trainer's options are its own."""
    options = ("--state-dir", "its state", "--", "python", "train.py", "--state-dir", "no")
    fresh.add_running(cwd=str(fresh.project), options=options)
    elsewhere = Searching(fresh.project / "its state" / "searches" / fresh.events.name, fresh.clock)
    elsewhere.begin()
    elsewhere.trial(0, 1.0, Purpose.BASELINE)
    search = searched(fresh)
    assert search["trials"] == 1


def test_many_trials_fit(begun: BusyDaemon) -> None:
    """The document stays small, all steps of the best speed are in it, and so is the fastest trial."""
    count = MOST_DOTS + 101
    for number in range(1, count):
        best = 1.0 + number / 10_000 if number % 100 == 0 else 0.9 + (number % 7) / 100
        begun.searching.trial(number, best, **{"data.num_workers": number % 300})
    search = searched(begun)
    assert search["trials"] == count
    assert len(search["dots"]) <= MOST_DOTS
    assert [ratio for _, ratio in search["best"]] == [1.0 + number / 10_000 for number in range(0, count, 100)]
    assert max(dot[2] or 0.0 for dot in search["dots"]) == search["best"][-1][1]
    assert len(json.dumps(document(begun))) < 200_000


def test_the_fullest_document_stays_small(fresh: BusyDaemon) -> None:
    """Many GPUs, entries and trainings with long names are cut to what a page can show."""
    long = "x" * 5000
    for _ in range(61):
        fresh.add(config=f"/{long}", note=long)
    training = Training(fresh.home.trainings / "20300101T000000Z-1-0123abcd", fresh.clock, HEADER)
    training.window(100.0)
    fresh.trainings.poll(quiet)
    one, (known,) = fresh.gpus(0.5)[0], fresh.view().status["trainings"]
    gpus = tuple({**one, "index": index, "uuid": f"GPU-{index}", "users": one["users"] * 30} for index in range(200))
    fresh.note(0.5, gpus=gpus, trainings=[{**known, "id": str(number), "name": long} for number in range(300)])
    state = fresh.page.document()
    assert len(json.dumps(state)) < 200_000
    assert all(state[part]["left_out"] > 0 for part in ("gpus", "queue", "trainings"))


HOSTILE = "<script>alert(1)</script>\x1b[31mred\x1b]0;title\x07\u202egnp.exe\x00\x9b31m\ud800"


def test_text_from_outside_cannot_control_anything(fresh: BusyDaemon) -> None:
    """In a trial's stderr and detail, a key, a study's name, a process, a training's and a queue's texts."""
    fresh.searching = Searching(fresh.events, fresh.clock, study=HOSTILE)
    fresh.add_running(note=HOSTILE)
    fresh.searching.begin()
    fresh.searching.trial(0, 1.0, Purpose.BASELINE)
    fresh.searching.trial(1, None, detail=HOSTILE, stderr_tail=f"{HOSTILE}\n{HOSTILE}", **{HOSTILE: HOSTILE})
    state = document(fresh)
    text = json.dumps(state, ensure_ascii=False)
    assert "<script>alert(1)</script>" in text  # as text; the page never takes it for markup
    assert "red" in text
    assert [letter for letter in text if not letter.isprintable()] == []
    search = state["search"]
    assert search["recent"][0]["stderr"].count("\n") == 1


def test_files_that_make_no_sense_are_passed_over(begun: BusyDaemon) -> None:
    """Lines, numbers and stamps that are wrong; a queue that cannot be read is said, with the last that could be."""
    with begun.events.open("a") as file:
        file.write("""[]\nnonsense\n{"event": "TrialEnded"}
{"event": "TrialEnded", "trial": 5, "changes": [], "speedup": "x"}
{"event": "IncumbentChanged", "speedup": NaN, "changes": {}}
{"event": "TrialStarted", "number": "five", "utc": "yesterday"}
{"event": "SearchEnded", "verdict": 7, "utc": "2030-01-01"}\n""")
    search = searched(begun)
    assert (search["trials"], len(search["best"])) == (1, 1)
    (begun.home.queue / "queue.json").write_text("{")
    state = begun.page.document() or {}
    assert "cannot be parsed" in (state["queue"]["trouble"] or "")
    assert [entry["state"] for entry in state["queue"]["entries"]] == ["running"]


def test_a_clock_that_jumps_moves_no_trial_far(begun: BusyDaemon) -> None:
    """A clock that was set, back or a year ahead, neither turns the picture round nor squeezes it into a corner."""
    utc = begun.clock.utc
    for number, jump in ((1, timedelta(days=-3)), (2, timedelta(days=400))):
        begun.searching.clock.utc = lambda jump=jump: utc() + jump  # type: ignore[method-assign]
        begun.searching.trial(number, 1.1)
    search = searched(begun)
    times = [dot[1] for dot in search["dots"]]
    assert times == sorted(times)
    assert times[-1] <= 30.0


def test_what_has_not_changed_is_the_same_but_for_its_moment(daemon: BusyDaemon) -> None:
    """So that nothing is sent while nothing happens."""
    first, second = ({**(daemon.page.document() or {}), "utc": ""} for _ in range(2))
    assert first == second


def test_the_best_of_a_search_that_has_ended_stays(fresh: BusyDaemon) -> None:
    """The page shows the last search until another one runs."""
    running = fresh.add_running()
    fresh.search()
    document(fresh)
    done = replace(running, state=EntryState.DONE, owner=None, running_s=0.0, used_s=400.0)
    fresh.queue.change(running.id, lambda _entry: done)
    fresh.searching.tell(IncumbentChanged(values={}, changes={"data.num_workers": 9}, speedup=3.0))
    search = searched(fresh)
    assert (search["is_running"], search["now"], search["best_changes"]) == (False, None, "num_workers=9")
