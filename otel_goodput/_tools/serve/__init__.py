"""``otel-goodput serve``: the page of every run of a folder or URL, live, in a browser."""
