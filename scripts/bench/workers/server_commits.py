"""Transactions that a PostgreSQL server has committed."""

import sqlalchemy
from optuna.storages import RDBStorage

from autotune.search.problem import Problem

_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


def commits(problem: Problem) -> int | None:
    """Return the number of transactions that the server of a study has committed in its database.

    Its processes report them within a second or two.

    Returns:
        None where the study is on no such server.

    Raises:
        StudyError: It cannot be reached.
    """
    connection = problem.storage.connect(problem.study, reads_only=True)
    if not connection.is_remote or not isinstance(connection.storage, RDBStorage):
        return None
    try:
        with connection.expected(), connection.storage.engine.connect() as database:
            return int(database.execute(sqlalchemy.text(_COMMITS)).scalar_one())
    finally:
        connection.close()
