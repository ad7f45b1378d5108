"""Backends that sandboxes live in, one module or package each, behind the protocol in `base`."""
