"""Studies of one storage, and the study commands' actions."""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from autotune.clock import Clock, SystemClock
from autotune.commands.output import ask, is_attended, say_aside, say_remarks
from autotune.config.keys import first_of
from autotune.errors import StudyBusy, StudyError
from autotune.files import make_private_folder
from autotune.measure.score import EFFECTIVE_UTILIZATION
from autotune.records import NO_SEARCH, Conditions, Purpose, Scalar, SearchResult, TrialRecord, Verdict
from autotune.report.plain_text import plain
from autotune.search.hardware import this_machine
from autotune.search.problem import Problem, open_problem
from autotune.search.real_trainings import keep_trainings, trainings_here
from autotune.space.space import Space
from autotune.study.answer import answers_by_search
from autotune.study.claims import RENEWAL_S
from autotune.study.identity import frameworks_text
from autotune.study.members import Member, distinct_hosts
from autotune.study.record import StudyRecord
from autotune.study.storage.address import GivenAddress, address_in_environment, address_of
from autotune.study.storage.journal import JournalFolder, open_storage
from autotune.study.storage.lock import sole_search
from autotune.study.storage.storage import Storage
from autotune.study.summary import answer_of, summarize
from autotune.study.travel import Export, StudyName, export_study, import_files
from autotune.trial.folders import StateFolder
from autotune.trial.process_identity import is_gone

Output = tuple[Any, ...]
"""Object for ``--json``, followed by the lines for people."""


