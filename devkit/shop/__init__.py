"""A small shop of five tables, and a writer whose transactions span them; for the demo and the pictures."""
