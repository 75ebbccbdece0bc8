"""Processes: started below a guard, forked from a warm interpreter, watched, ended."""
