"""Calibration of the gains that a search promises."""
