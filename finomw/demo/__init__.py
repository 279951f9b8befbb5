"""An LLM gateway to try finomw with: all of it real but the language model.

``app.py`` and ``fino.yaml`` are the example to read, and stand in ``examples/llm_gateway`` too;
``model.py`` is the pretended model behind it; ``serve.py`` and ``timing.py`` are how
``finomw demo`` runs and measures it, in a process of its own. The app needs the extra ``demo``;
importing this module alone does not.
"""

from __future__ import annotations

from typing import Final

NUMBER_HEADER: Final = "x-demo-call"
"""The header by which a client numbers a call that is to be measured."""
OVERHEAD_PATH: Final = "/demo/overhead/{number}"
"""Where the measured server tells what finomw cost that call."""
