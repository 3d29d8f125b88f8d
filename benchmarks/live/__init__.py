"""Measures a job that follows a large table: how old the lake is, what that costs, and how the lake reads afterwards."""
