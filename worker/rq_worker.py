"""`python -m worker.rq_worker`: the process that runs provision jobs.

An RQ SimpleWorker (no fork per job) that outlives its Redis: RQ's own loop ends at the first surprise, so it is started again with a
capped back-off until a signal asks for the end. RQ's pub/sub thread is left out: it wakes five times a second for commands that a
SimpleWorker cannot obey.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import redis.exceptions
import structlog
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.serializers import JSONSerializer
from rq.worker import WorkerStatus

from app.ledger.settings import get_settings
from app.ledger.wakeup import Waker, make_sync_client, queue_name
from worker import provision
from worker.logs import configure_logs

log = structlog.get_logger("worker.rq_worker")

_WORKER_TTL_SECONDS = 25
"""RQ blocks for 15 s less than this at a time: so often does an idle worker look after abandoned jobs, and so soon does it notice
that its Redis went silent."""
_MAINTENANCE_SECONDS = 10
_BACKOFF_SECONDS = (0.2, 2.0)

_stop = threading.Event()


class ProvisionWorker(SimpleWorker):
    """RQ's worker, stopped by one signal, however often it comes."""

    max_connection_wait_time = 2.0

    def subscribe(self) -> None:
        pass

    def unsubscribe(self) -> None:
        pass

    def request_stop(self, signum: int, frame: FrameType | None) -> None:
        _stop.set()
        provision.request_stop()
        self._stop_requested = True
        if self.get_state() != WorkerStatus.BUSY:
            raise StopRequested

    def request_force_stop(self, signum: int, frame: FrameType | None) -> None:
        self.request_stop(signum, frame)


def _on_signal(_signum: int, _frame: FrameType | None) -> None:
    _stop.set()
    provision.request_stop()


def main() -> int:
    settings = get_settings()
    configure_logs(settings.log_level, "worker")
    backoff = _BACKOFF_SECONDS[0]
    log.info("worker.started")
    while not _stop.is_set():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _on_signal)
        started = time.monotonic()
        try:
            # Whatever its predecessor left is looked at first, without waiting for somebody to notice.
            Waker(settings.redis).enqueue()
            _serve(settings.redis.namespace, make_sync_client(settings.redis))
        except (redis.exceptions.RedisError, OSError) as error:
            log.warning("worker.no_redis", error=type(error).__name__)
        except StopRequested:
            break
        if _stop.is_set():
            break
        if time.monotonic() - started > 10:
            backoff = _BACKOFF_SECONDS[0]
        _stop.wait(backoff)
        backoff = min(backoff * 2, _BACKOFF_SECONDS[1])
    provision.close()
    log.info("worker.stopped")
    return 0


def _serve(namespace: str, client: Any) -> None:
    worker = ProvisionWorker(
        [Queue(queue_name(namespace), connection=client, serializer=JSONSerializer)],
        connection=client,
        serializer=JSONSerializer,
        default_result_ttl=0,
        worker_ttl=_WORKER_TTL_SECONDS,
        maintenance_interval=_MAINTENANCE_SECONDS,
        log_job_description=False,
    )
    worker.work(logging_level=None)


if __name__ == "__main__":
    sys.exit(main())
