"""Command lines of the benchmarks."""
