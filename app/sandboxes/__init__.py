"""Sandboxes: create, look, wait, renew, delete."""
