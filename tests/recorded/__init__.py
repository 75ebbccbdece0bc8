"""A recorded study: what a search has left in a project, as an asset for tests that read it.

``python -m tests.recorded`` records it again with today's code. A test compares it with what is
written now.
"""
