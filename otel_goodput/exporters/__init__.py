"""Exporters of spans and metrics: each is one file of this package and one row of `registry`."""
