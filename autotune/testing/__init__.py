"""Contract suites, fakes and the simulated runner, for tests and benchmarks."""
