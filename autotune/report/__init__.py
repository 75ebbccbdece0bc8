"""Records turned into what people and scripts read: terminal, log lines, JSON."""
