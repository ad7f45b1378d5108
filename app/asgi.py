"""The application that the server runs: made from the environment when this module is imported, in the worker process."""

from __future__ import annotations

from app.drain import Drain
from app.factory import create_app
from app.ledger.settings import get_settings
from app.logs import configure
from app.serve import install_drain
from app.tether import die_with_server

die_with_server()
settings = get_settings()
configure(settings.log_level)
drain = Drain()
app, framework = create_app(settings, drain)
install_drain(drain.begin)
