"""Money: pure values and functions, no I/O and no async.

``micros.py`` has micros and their conversions. Prices: one meter's in ``rates.py``, a call's in
``pricing.py``, told in ``explain.py``, plans in ``plans.py``, quotas in ``quotas.py``. Ledger
entries are in ``entries.py``, what they do to an account in ``account.py``; ``funding.py``
divides a call among its sources, and ``periods.py`` knows the calendar.
"""
