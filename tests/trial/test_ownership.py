"""Ownership of folders, tested as root, who can act as two users."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.trial import folders
from autotune.trial.folders import owners_for, why_exposed, why_not_ours
from tests.users import ALICE, MALLORY, acting_as, made, only_root

pytestmark = only_root


@pytest.mark.parametrize(
    ("owner", "mode", "why"),
    [
        (ALICE, 0o700, None),
        (ALICE, 0o755, None),
        (ALICE, 0o775, None),  # the group is hers alone
        (ALICE, 0o777, "others may write"),
        (ALICE, 0o702, "others may write"),
        (MALLORY, 0o700, "belongs to user 4343"),
        (0, 0o700, "belongs to root"),
    ],
)
def test_a_folder_is_hers_and_closed(owner: int, mode: int, why: str | None, shared: Path) -> None:
    """Another owner, or the right to write for others, is a reason not to use it."""
    folder = made(shared / ".autotune", owner=owner, mode=mode)
    with acting_as(ALICE):
        said = why_not_ours(folder, owners_for(shared / "config.yaml"))
    assert (said is None) == (why is None)
    assert why is None or why in (said or "")


def test_a_group_of_several_is_others(shared: Path) -> None:
    """A folder for a lab is not for one of its members alone."""
    folder = made(shared / ".autotune", owner=ALICE, mode=0o770)
    os.chown(folder, ALICE, 12345)
    assert "others may write" in (why_not_ours(folder, frozenset({ALICE})) or "")


def test_a_group_with_another_member_is_others(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has the number of the owner."""
    folder = made(shared / ".autotune", owner=ALICE, mode=0o770)

    class Group:
        gr_name = "alice"
        gr_mem = ("mallory",)

    # Whoever runs the tests has other groups on their machine.
    monkeypatch.setattr(folders.grp, "getgrgid", lambda _gid: Group)
    assert "others may write" in (why_not_ours(folder, frozenset({ALICE})) or "")


Plant = Callable[[Path], Path]
PLACES: dict[str, tuple[Plant, str | None]] = {
    "her own folder": (lambda at: made(at / "alice", owner=ALICE, mode=0o755), None),
    "a folder like /tmp": (lambda at: at, None),
    "one open to all": (lambda at: made(at / "open", owner=ALICE, mode=0o777), "others may write"),
    "her own within one open to all": (
        lambda at: made(made(at / "open", owner=0, mode=0o777) / "alice", owner=ALICE, mode=0o700),
        "others may write",
    ),
    "her own within another user's": (
        lambda at: made(made(at / "mallory", owner=MALLORY, mode=0o755) / "alice", owner=ALICE, mode=0o700),
        "belongs to user 4343",
    ),
    "one that is still to be made": (lambda at: at / "alice" / "deep", None),
}


@pytest.mark.parametrize(("plant", "why"), PLACES.values(), ids=PLACES)
def test_a_place_is_one_where_nobody_else_can_replace_a_folder(plant: Plant, why: str | None, shared: Path) -> None:
    """All folders up to the root count; the sticky bit keeps others from taking away what is not theirs."""
    place = plant(shared)
    with acting_as(ALICE):
        said = why_exposed(place)
    assert (said is None) == (why is None)
    assert why is None or why in (said or "")