@dataclass(frozen=True, kw_only=True)
class Studies:
    """Studies of one storage.

    Attributes:
        shown: Place of the storage, for people.
    """

    state: StateFolder
    storage: Storage
    shown: str
    problem: Problem | None = None

    def names(self) -> list[str]:
        """Return the names of autotune's studies; a database may contain others."""
        return [name for name in self.storage.names() if StudyName.of(name)]

    def chosen(self, named: str | None) -> str:
        """Return the named study, the config's, or the only one.

        Raises:
            StudyError: None or several.
        """
        names = self.names()
        if named is not None:
            found, why = named if named in names else None, f"there is no study {named!a}"
        elif self.problem is not None:
            found, why = self.problem.place.known_study(), "this config has no study yet"
        else:
            found = names[0] if len(names) == 1 else None
            why = f"there are {len(names)} studies" if names else "there is no study"
        if found is not None:
            return found
        remedy = f"Name one with --study: {first_of(names, 10)}."
        if not names:
            remedy = "Name another place with --config, --state-dir or --storage."
        raise StudyError(why, where=self.shown, remedy=remedy)

    def overview(self) -> Output:
        documents: list[dict[str, Any]] = []
        lines: list[str] = []
        for name in self.names():
            lines.append(plain(name))
            try:
                about, _ = self._about(name)
            except StudyError as error:
                documents.append({"study": name, "error": error.message})
                lines.append(f"  cannot be read: {plain(error.message)}")
                continue
            documents.append(about)
            last = about["last_utc"] or "none"
            lines.append(f"  {about['trials']} trials, last {last}; {_gain_text(about['answer'])}")
            lines += [f"  {plain(hardware)}" for hardware in about["hardware"]]
        nothing = f"No study in {plain(self.shown)}."
        return {"storage": self.shown, "studies": documents}, *(lines or [nothing])

    def description(self, name: str) -> Output:
        """Describe a study, without its trials."""
        about, members = self._about(name)
        where, now = self.storage.where(name), SystemClock().utc()
        hosts = distinct_hosts((one.machine, one.host) for one in members)
        going_on = {one.search for one in members if one.seems_active(now)}
        endings = ", ".join(f"{count} {ending}" for ending, count in sorted(about["endings"].items()))
        lines = [
            f"Study {name} in {where}",
            f"{about['trials']} trials" + (f": {endings}" if endings else ""),
            *(f"Hardware: {one}" for one in about["hardware"]),
            f"Hosts: {', '.join(about['hosts']) or 'none'}",
            *(f"Frameworks: {one}" for one in about["frameworks"]),
            f"Made by autotune {', '.join(about['versions']) or '?'}",
            "",
            *(
                f"{one['ended_utc']}  {one['search']}: {one['trials']} trials, "
                + ("running" if one["search"] in going_on else _gain_text(one["answer"]))
                for one in about["searches"]
            ),
            "",
            *(
                f"{one.role.value} on {hosts[one.machine]} since {one.since_utc:%Y-%m-%d %H:%M} UTC: "
                + _state_text(one, now)
                for one in members
            ),
            *([] if members else ["No process is known to have worked on it from here."]),
        ]
        return {**about, "where": where}, *(plain(line, longest=1000) for line in lines)

    def export(self, name: str, file: Path) -> Output:
        """Export a study, with this machine's real trainings."""
        why_not_kept = ""
        trainings = list(trainings_here(name, ()))
        if any(is_over for _, is_over in trainings):
            try:
                with closing(StudyRecord(name, self.storage)) as study:
                    keep_trainings(study, trainings)
            except StudyError as error:  # e.g. another user's read-only study
                why_not_kept = error.message
        contents = export_study(name, self.storage, file, pending=self.state.pending(name))
        lines = [f"Exported {len(contents.trials)} trials of study {name} to {file}."]
        if contents.interrupted:
            lines.append(f"Omitted: {contents.interrupted} trials without a result (interrupted or running).")
        if why_not_kept:
            lines.append(f"Omitted: real trainings of this machine, which cannot be written: {why_not_kept}.")
        if contents.unread:
            lines.append(f"Omitted: {contents.unread} trials that cannot be read.")
        counts = {"trials": len(contents.trials), "interrupted": contents.interrupted, "unread": contents.unread}
        return {"study": name, "file": str(file), **counts}, *lines

    def import_files(self, files: Sequence[Path]) -> Output:
        done = import_files(files, self._target, self.storage, prepare=self.state.create)
        lines = [f"Study {done.study} in {self.shown}: {done.added} trials added, {done.known} already present."]
        if done.differing:
            lines.append(f"{done.differing} trials differ between two places; those of this study are kept.")
        return {"storage": self.shown, **asdict(done)}, *lines

    def require_yes(self, name: str, *, is_for_scripts: bool) -> None:
        """Ask for confirmation to delete a study.

        Raises:
            StudyError: There is no terminal.
            click.Abort: The answer is no.
        """
        if is_for_scripts or not is_attended():
            raise StudyError(f"study {name} is not deleted", where=self.shown, remedy="Confirm it with --yes.")
        ask(f"Move study {name} in {self.shown} to the trash?", must=True)

    def delete(self, name: str, clock: Clock) -> Output:
        """Move all files of a study to the trash.

        Raises:
            StudyBusy: A process works on it.
            StudyError: It cannot be moved.
        """
        self.state.create()
        trash = self.state.path / "trash" / f"{clock.utc():%Y%m%dT%H%M%SZ}-{name}"
        with sole_search(self.state.search_lock(name, this_machine((), {}, {}).name), name):
            self._require_idle(name, clock)
            try:
                make_private_folder(trash.parent)
                make_private_folder(trash)
                if isinstance(self.storage, JournalFolder):
                    home = shlex.quote(str(self.storage.path(name).parent))
                    back = f"mv {shlex.quote(str(trash / name))}.journal* {home}/"
                else:
                    exported = trash / f"{name}.journal"
                    export_study(name, self.storage, exported, pending=self.state.pending(name))
                    back = f"autotune study import {shlex.quote(str(exported))} --storage {shlex.quote(self.shown)}"
                self.storage.discard(name, trash)
                for beside, end in ((self.state.pending(name), ".pending"), (self.state.trials(name), ".trials")):
                    if beside.exists() and not beside.is_symlink():
                        beside.rename(trash / f"{name}{end}")
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or str(error)
                remedy = "Fix that; the files moved so far are in this folder."
                raise StudyError(f"it cannot be moved: {ascii(why)[1:-1]}", where=str(trash), remedy=remedy) from error
        document = {"study": name, "trash": str(trash), "to_get_it_back": back}
        return document, f"Moved study {name} to {trash}. To restore it:\n  {back}"

    def _about(self, name: str) -> tuple[dict[str, Any], list[Member]]:
        """Return the study's object and members; without a config, judged by the default objective."""
        with closing(StudyRecord(name, self.storage, reads_only=True)) as study:
            records, members = study.records(), study.members.on_record()
        objective = self.problem.objective if self.problem else EFFECTIVE_UTILIZATION
        latest = next((one for one in reversed(records) if one.purpose not in NO_SEARCH), None)
        current = [trial for trial in records if latest is None or trial.shares_code_with(latest)]
        answers = answers_by_search(records, objective)
        searches = []
        for search in dict.fromkeys(one.search for one in records if one.purpose is not Purpose.TRAINING):
            trials = [one for one in records if one.search == search]
            result = summarize(records, search, _NO_SPACE, objective=objective, answers=answers)
            ended_utc = max(one.ended_utc for one in trials)
            searches.append({"search": search, "trials": len(trials), "ended_utc": ended_utc, "answer": _gain(result)})
        frameworks = dict.fromkeys(frameworks_text(one.conditions.frameworks) for one in records)
        document = {
            "study": name,
            "trials": len(records),
            "endings": dict(Counter(one.ending.value for one in records)),
            "last_utc": max((one.ended_utc for one in records), default=None),
            "hosts": _all_of(records, "host"),
            "hardware": list(dict.fromkeys(_hardware(one.conditions) for one in records)),
            "frameworks": list(filter(None, frameworks)),
            "versions": _all_of(records, "autotune"),
            "answer": _gain(answer_of(current, _NO_SPACE, objective=objective)),
            "searches": searches,
            "members": [_member(one) for one in members],
        }
        return document, members

    def _require_idle(self, name: str, clock: Clock) -> None:
        there = self._members(name)
        working = [one for one in there if one.seems_active(clock.utc())]
        silent = {one.uuid: one.n for one in there if not one.has_left and not is_gone(one.about)}
        if silent and not working:  # other machines' clocks may be wrong: watch for new heartbeats
            watched_s = 2.0 * RENEWAL_S  # a heartbeat may be late
            say_aside(f"Members that have not left: {len(silent)}. Watching for heartbeats for {watched_s:.0f} s ...")
            clock.wait(watched_s)
            working = [one for one in self._members(name) if silent.get(one.uuid, one.n) != one.n]
        if working:
            raise StudyBusy(
                f"{len(working)} processes are working on study {name}, one on {working[0].host!a}",
                where=self.shown,
                remedy="Stop them, or wait until a minute and a half after their end; then run the same command again.",
            )

    def _members(self, name: str) -> list[Member]:
        with closing(StudyRecord(name, self.storage, reads_only=True)) as study:
            return study.members.on_record()

    def _target(self, files: Sequence[Export]) -> StudyName:
        first = files[0]
        for file in files[1:]:
            if file.study != first.study:
                raise StudyError(
                    f"this is study {file.study.text}, but {first.path} is study {first.study.text}",
                    where=str(file.path),
                    remedy="Import the files of one study at a time.",
                )
        return first.study if self.problem is None else _study_of(first, self.problem)


