"""Parallel, per-vnode snapshot backfill and change capture from MySQL and MariaDB into Delta Lake, on Spark."""

__version__ = "0.1.0"
