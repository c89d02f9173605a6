"""Where spans and metrics go. An exporter is one file of this package and one row of `registry`."""
