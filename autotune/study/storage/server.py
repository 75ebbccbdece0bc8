"""Optuna's tables on a PostgreSQL server, for one study: one query reads all updates, one transaction writes a change.

`RDBStorage` needs up to two hundred round trips a trial. Here all trials are cached, and each atomic write is one text
with the query for updates: about three round trips a trial. Optuna and its dashboard can read the result.

Each statement names the public call that it replaces, on the schema that `RDBStorage` checks.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

# `BaseStorage.get_all_studies` and `get_study_user_attrs` of one study; `get_all_trials`, only new ones
_OF_THE_STUDY = "SELECT study_id FROM studies WHERE study_name = %s OR starts_with(study_name, %s)"
_STUDIES = f"""
SELECT study_id, study_name,
  (SELECT json_object_agg(key, value_json) FROM study_user_attributes a WHERE a.study_id = s.study_id)
FROM studies s WHERE study_id IN ({_OF_THE_STUDY})"""  # noqa: S608 -- no values in it
_TRIALS = f"""
SELECT trial_id, study_id, number, state::text, datetime_start, datetime_complete,
  (SELECT json_agg(json_build_array(param_name, param_value, distribution_json) ORDER BY param_id)
   FROM trial_params p WHERE p.trial_id = t.trial_id),
  (SELECT json_object_agg(key, value_json) FROM trial_user_attributes a WHERE a.trial_id = t.trial_id),
  (SELECT json_agg(json_build_array(step, intermediate_value, intermediate_value_type) ORDER BY step)
   FROM trial_intermediate_values i WHERE i.trial_id = t.trial_id),
  (SELECT json_agg(json_build_array(value, value_type) ORDER BY objective)
   FROM trial_values v WHERE v.trial_id = t.trial_id)
FROM trials t WHERE study_id IN ({_OF_THE_STUDY}) AND (trial_id > %s OR trial_id = ANY(%s)) ORDER BY trial_id
"""  # noqa: S608

# `create_new_trial`. A trial's number is the count of earlier ones, so the study is locked first, as in Optuna.
_LOCK_STUDY = "SELECT study_id FROM studies WHERE study_id = %s FOR UPDATE"
_NEW_TRIAL = """
WITH new AS (
  INSERT INTO trials (number, study_id, state, datetime_start, datetime_complete)
  SELECT count(*), %s, %s::trialstate, %s::timestamp, %s::timestamp FROM trials WHERE study_id = %s
  RETURNING trial_id),
params AS (
  INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json)
  SELECT trial_id, name, value, distribution
  FROM new, unnest(%s::text[], %s::float8[], %s::text[]) AS rows (name, value, distribution)),
attributes AS (
  INSERT INTO trial_user_attributes (trial_id, key, value_json)
  SELECT trial_id, key, value FROM new, unnest(%s::text[], %s::text[]) AS rows (key, value)),
speeds AS (
  INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type)
  SELECT trial_id, step, value, 'FINITE' FROM new, unnest(%s::int[], %s::float8[]) AS rows (step, value)),
score AS (
  INSERT INTO trial_values (trial_id, objective, value, value_type)
  SELECT trial_id, 0, value, 'FINITE' FROM new, unnest(%s::float8[]) AS rows (value))
