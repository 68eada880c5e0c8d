"""The application of the README's workers, with Celery's soft shutdown turned on."""

from __future__ import annotations

from tasks import app
from tests.processes.soft import SOFT_SECONDS

app.conf.worker_soft_shutdown_timeout = SOFT_SECONDS
