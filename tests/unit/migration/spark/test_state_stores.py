"""Store names by the files that Spark leaves in a checkpoint, for every version."""

from __future__ import annotations

import pytest

from rechannel.migration.spark.state_stores import JOIN_STORES, stores_of_metadata, stores_of_partition


def test_store_names_are_read_off_the_metadata():
    stores = '{"storeName":"right"},{"storeName":"left"}'
    text = f'v1\n{{"operatorInfo":{{"operatorId":0}},"stateStoreInfo":[{stores}]}}'
    assert stores_of_metadata(text) == ["left", "right"]


@pytest.mark.parametrize("bad", ["", "v1\n{", "v1\n{}", 'v1\n{"stateStoreInfo":[{}]}'])
def test_metadata_that_spark_does_not_write_is_an_error(bad):
    with pytest.raises(ValueError, match="operator metadata in the checkpoint cannot be read"):
        stores_of_metadata(bad)


@pytest.mark.parametrize(
    ("names", "stores"),
    [
        (["1.delta", ".1.delta.crc", "_metadata"], ["default"]),
        (["1.zip", "SSTs"], ["default"]),
        (["1.changelog", "2.changelog"], ["default"]),
        (list(JOIN_STORES), sorted(JOIN_STORES)),
        ([], []),
        (["_metadata"], []),
        ([".1.delta.3f.TID7.tmp"], []),
        (list(JOIN_STORES[:3]), []),
        ([*JOIN_STORES[:3], "1.delta"], []),
    ],
    ids=["HDFS-backed", "RocksDB", "changelog", "join", "empty", "schema only", "unfinished", "half a join", "neither"],
)
def test_without_metadata_stores_are_read_off_the_directories(names, stores):
    assert stores_of_partition(names) == stores
