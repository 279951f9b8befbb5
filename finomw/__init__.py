"""finomw charges for API calls inside the API's own process.

The public surface is this module; everything else is the rooms described in the README.
"""

from __future__ import annotations

from finomw.asgi.middleware import FinoMiddleware

__version__ = "0.1.0"

__all__ = ["FinoMiddleware", "__version__"]
