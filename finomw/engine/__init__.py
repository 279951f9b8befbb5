"""The engine: decides, applies and records, in one transaction each.

Read ``engine.py`` for the write path, ``charge.py`` for the story of a call's money,
``opening.py`` for how a start decides what to believe.
"""
