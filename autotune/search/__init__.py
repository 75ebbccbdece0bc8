"""Which run comes next, and when to stop: the record, the proposals, the budget, the confirmation."""
