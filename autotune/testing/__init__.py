"""Contract of runners, fakes and the simulated runner, for tests and benchmarks."""
