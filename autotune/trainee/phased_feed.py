"""Phases of the feeds of `autotune.tf`, which count the work in a batch beside the fetch, so that both go together."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from autotune.trainee.instrumentation import Instrumentation
from autotune.trainee.kept_batches import in_new_containers
from autotune.trainee.loop import Loop
from autotune.trainee.phased_fetch import around_phased_fetch

_FEEDS = ("feed", "Feed"), ("two_stage", "TwoStageFeed")


def observe(loop: Loop, instrumentation: Instrumentation) -> None:
    """Have those feeds follow the phases that have been imported; without phases there is nothing to do."""
    if loop.phased is None:
        return
    for module, name in _FEEDS:
        feed = getattr(sys.modules.get(f"autotune.tf.{module}"), name, None)
        if feed is not None and not any(one.owner is feed for one in instrumentation.replaced):
            around_phased_fetch(
                loop.phased,
                instrumentation,
                (feed, "__next__"),
                lambda feed: feed,
                renewed=_renewed,
                arrays_of=lambda fetched: fetched.batch,
            )


def _renewed(fetched: Any) -> Any:
    return dataclasses.replace(fetched, batch=in_new_containers(fetched.batch), wait_s=0.0)
