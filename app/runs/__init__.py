"""Runs: one training job or session, its lease, and what it cost."""
