"""The ``fino.yaml`` that ``finomw init`` writes: a small API's prices, explained line by line.

It is complete and valid as it stands (``finomw check`` passes), and shows the three kinds of
route: metered and priced by model, priced flat, and free.
"""

from __future__ import annotations

from string import Template
from typing import Final

TEMPLATE: Final = Template(
    """\
# What calls to the API cost, and where finomw keeps its books.
# `finomw check` tells everything that is wrong in here. Amounts are dollars, in quotes.

# The node directory: balances, ledgers and the journal. A relative path starts at this file.
data: $data

# When an answer is complete: settled (its charge is on disk), held (its hold is; then every route
# needs on_crash: settle), or relaxed (nothing is waited for).
durability: settled

# Calls that billing cannot record, as when the disk fails: refuse (503), or pass (unbilled).
on_failure: refuse

# Calls that no route below matches: pass (untouched and free), or refuse.
unmatched: pass

# How far below zero a balance may go, so that a call under way can finish.
buffer_usd: "1.00"

# Where a refused customer can pay; stands in the 402 answer.
# topup_url: https://example.com/billing

# Sizes that the node directory gets when it is made, and keeps.
# storage: {segment_size: 16MiB, state_size: 256MiB}

# Price plans. A customer has one: finomw customer add alice --plan default
# `finomw price --route search --usage '{"requests": 3}'` explains what a call costs.
plans:
  default:
    rounding: up                 # of a call's price to whole micro-dollars; or down, half_up
    # unpriced: free             # calls without a price; refused where this is left out
    # fund: [quota, wallet, credit]   # what pays, in this order
    # quotas:                    # given before money is asked for
    #   trial: {meters: [input_tokens, output_tokens], units: 100000, per: month}
    prices:
      chat:
        by: .model               # chosen by the model in the request's JSON
        small-1:
          input_tokens: {usd_per_million: "0.50"}
          output_tokens: {usd_per_million: "1.50"}
        "*":                     # all other models
          input_tokens: {usd_per_million: "5.00"}
          output_tokens: {usd_per_million: "15.00"}
      search:
        requests: {usd: "0.002"}
        # a price may fall with what was used in the month:
        # requests: {tiered: [{up_to: 1000, usd: "0.002"}, {usd: "0.001"}]}

routes:
  # Metered: `meter` reads the counts from the answer, JSON or event stream, by jq programs.
  # `hold` says how many a call may use at most; their price is set aside before the call.
  - name: chat
    match: POST /v1/chat/completions
    meter:
      input_tokens: .usage.prompt_tokens
      output_tokens: .usage.completion_tokens
    hold:
      input_tokens: .messages | tostring | utf8bytelength    # a token has at least one byte
      output_tokens: .max_completion_tokens // .max_tokens // 4096

  # Flat: the same price for every call.
  - name: search
    match: GET,POST /v1/search
    meter: {requests: 1}

  # Free: not looked at.
  - match: GET /health
    free: true
"""
)
