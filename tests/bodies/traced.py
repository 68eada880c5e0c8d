"""A module of AGENTRUN_IMPORTS that sets OpenTelemetry up, as the guide says; a file stands for the collector."""

from __future__ import annotations

import os
from pathlib import Path

from celery.signals import worker_process_shutdown
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from agentrun import Context, durable

provider = TracerProvider()
collector = Path(os.environ["COLLECTOR"]).open("a", encoding="utf-8")  # noqa: SIM115 - as long as the process
provider.add_span_processor(
    BatchSpanProcessor(ConsoleSpanExporter(out=collector, formatter=lambda span: span.to_json(indent=None) + "\n"))
)
trace.set_tracer_provider(provider)
worker_process_shutdown.connect(lambda **_: provider.shutdown(), weak=False)


def compute(number: int) -> int:
    return number + 1


@durable("traced")
async def traced(ctx: Context, number: int) -> int:
    return await ctx.step(compute, number)
