"""Phases of the feeds of `autotune.tf`; without phases there is nothing to observe in them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from autotune.trainee.batch import in_new_containers
from autotune.trainee.observer import Observer
from autotune.trainee.phases import PhasedLoop


class FeedObserver(Observer):
    """Phases of the feed of `autotune.tf`, which counts the work in a batch beside the fetch: both go together."""

    place = "autotune.tf.feed:Feed.__next__"

    def install(self) -> None:
        if self.phased is not None:
            self.attempt(self.place, functools.partial(self._follow, self.phased))

    def _follow(self, phased: PhasedLoop, owner: Any, name: str) -> None:
        fetch = phased.around_fetch(
            getattr(owner, name),
            lambda feed: feed,
            renewed=lambda one: dataclasses.replace(one, batch=in_new_containers(one.batch), wait_s=0.0),
            arrays_of=lambda fetched: fetched.batch,
        )
        self.instrumentation.put(owner, name, fetch)


class TwoStageFeedObserver(FeedObserver):
    """Phases of the feed that loads in two stages."""

    place = "autotune.tf.two_stage:TwoStageFeed.__next__"
