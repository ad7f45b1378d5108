"""The side of the service that touches a backend: provision, watch and reclaim.

It imports `app.ledger` and nothing else of `app`; the API never imports this package and wakes it by dotted name.
"""
