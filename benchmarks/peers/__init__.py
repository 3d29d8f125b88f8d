"""What the job is compared with: other ways to copy the same table, each in a process of its own."""
