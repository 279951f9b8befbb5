"""finomw charges for API calls inside the API's own process.

The public surface is this module; everything else is the rooms described in the README.
"""

from __future__ import annotations

__version__ = "0.1.0"
