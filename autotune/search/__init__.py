"""Search: open a problem, divide its budget, choose and run trials, confirm the best point."""
