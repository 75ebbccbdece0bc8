"""One trial of the trainer, from its folder to its ending; nothing else starts, signals or waits for processes."""
