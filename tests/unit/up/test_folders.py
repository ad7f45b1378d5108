"""The service's folders: short socket paths, one supervisor a folder, storage that the sandboxes' user can reach."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.up import folders
from worker.up.errors import StartRefused

UID = 400000


@pytest.fixture
def made() -> Iterator[list[folders.Folders]]:
    """Folders outside tmp_path are removed again."""
    found: list[folders.Folders] = []
    yield found
    for one in found:
        one.release()
        shutil.rmtree(one.storage, ignore_errors=True)


def test_a_long_data_path_still_gives_short_socket_paths(tmp_path: Path, made: list[folders.Folders]) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    made.append(folders.prepare(deep, sandbox_uid=UID))
    assert len(os.fsencode(made[0].runtime)) <= folders.RUNTIME_PATH_MAX
    assert made[0].runtime.stat().st_mode & 0o777 == 0o700


def test_the_same_folder_gives_the_same_places_again(tmp_path: Path, made: list[folders.Folders]) -> None:
    first = folders.prepare(tmp_path / "data", sandbox_uid=UID)
    places = (first.runtime, first.storage)
    first.release()
    made.append(folders.prepare(tmp_path / "data", sandbox_uid=UID))
    assert (made[0].runtime, made[0].storage) == places
    assert json.loads((tmp_path / "data" / "storage.json").read_text()) == {"storage": str(places[1])}


def test_a_second_supervisor_is_told_about_the_first(tmp_path: Path, made: list[folders.Folders]) -> None:
    made.append(folders.prepare(tmp_path / "data", sandbox_uid=UID))
    with pytest.raises(StartRefused, match="Another `sandman up`"):
        folders.prepare(tmp_path / "data", sandbox_uid=UID)


def test_a_start_waits_for_the_last_children_of_a_killed_one(
    tmp_path: Path, made: list[folders.Folders], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "OLD_CHILDREN_SECONDS", 0.2)
    first = folders.prepare(tmp_path / "data", sandbox_uid=UID)
    child = subprocess.Popen(["sleep", "60"], pass_fds=[first.children_lock])
    os.close(first.lock)
    os.close(first.children_lock)
    try:
        with pytest.raises(StartRefused, match="still alive"):
            folders.prepare(tmp_path / "data", sandbox_uid=UID)
    finally:
        child.kill()
        child.wait()
    made.append(folders.prepare(tmp_path / "data", sandbox_uid=UID))


def test_a_folder_that_cannot_be_written_is_named_with_its_remedy(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(StartRefused, match="--data-dir"):
        folders.prepare(blocked, sandbox_uid=UID)
    with pytest.raises(StartRefused, match="--data-dir"):
        folders.prepare(blocked / "below", sandbox_uid=UID)


def test_storage_can_be_entered_by_the_sandboxes_user(tmp_path: Path, made: list[folders.Folders]) -> None:
    """pytest's own folders are 0700: for root, storage under them would be out of the sandboxes' reach."""
    made.append(folders.prepare(tmp_path / "data", sandbox_uid=UID))
    if os.geteuid() == 0:
        enter = "import os,sys; os.setresgid(*[int(sys.argv[2])]*3); os.setresuid(*[int(sys.argv[2])]*3); os.chdir(sys.argv[1])"
        subprocess.run([sys.executable, "-c", enter, str(made[0].storage), str(UID)], check=True)
    else:
        assert made[0].storage == tmp_path / "data" / "storage"


def test_a_tight_umask_does_not_lock_the_sandboxes_out(tmp_path: Path, made: list[folders.Folders]) -> None:
    before = os.umask(0o077)
    try:
        made.append(folders.prepare(tmp_path / "data", sandbox_uid=UID))
    finally:
        os.umask(before)
    assert made[0].data.stat().st_mode & 0o777 == (0o711 if os.geteuid() == 0 else 0o700)


def test_a_folder_of_somebody_else_is_not_used_for_sockets(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    trap.symlink_to(tmp_path)
    with pytest.raises(StartRefused, match="does not belong"):
        folders._make_own(trap)
