"""Search: a problem is opened, its time divided, the next trial chosen, the best confirmed."""
