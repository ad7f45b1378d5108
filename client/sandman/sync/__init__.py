"""The blocking shell: the asynchronous client, driven from any thread."""
