"""Findings on settings; a stock Spark gives none."""

from __future__ import annotations

import pytest

from rechannel.migration.spark.compatibility import (
    BYPASS,
    DATABRICKS_ONLY,
    advice,
    check_settings,
    reportable_settings,
    seconds,
    sentences,
)

STATE = "org.apache.spark.sql.execution.streaming.state"
STORE = "spark.sql.streaming.stateStore"
DECOMMISSION = "spark.decommission.enabled"
WAIT = "spark.locality.wait"


def codes(settings):
    return [finding.code for finding in check_settings(settings.get)]


@pytest.mark.parametrize(
    "settings",
    [
        # What Spark 4.3.0 says when its defaults are written out.
        {
            "spark.master": "spark://host:7077",
            "spark.speculation": "false",
            "spark.dynamicAllocation.enabled": "false",
            "spark.decommission.enabled": "false",
            "spark.storage.decommission.enabled": "false",
            "spark.sql.adaptive.enabled": "true",
            "spark.sql.adaptive.streaming.stateless.enabled": "true",
            f"{STORE}.unloadOnCommit": "false",
            f"{STORE}.maintenanceInterval": "60000",
            f"{STORE}.providerClass": f"{STATE}.HDFSBackedStateStoreProvider",
            "spark.locality.wait": "3s",
            "spark.locality.wait.process": "3000ms",
            "spark.locality.wait.node": "3000",
            "spark.shuffle.manager": "sort",
            "spark.shuffle.sort.io.plugin.class": "org.apache.spark.shuffle.sort.io.LocalDiskShuffleDataIO",
            "spark.scheduler.mode": "FIFO",
        },
        {},
        {"spark.master": "local-cluster[2,1,1024]"},
        {"spark.sql.adaptive.enabled": "false"},
        {"spark.sql.adaptive.forceApply": "true"},
        {"spark.scheduler.mode": "FAIR"},
        {"spark.storage.decommission.enabled": "true"},  # without spark.decommission.enabled nobody asks for it
        {"spark.locality.wait.node": "0"},
        {"spark.locality.wait": "0", "spark.locality.wait.process": "3s"},
        {"spark.locality.wait": "30s"},
        {f"{STORE}.maintenanceInterval": "10m"},
        {f"{STORE}.providerClass": f"{STATE}.RocksDBStateStoreProvider"},
        {"spark.shuffle.manager": "Tungsten-Sort"},
        {"spark.shuffle.manager": "org.apache.spark.shuffle.sort.SortShuffleManager"},
        {"spark.shuffle.sort.io.plugin.class": "org.apache.spark.shuffle.KubernetesLocalDiskShuffleDataIO"},
    ],
)
def test_settings_that_change_nothing_give_no_finding(settings):
    assert codes(settings) == []


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("spark.master", "local[4]", "local-master"),
        ("spark.master", "local", "local-master"),
        ("spark.speculation", "true", "speculation"),
        ("spark.excludeOnFailure.enabled", "true", "exclude-on-failure"),
        ("spark.excludeOnFailure.application.enabled", "true", "exclude-on-failure"),
        ("spark.excludeOnFailure.taskAndStage.enabled", "true", "exclude-on-failure"),
        ("spark.dynamicAllocation.enabled", "true", "dynamic-allocation"),
        ("spark.locality.wait", "0", "locality-wait-zero"),
        ("spark.locality.wait", "0s", "locality-wait-zero"),
        ("spark.locality.wait.process", "0ms", "locality-wait-zero"),
        ("spark.locality.wait", "1m", "locality-wait-long"),
        ("spark.locality.wait", "31000", "locality-wait-long"),
        ("spark.locality.wait.process", "31s", "locality-wait-long"),
        ("spark.locality.wait.node", "1h", "locality-wait-long"),
        (f"{STORE}.unloadOnCommit", "true", "unload-on-commit"),
        (f"{STORE}.maintenanceInterval", "11min", "maintenance-long"),
        (f"{STORE}.providerClass", "com.example.Provider", "store-provider"),
        (DATABRICKS_ONLY, "true", "databricks-only"),
        (DATABRICKS_ONLY, "false", "databricks-only"),
        ("spark.shuffle.manager", "org.example.RemoteShuffleManager", "shuffle-manager"),
        ("spark.shuffle.sort.io.plugin.class", "org.example.RemoteDataIO", "shuffle-io"),
    ],
)
def test_a_setting_that_matters_is_found_once_and_named(key, value, code):
    (finding,) = check_settings({key: value}.get)
    assert (finding.code, finding.setting, finding.value) == (code, key, value)
    assert key in finding.sentence
    assert finding.sentence.endswith(".")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"spark.speculation": " TRUE "}, ["speculation"]),
        ({"spark.speculation": "yes"}, []),
        ({DECOMMISSION: "true"}, ["decommission", "decommission-storage"]),
        ({DECOMMISSION: "true", "spark.storage.decommission.enabled": "true"}, ["decommission"]),
        ({WAIT: "60s"}, ["locality-wait-long"]),  # both levels inherit it
        ({f"{WAIT}.process": "0", f"{WAIT}.node": "60s"}, ["locality-wait-zero", "locality-wait-long"]),
    ],
)
def test_settings_together(settings, expected):
    assert codes(settings) == expected


@pytest.mark.parametrize("value", ["", "soon", "3 s", "1.5s", "-", "3parsecs", "9" * 400])
@pytest.mark.parametrize("key", ["spark.locality.wait", f"{STORE}.maintenanceInterval", "spark.speculation"])
def test_an_unreadable_value_is_no_crash(key, value):
    check_settings({key: value}.get)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3s", 3),
        ("3000ms", 3),
        ("0", 0),
        ("1m", 60),
        ("1min", 60),
        ("250", 0.25),
        ("2H", 7200),
        ("1d", 86_400),
        ("5us", 5e-6),
        (" 7s ", 7),
        ("-1s", -1),
        ("3 s", None),
        ("", None),
        ("3x", None),
    ],
)
def test_durations_are_read_as_spark_reads_them(text, expected):
    assert seconds(text) == (None if expected is None else pytest.approx(expected))


def test_defaults_are_ones_that_spark_accepts():
    # Spark checks the default against the type of the key's entry and throws: "" for a boolean would end attaching.
    request = {}
    check_settings(request.setdefault)
    assert request[f"{STORE}.unloadOnCommit"] == "false"
    assert request[f"{STORE}.maintenanceInterval"] == "60s"
    assert request[f"{STORE}.providerClass"].endswith("HDFSBackedStateStoreProvider")


@pytest.mark.parametrize("value", [None, "200", "1", "12"])
def test_a_loss_of_sparks_own_is_advice_and_no_problem(value):
    read = ({} if value is None else {BYPASS: value}).get
    (finding,) = advice(read)
    assert f"at most {value or 200} partitions" in finding.sentence
    assert f"Set {BYPASS} to 0" in finding.sentence
    assert finding.sentence not in sentences("4.3.0", read), "no link is unwell for it"


@pytest.mark.parametrize(
    "settings", [{BYPASS: "0"}, {BYPASS: "-1"}, {BYPASS: "odd"}, {"spark.shuffle.manager": "org.example.Manager"}]
)
def test_where_spark_takes_another_writer_nothing_is_advised(settings):
    assert advice(settings.get) == []


def test_a_link_reports_that_the_cure_is_in_place():
    assert reportable_settings({BYPASS: "0"}.get)[BYPASS] == "0"