SELECT trial_id FROM new"""

# `set_study_user_attr`.
_STUDY_ATTRIBUTE = """
INSERT INTO study_user_attributes (study_id, key, value_json) VALUES (%s, %s, %s)
ON CONFLICT (study_id, key) DO UPDATE SET value_json = EXCLUDED.value_json"""
# `set_trial_user_attr`, `set_trial_intermediate_value` and `set_trial_state_values`, only of a running trial. The lock
# keeps it running until all is written.
_LOCK_TRIAL = "SELECT trial_id FROM trials WHERE trial_id = %s AND state = 'RUNNING' FOR UPDATE"
_TRIAL_ATTRIBUTE = """
INSERT INTO trial_user_attributes (trial_id, key, value_json)
SELECT trial_id, %s, %s FROM trials WHERE trial_id = %s AND state = 'RUNNING'
ON CONFLICT (trial_id, key) DO UPDATE SET value_json = EXCLUDED.value_json"""
_SPEED = """
INSERT INTO trial_intermediate_values (trial_id, step, intermediate_value, intermediate_value_type)
SELECT trial_id, %s, %s, 'FINITE' FROM trials WHERE trial_id = %s AND state = 'RUNNING'
ON CONFLICT (trial_id, step) DO UPDATE SET intermediate_value = EXCLUDED.intermediate_value"""
_SCORE = """
INSERT INTO trial_values (trial_id, objective, value, value_type)
SELECT trial_id, 0, %s, 'FINITE' FROM trials WHERE trial_id = %s AND state = 'RUNNING'"""
_END = """
UPDATE trials SET state = %s::trialstate, datetime_complete = %s::timestamp
WHERE trial_id = %s AND state IN ('RUNNING', 'WAITING') RETURNING trial_id"""


class _Statement(NamedTuple):
    text: str
    values: tuple[Any, ...]


class ServerStorage(BaseStorage):
    """Optuna storage of one study on a PostgreSQL server.

    Writes are durable after `flush` and each new or finished trial. An error clears the cache.

    Args:
        tables: Storage on the same tables, for infrequent calls.
        connect: Returns a separate connection on which each text is a transaction.
    """

    def __init__(self, study: str, tables: RDBStorage, connect: Callable[[], sqlalchemy.Connection]) -> None:
        self._group = study, f"{study}~"
        self._tables = tables
        self._connect = connect
        self._connection: sqlalchemy.Connection | None = None
        self._clear()

    def _clear(self) -> None:
        self._studies: dict[int, tuple[str, dict[str, Any]]] | None = None  # names and attributes
        self._trials: dict[int, FrozenTrial] = {}
        self._study_of: dict[int, int] = {}
        self._writes: list[_Statement] = []

    @property
    def engine(self) -> sqlalchemy.Engine:
        return self._tables.engine

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._clear()
        if connection is not None:
            with suppress(sqlalchemy.exc.SQLAlchemyError):  # it may be broken
                connection.invalidate()
                connection.close()

    # Queries

    def pull(self) -> None:
        self._query([])

    def flush(self) -> None:
        if self._writes:
            self._send([])

    def _query(self, statements: Sequence[_Statement]) -> list[list[tuple[Any, ...]]]:
        """Run statements after the pending writes, and read updates; return the rows of each."""
        open_trials = [one for one, trial in self._trials.items() if not trial.state.is_finished()]
        last = max(self._trials, default=-1)
        *rows, studies, trials = self._send(
            [
                *statements,
                _Statement(_STUDIES, self._group),
                _Statement(_TRIALS, (*self._group, last, open_trials)),
            ]
        )
        self._studies = {number: (name, _attributes(some)) for number, name, some in studies}
        for trial_id, study_id, *rest in trials:
            self._trials[trial_id] = _trial_of(trial_id, *rest)
            self._study_of[trial_id] = study_id
        for gone in [one for one, study_id in self._study_of.items() if study_id not in self._studies]:
            del self._trials[gone], self._study_of[gone]
        return rows

    def _send(self, statements: Sequence[_Statement]) -> list[list[tuple[Any, ...]]]:
        """Send pending writes and statements as one transaction; return the rows of each statement."""
        waiting = 1 + len(self._writes)
        # the first needs rows: otherwise SQLAlchemy closes the cursor with the rows of the others
        statements = [_Statement("SELECT 1", ()), *self._writes, *statements]
        try:
            if self._connection is None:
                self._connection = self._connect()
            text = ";\n".join(statement.text for statement in statements)
            values = tuple(value for statement in statements for value in statement.values)
            result = self._connection.exec_driver_sql(text, values)
            rows = list(_results(result.cursor))
        except BaseException:
            self.close()
            raise
        self._writes = []
        return rows[waiting:]

    # Reading from the cache

    def _cached(self) -> dict[int, tuple[str, dict[str, Any]]]:
        if self._studies is None:
            self.pull()
        assert self._studies is not None
        return self._studies

    def names(self) -> list[str]:
        return [name for name, _ in self._cached().values()]

    def get_study_id_from_name(self, study_name: str) -> int:
        for number, (name, _) in self._cached().items():
            if name == study_name:
                return number
        raise KeyError(study_name)

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._cached()[study_id][0]

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return [StudyDirection.MAXIMIZE]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return self._cached()[study_id][1]

    def get_trial(self, trial_id: int) -> FrozenTrial:
        self._cached()
        return self._trials[trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        self._cached()
        found = (trial for number, trial in self._trials.items() if self._study_of[number] == study_id)
        trials = [trial for trial in found if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        for number, trial in self._trials.items():
            if trial.number == trial_number and self._study_of[number] == study_id:
                return number
        raise KeyError(trial_number)

    # Writing

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        assert template_trial is not None
        trial = template_trial
        kinds = trial.distributions
        params = [
            (name, float(kinds[name].to_internal_repr(value)), distribution_to_json(kinds[name]))
            for name, value in trial.params.items()
        ]
        values: tuple[Any, ...] = (
            study_id,
            trial.state.name,
            _utc(trial.datetime_start),
            _utc(trial.datetime_complete),
            study_id,
            *_columns(params, 3),
            *_columns([(key, json.dumps(value)) for key, value in trial.user_attrs.items()], 2),
            *_columns([(step, float(speed)) for step, speed in trial.intermediate_values.items()], 2),
            [] if trial.value is None else [float(trial.value)],
        )
        *_, ((number,),) = self._query([_Statement(_LOCK_STUDY, (study_id,)), _Statement(_NEW_TRIAL, values)])
        return int(number)

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        self._cached()[study_id][1][key] = value
        self._writes.append(_Statement(_STUDY_ATTRIBUTE, (study_id, key, json.dumps(value))))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        trial = self._running(trial_id)
        self._trials[trial_id] = trial
        trial.user_attrs = {**trial.user_attrs, key: value}
        self._writes.append(_Statement(_TRIAL_ATTRIBUTE, (key, json.dumps(value), trial_id)))

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._running(trial_id)
        self._writes.append(_Statement(_SPEED, (step, intermediate_value, trial_id)))

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Finish a trial, with its pending writes.

        Raises:
            UpdateFinishedTrialError: Another process has finished it.
        """
        self._running(trial_id)
        self._writes.insert(0, _Statement(_LOCK_TRIAL, (trial_id,)))
        self._writes += [_Statement(_SCORE, (float(value), trial_id)) for value in values or ()]
        end = _Statement(_END, (state.name, _utc(datetime.now()), trial_id))
        if self._query([end]) == [[]]:
            raise UpdateFinishedTrialError(f"trial {trial_id} has ended")
        return True

    def _running(self, trial_id: int) -> FrozenTrial:
        trial = copy.copy(self.get_trial(trial_id))
        self.check_trial_is_updatable(trial_id, trial.state)
        return trial

    # Infrequent calls

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        try:
            return self._tables.create_new_study(directions, study_name)
        finally:
            self.pull()  # another process may have created it

    def get_all_studies(self) -> list[Any]:  # of a private class
        return self._tables.get_all_studies()

    def delete_study(self, study_id: int) -> None:
        self._tables.delete_study(study_id)
        self._clear()

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self._tables.set_study_system_attr(study_id, key, value)

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self._tables.get_study_system_attrs(study_id)

    def set_trial_param(self, trial_id: int, param_name: str, param_value_internal: float, distribution: Any) -> None:
        self._tables.set_trial_param(trial_id, param_name, param_value_internal, distribution)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._tables.set_trial_system_attr(trial_id, key, value)


