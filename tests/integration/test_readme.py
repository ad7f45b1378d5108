"""The examples of the README, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.service import ROOT, Service

README = (ROOT / "README.md").read_text()


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_python_example(service: Service, tmp_path: Path) -> None:
    env = os.environ | {"SANDMAN_URL": service.url, "SANDMAN_API_KEY": service.key}
    command = [sys.executable, "-c", block("python")]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("3\nhello\n\n/tmp\n")


def test_the_curl_example(service: Service, tmp_path: Path) -> None:
    script, replaced = re.subn(r"(?m)^URL=.*$", f"URL={service.url}", block("sh"))
    script, also = re.subn(r"(?m)^KEY=.*$", f"KEY={service.key}", script)
    assert (replaced, also) == (1, 1)
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "hello from" in done.stdout
