"""Processes: started below a guard, forked from a zygote, watched, ended."""
