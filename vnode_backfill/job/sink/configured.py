"""Chooses the description of the configured sink. Nothing else asks which sink a configuration names."""

from __future__ import annotations

from vnode_backfill.config.job import Config
from vnode_backfill.job.sink.delta import DeltaDescription
from vnode_backfill.job.sink.description import SinkDescription
from vnode_backfill.job.sink.iotdb import IotdbDescription
from vnode_backfill.words.errors import ConfigError


def configured_sink(config: Config) -> SinkDescription:
    """The description of the one sink that the configuration holds."""
    if config.sink.delta is not None:
        return DeltaDescription(config, config.sink.delta)
    if config.sink.iotdb is not None:
        return IotdbDescription(config, config.sink.iotdb)
    raise ConfigError("sink: must hold exactly one of delta, iotdb")
