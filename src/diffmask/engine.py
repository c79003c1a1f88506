"""Who runs the graph's nodes. Here: one after the other, in this process."""

import logging
import time
from collections.abc import Sequence

from diffmask.graph import Node
from diffmask.record import Record
from diffmask.training import track

logger = logging.getLogger(__name__)


def run_serial(nodes: Sequence[Node]) -> list[Record]:
    """Run what is missing, skip what is there, return every record."""
    records: list[Record] = []
    missing = [node for node in nodes if not node.was_done]
    logger.info("%d pieces of work, %d done before", len(nodes), len(nodes) - len(missing))
    for node in track(nodes, "experiment"):
        start = time.perf_counter()
        records += node.run()
        if not node.was_done:
            logger.info("%s: %.1f s", node.label, time.perf_counter() - start)
    return records
