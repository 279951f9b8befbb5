"""Metering: how many units a call may use, and how many it did use.

Counts are read out of JSON with jq programs: out of the request for an estimate (``estimate.py``),
out of the answer for the settlement: ``readers.py`` chooses how a body is read, ``meter.py`` reads
one JSON text, ``streams.py`` events, lines and elements while they pass. ``measure.py`` compiles
all that a rule says of both.

Everything in this room is pure and synchronous: bytes in, counts out. What comes from outside may
be anything at all; it ends as a count, as a status that says why there is none, or, for a request,
as a refusal. Nothing here decides what a call without counts costs.
"""
