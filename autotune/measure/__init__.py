"""What the machine did during a trial: steps, host and GPU, and the statistics that turn them into numbers."""
