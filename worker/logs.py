"""Structured logs of the worker's processes: one JSON object a line on stderr.

Events carry ids, states and reasons; never a record, a spec, an env or a token.
"""

from __future__ import annotations

import logging
import sys

import structlog

from app.ledger.logline import text_line, text_wanted


def configure_logs(level: str, process: str) -> None:
    """Own events by structlog, and whatever libraries write by `logging`, in the same shape."""
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        stamp,
    ]
    structlog.configure(
        processors=[
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.processors.format_exc_info],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.EventRenamer("event"),
                renderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    structlog.contextvars.bind_contextvars(process=process)
    # One line a job, twice: the drain says more in one.
    for name in ("rq", "rq.worker"):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def renderer() -> structlog.typing.Processor:
    """A line for a person or for a log collector, as `sandman up --log-format` asks."""
    if text_wanted():
        return lambda _logger, _name, event: text_line(event)
    return structlog.processors.JSONRenderer()
