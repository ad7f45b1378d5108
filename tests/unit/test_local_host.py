"""The machine as an image: nothing secret is copied, and what cannot work here is explained."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.local_archives import own_folders
from worker.providers.base import ProviderUnavailable
from worker.providers.local import host
from worker.providers.local.folders import Folders
from worker.providers.local.host import has_mounts_inside, host_trees, is_denied
from worker.providers.local.options import instance_name
from worker.providers.local.programs import explain, find_daemon
from worker.providers.local.sandboxes import environment
from worker.providers.local.workspace import Base


@pytest.mark.parametrize(
    ("name", "denied"),
    [
        ("shadow", True),
        ("shadow-", True),
        ("gshadow", True),
        ("sudoers", True),
        ("sudoers.d", True),
        ("ssh_host_ed25519_key", True),
        ("server.key", True),
        ("id_rsa", True),
        ("krb5.keytab", True),
        ("passwd", False),
        ("ssh_config", False),
        ("ca-certificates.crt", False),
    ],
)
def test_names_that_are_never_copied(name: str, denied: bool) -> None:
    assert is_denied(name) is denied


def test_people_of_the_machine_are_not_shown() -> None:
    lines = [
        "root:x:0:0::/:",
        "jane:x:1000:1000::/:",
        "nobody:x:65534:65534::/:",
        "daemon:x:1:1::/:",
        "+::::::",
        "",
    ]
    assert [line.split(":")[0] for line in host.system_accounts(lines)] == ["root", "nobody", "daemon"]


def test_usr_merged_and_older_layouts(tmp_path: Path) -> None:
    for name in ("usr", "opt", "sbin", "lib64"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin").symlink_to("usr/bin")
    assert host_trees(tmp_path) == ["usr", "opt", "sbin", "lib64"]


def test_mounts_inside_a_tree() -> None:
    mountinfo = (
        "1 0 8:1 / / rw - ext4 a rw\n2 1 8:2 / /usr rw - ext4 b rw\n3 1 0:5 / /opt/x rw - tmpfs c rw\n"
    )
    assert not has_mounts_inside("usr", mountinfo)
    assert has_mounts_inside("opt", mountinfo)


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("host")
    folders: Folders = own_folders(base)
    host.build(folders, "key", hidden=())
    return folders.host / "key"


def test_etc_holds_no_secrets(layers: Path) -> None:
    etc = layers / "root/etc"
    assert (etc / "passwd").is_file() and (etc / "group").is_file()
    for line in (etc / "shadow").read_text().splitlines():
        assert line.split(":")[1] == "*"
    assert not (etc / "sudoers").exists()
    for path in etc.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert b"PRIVATE KEY-----" not in path.read_bytes(), path


def test_the_skeleton_has_folders_only(layers: Path) -> None:
    usr = layers / "trees/usr"
    assert (usr / "bin").is_dir()
    found = [path for path in usr.glob("*/*") if not _is_mask(path)]
    assert found and all(path.is_dir() for path in found)


def _is_mask(path: Path) -> bool:
    return path.is_char_device()


def test_own_folders_inside_a_tree_are_hidden(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "service/secret").mkdir(parents=True)
    (source / "open").mkdir()
    (source / "closed").mkdir(mode=0o700)
    (source / "private").write_text("x")
    (source / "private").chmod(0o600)
    host._skeleton(source, tmp_path / "target", own_folders(tmp_path), (source / "service",))
    assert (tmp_path / "target/open").is_dir()
    for name in ("service", "closed", "private"):
        assert _is_mask(tmp_path / "target" / name), name


def test_layers_of_earlier_states_go_when_nobody_stands_on_them(tmp_path: Path) -> None:
    folders = own_folders(tmp_path)
    for name in ("old", "used", "young"):
        (folders.host / name / "root").mkdir(parents=True)
        if name != "young":
            os.utime(folders.host / name, (1, 1))
    host.drop_unused(folders, {"used"})
    assert sorted(path.name for path in folders.host.iterdir()) == ["used", "young"]


@pytest.mark.parametrize(
    ("message", "sysctls", "advice"),
    [
        (
            "bwrap: setting up uid map: Permission denied",
            {"kernel/apparmor_restrict_unprivileged_userns": "1"},
            "AppArmor",
        ),
        ("bwrap: No permissions", {"kernel/unprivileged_userns_clone": "0"}, "unprivileged_userns_clone=1"),
        ("bwrap: No space left", {"user/max_user_namespaces": "0"}, "max_user_namespaces=15000"),
        ("bwrap: Creating new namespace failed: Operation not permitted", {}, "container"),
        ("bwrap: Can't make overlay mount on /newroot/: Invalid argument", {}, "--data-dir"),
        ("something else", {}, "something else"),
    ],
)
def test_what_to_do_when_sandboxes_cannot_be_made(
    tmp_path: Path, message: str, sysctls: dict[str, str], advice: str
) -> None:
    for name, value in sysctls.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(value)
    assert advice in explain(message, tmp_path)


def test_a_missing_daemon_is_said_with_what_to_do(tmp_path: Path) -> None:
    from dataclasses import replace

    from app.ledger.settings import read_settings
    from worker.providers.local.options import read_options

    options = replace(read_options(read_settings({}), {}), daemon=tmp_path / "none")
    with pytest.raises(ProviderUnavailable, match="SANDMAN_DAEMON_PATH"):
        find_daemon(options)


def test_two_installations_have_two_names(tmp_path: Path) -> None:
    names = {instance_name(n, s) for n in ("sandman", "other/../x") for s in (tmp_path / "a", tmp_path / "b")}
    assert len(names) == 4
    assert all("/" not in name and "." not in name for name in names)


def test_the_callers_environment_is_over_the_images(tmp_path: Path) -> None:
    from worker.providers.local.archives import ImageConfig

    config = ImageConfig({"PATH": "/image", "HOME": "/image", "A": "1"})
    found = environment(Base("k", tmp_path), config, "/root", {"A": "2", "LD_PRELOAD": "x"})
    assert found == {"PATH": "/image", "HOME": "/image", "A": "2", "LD_PRELOAD": "x"}
