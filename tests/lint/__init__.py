"""Checks of the source that no general linter makes; `make check` runs them."""
