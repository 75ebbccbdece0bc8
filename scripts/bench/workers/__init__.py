"""Benchmark of worker processes on one study: throughput, and what becomes of trials when workers go."""
