"""Programs as ordinary people write them, each beside a witness that tells what the figures must be.

``python -m everyday`` runs them (``make everyday``: with the libraries of others, too) and compares.
"""
