"""The journal: one log for all workers of a node, and the truth behind the state.

Read ``format.py`` first, then ``writer.py``, ``flush.py`` and ``recovery.py``. Bodies of records
are opaque here; ``engine/records.py`` says what they mean.
"""
