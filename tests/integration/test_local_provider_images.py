"""Sandboxes on images: roots without a shell, users and folders of the image, archives; all with the real daemon."""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.ledger.model import Reason
from tests.integration.local_world import (
    TOKEN_SHA256,
    Client,
    Installation,
    new_installation,
    provider_at,
    record,
)
from tests.unit.local_archives import docker_archive, gz, layer, oci_layout
from worker.providers.base import ProviderError
from worker.providers.local.provider import LocalProvider


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    own = new_installation()
    yield own
    own.remove()


@pytest.fixture
async def provider(installation: Installation) -> AsyncIterator[LocalProvider]:
    async with provider_at(installation) as found:
        yield found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The machine's shell and a few programs with the libraries they need, as the content of one layer."""
    root = tmp_path_factory.mktemp("root")
    for program in ("sh", "cat", "id", "ls", "stat"):
        source = shutil.which(program)
        assert source is not None
        _copy(Path(source).resolve(), root / "bin" / program)
        for word in subprocess.run(
            ["ldd", source], capture_output=True, text=True, check=True
        ).stdout.split():
            if word.startswith("/"):
                _copy(Path(word).resolve(), root / word.lstrip("/"))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(root, arcname=".")
    return buffer.getvalue()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755)


PASSWD = layer(
    [
        ("file", "etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n"),
        ("file", "etc/group", b"root:x:0:\napp:x:1000:\n"),
        ("dir", "home/app", 0o755),
        ("file", "etc/hosts", b"1.2.3.4 builder\n"),
    ]
)


async def test_an_images_configuration_is_honoured(
    provider: LocalProvider, installation: Installation, shell: bytes
) -> None:
    config = {
        "Env": ["GREETING=hello", "PATH=/bin"],
        "User": "app",
        "WorkingDir": "/srv/made",
        "Entrypoint": ["/bin/false"],
        "Cmd": ["/nowhere"],
    }
    docker_archive(installation.base / "data/images/app.tar", [shell, PASSWD], config)
    client = Client((await provider.create(record("app", env={"MORE": "1"}), TOKEN_SHA256)).address)
    out = client.out(
        "echo $GREETING $MORE $HOME $PATH; pwd; id -un; id -u; cat /etc/hosts; echo x > f; echo y > /etc/new; stat -c %u f"
    )
    assert out.splitlines() == [
        "hello 1 /home/app /bin",
        "/srv/made",
        "app",
        "1000",
        "127.0.0.1 localhost sandbox",
        "::1 localhost ip6-localhost ip6-loopback",
        "1000",
    ]
    root = Client((await provider.create(record("app", user="0", workdir="/w"), TOKEN_SHA256)).address)
    assert root.out("id -u; pwd").split() == ["0", "/w"]
    assert root.run("ls -d /srv/made /etc/new")["exit_code"] != 0, "what the other sandbox wrote is not here"


async def test_a_root_folder_a_layout_and_the_same_image_at_once(
    provider: LocalProvider, installation: Installation, shell: bytes
) -> None:
    oci_layout(installation.base / "data/images/lay", [gz(shell), gz(PASSWD)])
    folder = installation.base / "data/images/folder"
    folder.mkdir()
    with tarfile.open(fileobj=io.BytesIO(shell)) as tar:
        tar.extractall(folder, filter="tar")
    for name in ("lay", "folder"):
        placements = await asyncio.gather(*(provider.create(record(name), TOKEN_SHA256) for _ in range(8)))
        for placement in placements:
            assert Client(placement.address).out("echo x > /bin/new; cat /bin/new") == "x\n"
    assert not (folder / "bin/new").exists()


async def test_a_root_with_nothing_in_it(provider: LocalProvider, installation: Installation) -> None:
    (installation.base / "data/images/empty").mkdir()
    client = Client((await provider.create(record("empty"), TOKEN_SHA256)).address)
    assert client.request("GET", "/health")[0] == 200
    status, answer = client.request("POST", "/v1/exec", {"command": "true"})
    assert status == 422 and answer["reason"] == "shell_not_found"
    status, answer = client.request("POST", "/v1/exec", {"argv": ["/.sandman/sandmand", "version"]})
    assert status == 200 and answer["exit_code"] == 0


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        ("nosuch:latest", Reason.IMAGE_PULL),
        ("/etc", Reason.IMAGE_PULL),
        ("/root", Reason.IMAGE_PULL),
        ("--privileged", Reason.IMAGE_PULL),
        ("broken", Reason.IMAGE_INVALID),
        ("nouser", Reason.IMAGE_INVALID),
    ],
)
async def test_images_that_cannot_be_used(
    provider: LocalProvider, installation: Installation, image: str, reason: Reason
) -> None:
    images = installation.base / "data/images"
    (images / "broken").write_text("not an archive")
    if not (images / "nouser.tar").exists():
        docker_archive(images / "nouser.tar", [PASSWD], {"User": "ghost"})
    with pytest.raises(ProviderError) as caught:
        await provider.create(record(image), TOKEN_SHA256)
    assert caught.value.reason is reason
    assert (caught.value.retryable, caught.value.final) == (False, reason is Reason.IMAGE_PULL)
    if image == "nosuch:latest":
        assert "broken" in caught.value.detail and "To add one" in caught.value.detail
    assert await provider.list() == []


async def test_image_folders_in_the_way_of_our_own(
    provider: LocalProvider, installation: Installation, shell: bytes
) -> None:
    """/etc as a link that leads out, /sys, /dev and /proc as a file, a link and with content: the sandbox starts or says why."""
    odd = layer(
        [
            ("link", "etc", "/tmp/../../../../outside"),
            ("file", "proc/x", b""),
            ("dir", "dev", 0o755),
            ("file", "dev/x", b""),
        ]
    )
    docker_archive(installation.base / "data/images/odd.tar", [shell, odd])
    client = Client((await provider.create(record("odd"), TOKEN_SHA256)).address)
    assert client.out("cat /outside/hosts").startswith("127.0.0.1 localhost")
    assert not Path("/outside").exists()
    docker_archive(installation.base / "data/images/worse.tar", [shell, layer([("file", "proc", b"")])])
    with pytest.raises(ProviderError):
        await provider.create(record("worse"), TOKEN_SHA256)
    assert [o.phase for o in await provider.list()] == ["running"]
