"""What the machine did during a run: steps, host and GPU, and the statistics that turn them into numbers."""
