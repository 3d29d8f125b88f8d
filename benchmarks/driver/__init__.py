"""Cases of the driver alone: its commands, its commits, and its decisions in a very large job."""
