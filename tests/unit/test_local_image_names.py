"""What can be an image's name, checked before anything is written or run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ledger.images import ImageNameInvalid, check_image_name


@pytest.mark.parametrize(
    "name",
    [
        "host",
        "python:3.12",
        "library/python",
        "registry.example:5000/team/task:v1.2_3-x",
        "ghcr.io/a/b@sha256:" + "0" * 64,
        "localhost/x",
        "localhost:5000/x",
        "debian-12.tar",
        "Registry.Example/x",
        "/srv/images/my image.tar",
    ],
)
def test_names(name: str) -> None:
    check_image_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "UPPER//x",
        "UPPER",
        "UPPER/x",
        "--privileged",
        "-v",
        "alpine;id",
        "$(id)",
        "`id`",
        "a b",
        "a\nb",
        "alpine\n",
        "a\0b",
        "https://user:secret@registry.example/x",
        "user:secret@registry.example/x",
        "../x",
        "a/../b",
        "/etc/../root",
        "/a//b",
        "/a/",
        "/",
        "/a\n",
        "x" * 513,
        "x:",
        "x@sha256:12",
    ],
)
def test_not_names(name: str) -> None:
    with pytest.raises(ImageNameInvalid):
        check_image_name(name)


@given(st.text(max_size=80))
def test_nothing_that_passes_could_be_an_option_or_shell_code(name: str) -> None:
    try:
        check_image_name(name)
    except ImageNameInvalid:
        return
    assert not name.startswith("-")
    if not name.startswith("/"):
        assert not set(name) & set(" \t\n;$`|&<>()'\"\\*?[]{}!#~")
