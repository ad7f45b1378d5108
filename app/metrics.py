"""What Prometheus reads from this process. Labels are route templates, methods and fixed words, never ids or paths, so the
number of series is bounded by the code."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry(auto_describe=True)

# From a no-op command (about 1 ms) to the longest wait of a create.
_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600)

REQUESTS: Final = Counter(
    "sandman_http_requests", "Answered HTTP requests", ["method", "route", "status"], registry=REGISTRY
)
REQUEST_SECONDS: Final = Histogram(
    "sandman_http_request_seconds",
    "Time from the request's head to the last byte of its answer",
    ["method", "route"],
    buckets=_BUCKETS,
    registry=REGISTRY,
)
IN_FLIGHT: Final = Gauge("sandman_http_requests_in_flight", "Requests being answered", registry=REGISTRY)
SOCKETS: Final = Gauge("sandman_websockets_open", "Open WebSockets", ["route"], registry=REGISTRY)
HANG_UPS: Final = Counter(
    "sandman_http_hang_ups", "Callers that went away before they were answered", ["route"], registry=REGISTRY
)
EXECS: Final = Counter("sandman_execs", "Commands that ended, by outcome", ["outcome"], registry=REGISTRY)
EXEC_SAMPLES_DROPPED: Final = Counter(
    "sandman_exec_samples_dropped", "Commands that are missing in the runs' reports", registry=REGISTRY
)
TOUCHES: Final = Counter(
    "sandman_lease_touches", "Leases extended because something was in use", registry=REGISTRY
)
DAEMON_CONNECTIONS: Final = Gauge(
    "sandman_daemon_connections", "Open connections to daemons", ["state"], registry=REGISTRY
)
ROUTES_CACHED: Final = Gauge("sandman_routes_cached", "Sandboxes whose address is cached", registry=REGISTRY)

LIVE: Final = Gauge("sandman_sandboxes", "Sandboxes by state, of all tenants", ["state"], registry=REGISTRY)
QUEUE_DEPTH: Final = Gauge("sandman_queue_depth", "Sandboxes that wait to be created", registry=REGISTRY)
QUEUE_OLDEST: Final = Gauge(
    "sandman_queue_oldest_seconds", "Age of the longest waiting one", registry=REGISTRY
)
ORPHANS: Final = Gauge("sandman_orphans", "Alive in the backend and claimed by no record", registry=REGISTRY)
ANOMALIES: Final = Gauge(
    "sandman_ledger_anomalies",
    "Contradictions that the ledger found in itself and mended; anything but none is a fault",
    ["kind"],
    registry=REGISTRY,
)
PACING_RATE: Final = Gauge("sandman_pacing_rate", "Creates a second that are let through", registry=REGISTRY)
RECLAIMED: Final = Gauge(
    "sandman_reclaimed", "Sandboxes taken back, by reason", ["reason"], registry=REGISTRY
)
