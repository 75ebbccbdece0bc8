"""The user's files around the trials: looked at, copied, put back."""
