"""The asynchronous shell: everything that touches sockets, tasks and files."""
