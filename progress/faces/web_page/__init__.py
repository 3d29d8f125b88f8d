"""Holds the files of the progress page. `progress.faces.web` serves them as they are: no build step, no other host."""
