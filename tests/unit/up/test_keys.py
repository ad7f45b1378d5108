"""The key file: hashes only, private, whole at any moment, and safe against two writers."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from worker.up import keys


def test_the_file_holds_hashes_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    key = keys.add_key(tmp_path, "ann", tenant="team-a", role="user")
    text = (tmp_path / "keys.json").read_text()
    assert key not in text
    assert json.loads(text)["keys"] == [
        {
            "name": "ann",
            "tenant": "team-a",
            "role": "user",
            "sha256": hashlib.sha256(key.encode()).hexdigest(),
        }
    ]
    assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
    assert key.startswith("sm_") and len(key) == 46


def test_a_name_is_given_once_and_a_removed_key_is_gone(tmp_path: Path) -> None:
    keys.add_key(tmp_path, "ann", tenant="a", role="user")
    with pytest.raises(keys.KeyChangeRefused, match="already"):
        keys.add_key(tmp_path, "ann", tenant="b", role="user")
    keys.remove_key(tmp_path, "ann")
    assert keys.read_keys(tmp_path) == []
    with pytest.raises(keys.KeyChangeRefused, match="no key"):
        keys.remove_key(tmp_path, "ann")


@pytest.mark.parametrize("name", ["", "a b", "../x", "a\nb", "-x", "x" * 64])
def test_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(keys.KeyChangeRefused):
        keys.add_key(tmp_path, name, tenant="t", role="user")
    assert not (tmp_path / "keys.json").exists()


def test_the_first_key_is_made_once_and_read_again(tmp_path: Path) -> None:
    first = keys.ensure_first_key(tmp_path)
    assert first is not None and keys.ensure_first_key(tmp_path) == first
    assert (tmp_path / "api-key").stat().st_mode & 0o777 == 0o600
    assert keys.read_keys(tmp_path)[0]["role"] == "operator"


def test_a_removed_first_key_is_not_brought_back(tmp_path: Path) -> None:
    keys.ensure_first_key(tmp_path)
    keys.remove_key(tmp_path, keys.FIRST_KEY)
    assert keys.ensure_first_key(tmp_path) is None
    assert keys.read_keys(tmp_path) == []


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "worker.up.keys", "add"]
    writers = [
        subprocess.Popen([*command, f"k{n}", "--data-dir", str(tmp_path)], stdout=subprocess.DEVNULL)
        for n in range(6)
    ]
    assert [writer.wait(30) for writer in writers] == [0] * 6
    assert {entry["name"] for entry in keys.read_keys(tmp_path)} == {f"k{n}" for n in range(6)}


def test_a_folder_without_keys_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert keys.main(["list", "--data-dir", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == "" and str(tmp_path) in said.err
