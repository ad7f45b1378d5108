"""From a request of the API to the daemon inside the sandbox, holding the sandbox's lease meanwhile."""