def open_studies(config: Path | None, state_dir: Path | None, storage: str | None) -> Studies:
    """Open the storage of a config or the working directory.

    Raises:
        AutotuneError: Config, folder or address cannot be used.
    """
    if config is not None:
        problem = open_problem(config, command=None, state_dir=state_dir, storage=storage)
        state, address, opened = problem.state, problem.address, problem.storage
    else:
        here, problem = Path.cwd(), None
        state = StateFolder.locate(here / "config.yaml", explicit=state_dir, environ=os.environ)
        typed = GivenAddress(text=storage, where="--storage", folder=here) if storage else None
        address = address_of(typed, address_in_environment(os.environ, here))
        opened = open_storage(address, state.studies)
    say_remarks(state.remarks)
    return Studies(state=state, storage=opened, shown=address.shown if address else str(state.studies), problem=problem)


def _study_of(file: Export, problem: Problem) -> StudyName:
    """Return the config's study that a file belongs to, or raise."""
    theirs, ours = file.study, StudyName.of(problem.study)
    if ours is None:
        raise StudyError("cannot import into a study of this name", where=problem.study, remedy="Rename it.")
    if theirs.training == ours.training:
        for name in (ours, StudyName.of(problem.place.known_study() or "")):
            if name is not None and (name.frameworks, name.command) == (theirs.frameworks, theirs.command):
                return name
        if not problem.command:  # the command and its frameworks are unknown here
            text = f"{ours.stem}-{theirs.training}-{theirs.frameworks}-{theirs.command}"
            return StudyName.of(text) or theirs
    raise StudyError(
        f"the file is of another study: {'; '.join(_differences(file, ours, problem))}",
        where=str(file.path),
        remedy="Use the same config, versions, command and hardware, or import it as a separate study, without "
        "--config.",
    )


