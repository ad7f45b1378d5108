"""Measurements: scripts that print their figures from one run. Nothing here is collected by pytest."""
