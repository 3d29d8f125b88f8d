"""Measures the product against a plain copy by Spark; `python -m benchmarks` runs everything and prints one table."""
