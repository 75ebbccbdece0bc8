"""Sentences of a diagnosis that can be said in another language: ids and fields, and a table for each language."""
