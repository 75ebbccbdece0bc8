"""State folder and trial folders: their location, ownership, contents and deletion."""
