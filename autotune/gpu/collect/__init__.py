"""Collector of GPU readings: a process that polls the driver, and the stream that it writes."""
