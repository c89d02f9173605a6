"""Dashboards and alerts, made of the tables of ``otel_goodput.semconv``; ``../generate.py`` writes them."""
