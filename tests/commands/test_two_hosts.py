"""Two hosts on one study, the network of one of which is cut: the short form of ``python -m tests.soak netns``."""

import pytest

from tests.netns import hosts
from tests.postgresql import running_server
from tests.soak_netns import NAMES, Cut, cut


@pytest.mark.services
def test_what_both_finished_is_in_the_database_once() -> None:
    """Trials go on during the cut, and are written behind it."""
    with hosts(NAMES) as made, running_server({host.near: host.network for host in made}) as server:
        assert cut(made, server.new_database("netns"), Cut(budget_s=45.0, after_s=15.0, cut_s=10.0))
