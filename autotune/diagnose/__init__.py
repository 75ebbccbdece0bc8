"""Diagnosis of slow training: causes, and the gain from each change."""
