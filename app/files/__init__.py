"""Files of a sandbox, through to its daemon."""
