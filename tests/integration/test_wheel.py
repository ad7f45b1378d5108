"""The wheel: one top-level package, a daemon inside, and a service that runs from a fresh environment outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.service import ROOT, dying_with_us, eventually
from worker.up.folders import runtime_dir

CLEAN_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_only_one_package_lands_in_site_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        daemon = archive.getinfo("sandman/_service/bin/sandmand")
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"sandman"}
    assert {name.split("/")[2] for name in names if name.startswith("sandman/_service/")} == {
        "app",
        "bin",
        "static",
        "templates",
        "worker",
    }
    assert (daemon.external_attr >> 16) & 0o111 == 0o111
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".go"))]
    assert wheel.name.endswith(("-py3-none-manylinux2014_x86_64.whl", "-py3-none-manylinux2014_aarch64.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel and the locked packages; answers its bin folder."""
    home = tmp_path_factory.mktemp("installed") / "venv"
    uv = [str(Path(sys.executable).with_name("uv"))]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(home)], check=True, timeout=120)
    install = [*uv, "pip", "install", "--quiet", "--python", str(home / "bin" / "python")]
    subprocess.run(
        [*install, "--no-deps", "--requirement", str(ROOT / "deploy/requirements.lock")],
        check=True,
        timeout=300,
    )
    subprocess.run([*install, str(wheel)], check=True, timeout=120)
    return home / "bin"


def test_the_import_path_of_users_stays_clean(installed: Path, tmp_path: Path) -> None:
    def importing(name: str) -> int:
        command = [str(installed / "python"), "-c", f"import {name}"]
        return subprocess.run(
            command, cwd=tmp_path, env=CLEAN_ENV, capture_output=True, check=False
        ).returncode

    assert importing("sandman") == 0
    for name in ("app", "worker", "tests", "hatch_build"):
        assert importing(name) == 1


def test_the_installed_service_runs_a_command(installed: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    log = tmp_path / "log"
    # As somebody would start it, from their own project with a module of the same name in it.
    (tmp_path / "app.py").write_text("raise SystemExit('the wrong app')")
    command = dying_with_us([str(installed / "sandman"), "up", "--port", "0", "--data-dir", str(data)])
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, env=CLEAN_ENV, stdout=output, stderr=output)
    try:
        record = data / "service.json"
        assert eventually(lambda: record.exists() or process.poll() is not None, 60)
        assert process.poll() is None, log.read_text()
        url = eventually(lambda: record.read_text().partition('"url": "')[2].partition('"')[0], 5)
        assert url in log.read_text()
        assert httpx.get(f"{url}/health/ready").status_code == 200
        run = [str(installed / "sandman"), "run", "--image", "host", "--", "echo", "from the wheel"]
        client_env = CLEAN_ENV | {
            "SANDMAN_URL": url,
            "SANDMAN_API_KEY": (data / "api-key").read_text().strip(),
        }
        done = subprocess.run(
            run, cwd=tmp_path, env=client_env, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, "from the wheel\n"), done.stderr
    finally:
        process.terminate()
        process.wait(20)
    assert not runtime_dir(data).exists()
