"""Tests of studies that travel."""
