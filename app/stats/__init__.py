"""Counts: for callers as JSON, for Prometheus as text."""
