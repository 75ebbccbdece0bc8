"""``python -m tests.recorded``: records the study again with today's code."""

from tests.recorded.recording import write_asset

write_asset()
