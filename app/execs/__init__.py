"""Commands in a sandbox, over HTTP."""
