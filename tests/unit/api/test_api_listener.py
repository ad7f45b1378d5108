"""Options set on a listening socket are those of every connection accepted from it."""

from __future__ import annotations

import socket

from app.listener import UNACKNOWLEDGED_MILLISECONDS, tune_listeners


def test_accepted_connections_inherit_the_options() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert tune_listeners(port) == 1
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                timeout = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
                assert timeout == UNACKNOWLEDGED_MILLISECONDS
    assert tune_listeners(port) == 0
