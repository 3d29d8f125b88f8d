"""How fast the product is, beside a plain copy by Spark; `python -m benchmarks` runs everything and prints one table."""
