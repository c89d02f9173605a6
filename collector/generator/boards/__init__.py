"""Dashboards and alerts, made of the tables of ``otel_goodput.semconv``."""
