"""Programs as users write them, each with a witness: an independent clock that says what the figures must be.

``python -m everyday`` runs them (``make everyday``: with the third-party libraries too) and compares.
"""
