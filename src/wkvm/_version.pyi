"""Written by the build, from the git tags."""

version: str
