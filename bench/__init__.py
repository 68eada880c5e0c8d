"""Measurements of agentrun beside bare Celery and the floor that PostgreSQL sets, in one run on one machine."""
