"""The files of the progress page, served as they are by `progress.web`: no build step, nothing from another host."""
