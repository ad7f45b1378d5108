"""Entry of `python -m worker.up`: from the command line to a running supervisor."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from pathlib import Path

from worker.up import folders as places
from worker.up import keys, preflight
from worker.up.children import make_environment, plan_children
from worker.up.errors import StartRefused
from worker.up.folders import Folders
from worker.up.options import Options, parse
from worker.up.report import Report
from worker.up.spawn import become_subreaper
from worker.up.supervisor import Supervisor

OPEN_FILES = 65536
"""Each sandbox with an open connection takes a few descriptors in the API; the usual soft limit of 1,024 ends at about 300."""


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    report = Report(options.log_format)
    try:
        supervisor = prepare(options, report)
    except StartRefused as refused:
        report.say(
            "refused",
            f"cannot start. {refused.problem}\n         → {refused.remedy}"
            if options.log_format == "text"
            else str(refused),
        )
        return 1
    return asyncio.run(supervisor.run())


def prepare(options: Options, report: Report) -> Supervisor:
    """Everything up to the first process. Raises StartRefused."""
    os.umask(0o077)
    daemon = preflight.find_daemon()
    valkey = preflight.find_valkey() if options.redis_url is None else None
    preflight.check_image_roots(image_roots(options))
    # Whoever holds the port may be this very folder's service: that is the better thing to be told. Otherwise nothing is made yet.
    if not places.in_use(options.data_dir):
        preflight.choose_address(options.host, options.port)
    made = places.Made(options.data_dir)
    try:
        folders = places.prepare(options.data_dir, sandbox_uid=sandbox_uid())
    except StartRefused:
        # Refused because another start was faster: then what is there is that one's.
        if not places.in_use(options.data_dir):
            made.undo()
        raise
    try:
        return prepare_in(folders, options, report, daemon=daemon, valkey=valkey)
    except StartRefused:
        made.undo(folders.storage)
        folders.release()
        raise


def prepare_in(
    folders: Folders, options: Options, report: Report, *, daemon: Path, valkey: Path | None
) -> Supervisor:
    preflight.check_lengths(folders)
    host, port = preflight.choose_address(options.host, options.port)
    settings = settings_for(options, folders, host=host, port=port, daemon=str(daemon))
    env = make_environment(settings, preflight.SERVICE_ROOT, inherited=os.environ)
    places.ensure_secret(folders.data)
    key = keys.ensure_first_key(folders.data)
    report.say("checking", f"checking this machine (data in {folders.data})")
    preflight.run_probe(
        env
        | {
            "SANDMAN_UP_REDIS_URL": options.redis_url or "",
            "SANDMAN_UP_ALLOW_VOLATILE": "1" if options.allow_volatile_redis else "",
        }
    )
    raise_open_files()
    become_subreaper()
    plans = plan_children(folders, valkey)
    return Supervisor(folders, plans, env, host=host, port=port, key=key, report=report)


def settings_for(options: Options, folders: Folders, *, host: str, port: int, daemon: str) -> dict[str, str]:
    """The SANDMAN_* variables that the start decides; all others are passed on as they are."""
    return {
        "SANDMAN_DATA_DIR": str(folders.data),
        "SANDMAN_RUNTIME_DIR": str(folders.runtime),
        "SANDMAN_STORAGE_DIR": str(folders.storage),
        "SANDMAN_KEYS_FILE": str(folders.data / "keys.json"),
        "SANDMAN_SECRET_FILE": str(folders.data / "secret"),
        "SANDMAN_REDIS_URL": options.redis_url or f"unix://{folders.valkey_socket}",
        "SANDMAN_PROVIDER": options.provider,
        "SANDMAN_IMAGE_ROOTS": ":".join(str(root) for root in image_roots(options)),
        "SANDMAN_DAEMON_PATH": daemon,
        "SANDMAN_HOST": host,
        "SANDMAN_PORT": str(port),
        "SANDMAN_LOG_LEVEL": options.log_level,
        "SANDMAN_LOG_FORMAT": options.log_format,
    }


def image_roots(options: Options) -> list[Path]:
    given = os.environ.get("SANDMAN_IMAGE_ROOTS", "").split(":")
    return list(options.image_roots) or [Path(root).absolute() for root in given if root]


def sandbox_uid() -> int:
    return int(os.environ.get("SANDMAN_SANDBOX_UID") or places.SANDBOX_UID_DEFAULT)


def raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))


if __name__ == "__main__":
    sys.exit(main())
