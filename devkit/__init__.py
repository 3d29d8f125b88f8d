"""Real servers, live traffic and an independent comparer, for tests, demo and benchmarks; not part of the wheel."""
