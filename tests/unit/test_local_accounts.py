"""Who a sandbox runs as inside, from the image's own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.providers.local.accounts import Account, look_up
from worker.providers.local.errors import ImageInvalid


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "etc/passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001:App:/home/app:/bin/sh\nodd:x:bad:1::/:\nshort:x\n"
    )
    (tmp_path / "etc/group").write_text("root:x:0:\nstaff:x:50:app\n")
    return tmp_path


@pytest.mark.parametrize(
    ("asked", "account"),
    [
        (None, Account(0, 0, "root", "/root")),
        ("", Account(0, 0, "root", "/root")),
        ("app", Account(1000, 1001, "app", "/home/app")),
        ("1000", Account(1000, 1001, "app", "/home/app")),
        ("1000:1000", Account(1000, 1000, "app", "/home/app")),
        ("app:staff", Account(1000, 50, "app", "/home/app")),
        ("4242", Account(4242, 4242, None, "/")),
        ("4242:staff", Account(4242, 50, None, "/")),
    ],
)
def test_accounts(root: Path, asked: str | None, account: Account) -> None:
    assert look_up(asked, root) == account


@pytest.mark.parametrize(
    "asked", ["nobody", "app:nogroup", "odd", "-1", "4294967295", "9" * 30, "--uid", "a b", "short", "²"]
)
def test_no_accounts(root: Path, asked: str) -> None:
    with pytest.raises(ImageInvalid):
        look_up(asked, root)


def test_an_image_without_any_files(tmp_path: Path) -> None:
    assert look_up(None, tmp_path) == Account(0, 0, None, "/")
    with pytest.raises(ImageInvalid, match="passwd"):
        look_up("app", tmp_path)


def test_a_passwd_that_leads_out_of_the_image_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "etc").symlink_to("/etc")
    with pytest.raises(ImageInvalid):
        look_up("daemon", tmp_path)
