"""The options of `create` and `run` that describe a sandbox."""

from __future__ import annotations

import argparse
import math
from typing import Any, cast

from sandman.options import CreateOptions, parse_size


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--image", default="host", help='"host", a local root folder or archive, or an image name'
    )
    parser.add_argument("--cpu", type=amount, metavar="CORES")
    parser.add_argument("--memory", type=size, metavar="SIZE", help="such as 512MiB")
    parser.add_argument("--disk", type=size, metavar="SIZE")
    parser.add_argument("--sandbox-user", metavar="USER", help="who runs commands unless told otherwise")
    parser.add_argument("--workdir", metavar="DIR")
    parser.add_argument("--sandbox-env", action="append", default=[], type=pair, metavar="NAME=VALUE")
    parser.add_argument("--label", action="append", default=[], type=pair, metavar="NAME=VALUE")
    parser.add_argument("--in-run", metavar="RUN", help="the run that owns it")
    parser.add_argument("--lifetime", type=amount, metavar="SECONDS", help="the most it ever lives")
    parser.add_argument("--network", choices=("none", "host"))
    parser.add_argument(
        "--wait", type=amount, default=600.0, metavar="SECONDS", help="for it to become ready (600)"
    )


def read(options: argparse.Namespace) -> CreateOptions:
    found: dict[str, Any] = {
        "cpu": options.cpu,
        "memory": options.memory,
        "disk": options.disk,
        "user": options.sandbox_user,
        "workdir": options.workdir,
        "env": dict(options.sandbox_env) or None,
        "labels": dict(options.label) or None,
        "lease_seconds": getattr(options, "lease", None),
        "lifetime_seconds": options.lifetime,
        "policy": {"network": options.network} if options.network else None,
    }
    return cast(CreateOptions, {name: value for name, value in found.items() if value is not None})


def size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def amount(text: str) -> float:
    """Seconds or cores. float() takes "nan" and "inf" too, and neither ends anything."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return value


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value
