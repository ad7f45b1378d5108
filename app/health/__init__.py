"""Probes: does this process live, and can it take a create."""
