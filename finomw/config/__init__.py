"""The YAML file: ``load`` turns it into a ``model.Config``, or tells everything that is wrong.

Text becomes plain values (``document``), plain values become options (``reader``), and options
are held against each other (``checks`` for the rules, ``plan_checks`` for the plans).
"""
