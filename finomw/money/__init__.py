"""Money: pure values and functions, no I/O and no async.

Micros and the two conversions in ``micros.py``, prices in ``pricing.py``, ledger entries in
``entries.py``, and what they do to an account in ``account.py``.
"""
