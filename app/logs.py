"""Structured logs: one JSON object a line on standard output, written without buffering so that a kill loses nothing.

Fields are named one by one where something is logged; no request's headers, query or body are ever passed on whole, because
they hold keys, environment values and file contents.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import msgspec
import structlog

from app.ledger.logline import text_line, text_wanted

LEVELS: Final = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_encoder: Final = msgspec.json.Encoder(enc_hook=str)
_AS_TEXT: Final = text_wanted()


def _render(_logger: Any, _name: str, event: Any) -> bytes:
    if _AS_TEXT:
        return text_line(event, process="app").encode(errors="replace")
    return _encoder.encode({"process": "app", **event})


def configure(level: str) -> None:
    """Set up this process's logs. Foreign libraries log through the standard library, to stderr, from warnings on."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS.get(level.lower(), 20)),
        logger_factory=structlog.BytesLoggerFactory(sys.stdout.buffer),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
