"""Chooses candidates by their scores alone, where there is no model to ask. No I/O.

Rule: an order is trusted, a scale is not. Scores of retrieval compare articles of one answer and no more, so the
cut-off is a share of the distance between the best and the worst candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

# --- calibration -------------------------------------------------------------------------------------------------
# A candidate is chosen while it keeps at least this share of the best one's distance to the worst one, and as long as
# no step down to it is larger than this share of that distance. Chosen on every second question of STARD's train split
# (618, over 58,626 articles, 20 candidates by the bundled model and words together, at most 5 chosen); on the other 617:
# precision .395, recall .399, F1 .368, 1.9 chosen a question, against F1 .328 for the best one alone and .224 for the
# best five. By words alone: F1 .299 against .283 and .193. The optimum is flat: shares .65 to .8 differ by .004.
MIN_SHARE: Final = 0.75
MAX_GAP: Final = 0.25
# With fewer candidates than this their spread says nothing; then the best one alone is chosen.
MIN_CANDIDATES: Final = 3
# -----------------------------------------------------------------------------------------------------------------


def choose_locally(scores: Sequence[float], max_items: int) -> list[int]:
    """Numbers from 1 of at most `max_items` candidates, best first, equal scores in their order. `scores` are finite;
    none of them, none chosen."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])
    if not order:
        return []
    best, spread = scores[order[0]], scores[order[0]] - scores[order[-1]]
    if len(order) < MIN_CANDIDATES or not spread:
        return [order[0] + 1]
    chosen: list[int] = []
    last = best
    for place in order[:max_items]:
        share, gap = 1 - (best - scores[place]) / spread, (last - scores[place]) / spread
        if share < MIN_SHARE or gap > MAX_GAP:
            break
        chosen.append(place + 1)
        last = scores[place]
    return chosen
