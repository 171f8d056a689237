"""Names of an operator's state stores, read from the files of a checkpoint. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

DEFAULT_STORE = "default"
# Source: SymmetricHashJoinStateManager (state formats 1 and 2, the only ones before 4.0).
JOIN_STORES = ("left-keyToNumValues", "left-keyWithIndexToValue", "right-keyToNumValues", "right-keyWithIndexToValue")
# Source: HDFSBackedStateStoreProvider, RocksDBFileManager.
_VERSION_FILE = re.compile(r"\d+\.(delta|snapshot|zip|changelog)")


def stores_of_metadata(text: str) -> list[str]:
    """Return the store names in operator metadata: a version line, then one JSON document.

    Raises ValueError for what Spark does not write so.
    """
    try:
        stores = json.loads(text[text.index("{") :])["stateStoreInfo"]
        return sorted({str(store["storeName"]) for store in stores})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"operator metadata in the checkpoint cannot be read: {error}") from error


def stores_of_partition(names: Iterable[str]) -> list[str]:
    """Return the store names by those in a partition's directory, where there is no metadata.

    Before 4.0 an operator had either the one store without a name, whose files lie in the partition's own directory, or
    was a join with four named ones, a directory each (``StateStoreId.storeCheckpointLocation``). Empty as long as
    no file proves either of the two: a store that does not exist must not be steered.
    """
    entries = set(names)
    if entries.issuperset(JOIN_STORES):
        return sorted(JOIN_STORES)
    if any(_VERSION_FILE.fullmatch(name) for name in entries) and entries.isdisjoint(JOIN_STORES):
        return [DEFAULT_STORE]
    return []
