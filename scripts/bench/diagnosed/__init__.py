"""What a diagnosis is good for: gains as it tells them, and the time that it saves a search."""
