"""The long form of the planner's differential test: a script, not collected by pytest.

    python tests/metering/planner_differential.py --count 20000 --seed 1

Prints what differs, how often each kind of plan ran, and ends with status 1 if anything differs.
"""

from __future__ import annotations

import argparse
import sys

from planned import differences

DOCUMENTS = 10


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000, help="pairs to try")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong, plans = differences(options.seed, -(-options.count // DOCUMENTS), DOCUMENTS)
    for each in wrong:
        print(each)
    print(f"{plans.total()} pairs, {len(wrong)} differ; plans: {dict(plans)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
