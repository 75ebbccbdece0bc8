"""Which point to run next: pure, and without any process, clock, file or storage."""