def _results(cursor: Any) -> Iterable[list[tuple[Any, ...]]]:
    while True:
        yield cursor.fetchall() if cursor.description else []
        if not cursor.nextset():
            return


def _columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    table = list(rows)
    return [[row[place] for row in table] for place in range(width)]


def _attributes(written: dict[str, str] | None) -> dict[str, Any]:
    return {key: json.loads(value) for key, value in (written or {}).items()}


def _trial_of(
    trial_id: int,
    number: int,
    state: str,
    started: datetime | None,
    ended: datetime | None,
    params: list[tuple[str, float, str]] | None,
    attributes: dict[str, str] | None,
    speeds: list[tuple[int, float | None, str]] | None,
    scores: list[tuple[float | None, str]] | None,
) -> FrozenTrial:
    distributions = {name: json_to_distribution(distribution) for name, _, distribution in params or ()}
    return FrozenTrial(
        number=number,
        trial_id=trial_id,
        state=TrialState[state],
        value=None,
        values=[_number(*score) for score in scores] if scores else None,
        datetime_start=_local(started),
        datetime_complete=_local(ended),
        params={name: distributions[name].to_external_repr(value) for name, value, _ in params or ()},
        distributions=distributions,
        user_attrs=_attributes(attributes),
        system_attrs={},
        intermediate_values={step: _number(value, kind) for step, value, kind in speeds or ()},
    )


def _number(value: float | None, kind: str) -> float:
    if value is not None:
        return float(value)
    return {"INF_POS": math.inf, "INF_NEG": -math.inf}.get(kind, math.nan)


def _utc(local: datetime | None) -> datetime | None:
    return local.astimezone(UTC).replace(tzinfo=None) if local else None


def _local(utc: datetime | None) -> datetime | None:
    return utc.replace(tzinfo=UTC).astimezone().replace(tzinfo=None) if utc else None
