"""Search loop: the choice of the next trial, the division of the time, the confirmation, the end."""
