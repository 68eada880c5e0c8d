"""Flower's configuration file: on loopback, with a password, showing each wake's run, kind and outcome.

Flower executes this file and takes every name that is one of its options, so that nothing else may be named here.
Its command line and FLOWER_BASIC_AUTH win over it.
"""

import os as _os

from agentrun.broker import flower as _flower

_settings = _flower.FlowerSettings()

address = _settings.address
basic_auth = _flower.credentials(_settings, _os.environ.get("FLOWER_BASIC_AUTH"))
tasks_columns = _flower.COLUMNS
format_task = _flower.format_task