def _differences(file: Export, ours: StudyName, problem: Problem) -> list[str]:
    theirs, here, there = file.study, problem.conditions.as_stored(), file.manifest.hardware
    if theirs.training != ours.training:
        return [
            f"{name} {_shown(_listed(there[name]))}, here {here.get(name)}"
            for name in ("gpus", "cpu_model", "cpu_cores", "memory_bytes")
            if there.get(name) and here.get(name) not in there[name]
        ] or ["its config has other values outside of the knobs, or another objective"]
    differing = []
    if theirs.frameworks != ours.frameworks:
        known = ", ".join(f"{name} {_listed(some)}" for name, some in file.manifest.frameworks.items()) or "none known"
        used = frameworks_text(problem.frameworks) or "none known"
        differing.append(f"its frameworks are {_shown(known)}, here {used}")
    if theirs.command != ours.command:
        differing.append("its trainer's command differs")
    return differing


def _listed(values: Sequence[Scalar]) -> str:
    return " or ".join(str(value) for value in values[:5])


def _shown(text: str) -> str:
    return ascii(text)[1:-1][:200]


_NO_SPACE = Space(knobs=())  # a space only provides labels, which are not shown here


def _gain_text(gain: Mapping[str, Any] | None) -> str:
    if gain is None:
        return "no answer yet"
    if gain["verdict"] == Verdict.BETTER and (speedup := gain["speedup"]) is not None:
        return "better: {ratio:.2f}x ({low:.2f}-{high:.2f})".format(**speedup)
    return str(gain["verdict"]).replace("_", " ")


def _gain(result: SearchResult | None) -> dict[str, Any] | None:
    if result is None:
        return None
    ratio = result.speedup
    speedup = None if ratio is None else {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}
    return {"verdict": result.verdict.value, "speedup": speedup}


def _all_of(records: Sequence[TrialRecord], name: str) -> list[str]:
    return [value for value in dict.fromkeys(getattr(one.conditions, name) for one in records) if value is not None]


def _hardware(conditions: Conditions) -> str:
    parts = [
        conditions.gpus or "no GPU",
        conditions.cpu_model,
        f"{conditions.cpu_cores} cores" if conditions.cpu_cores else None,
        f"{conditions.memory_bytes / 2**30:.0f} GiB" if conditions.memory_bytes else None,
    ]
    return ", ".join(filter(None, parts))


def _member(one: Member) -> dict[str, str]:
    return {
        **{name: str(getattr(one, name)) for name in ("host", "machine", "role", "search", "phase")},
        **{name: getattr(one, name).isoformat(timespec="seconds") for name in ("since_utc", "renewed_utc")},
        "left_because": one.left_because,
    }


def _state_text(member: Member, now: datetime) -> str:
    if member.has_left or member.seems_active(now):
        return member.phase.value + (f" ({member.left_because})" if member.left_because else "")
    return f"no heartbeat since {member.renewed_utc:%Y-%m-%d %H:%M} UTC"
