"""Units of the figures of all benchmarks by name; "1" is the unit of ratios."""

from __future__ import annotations

from collections.abc import Mapping


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return the unit of each name; ``names`` has them by unit, with blanks between them."""
    return {name: unit for unit, text in names.items() for name in text.split()}


UNITS = by_name(
    {
        "s": "seconds mean p95 p99 minutes every period took at latency maintenance overhead load_overhead costs "
        "policy_seconds thought deciding_seconds deciding_cpu worst_lateness_seconds ordered "
        "answered end asked begun quiet_from stopping stopped started price cold warm warm_with_checks "
        "classification highs_seconds over predicted recovered settled gap usual_gap ended healthy lasts "
        "batch_seconds_off batch_seconds_on period_off period_on driver_python_cpu_off driver_python_cpu_on "
        "driver_jvm_cpu_off driver_jvm_cpu_on link_listener_cpu event_log_cpu py4j_cpu burned_seconds lightest "
        "heaviest",
        "ms": "milliseconds",
        "µs": "link_us_per_task link_listener_us_per_task event_log_us_per_task py4j_us_per_task",
        "%": "tuples_std load_std",
        "1": "ratio scale p90 bias noise burned load share backlog utilization over_as_is batch_ratio batch_ratios "
        "off_spread on_spread mean_error worst_error errors parts_over_used highest_utilization load_spread "
        "cohesion coupling cut path seconds_per_second told error_over_last uneven_by_last uneven_by_forecast",
        "bytes": "bytes bounds state_bytes loaded_bytes bytes_moved window_bytes memory_full memory_one_window_each "
        "agent_rss",
        "bytes/s": "rate load_rate bytes_per_second bytes_in_per_second bytes_out_per_second "
        "inter_node_bytes_per_second inter_executor_bytes_per_second",
        "MiB": "rss_mib deciding_rss_mib memory_mib built_mib peak_mib traced_mib",
        "rows": "rows lost doubled different rows_lost rows_doubled state_rows state_updated input_rows wanted_rows",
        "keys": "keys unknown wanted_keys",
        "moves": "moves limit landed abandoned cold_moves warm_moves",
        "steps": "step steps",
        "tasks": "tasks committed",
        "task attempts": "failed failed_attempts missed",
        "partitions": "partition partitions total drifted",
        "batches": "batch batches preload quiet",
        "writes": "late_writes",
        "events/s": "events_per_second",
        "commands/s": "commands_per_second",
        "cores": "cores agent_cores link_cores redis_cores",
        "repetitions": "repeat repeats repetition seed seeds trials runs",
        "pairs": "pairs holds",
        "count": "migrations events executors agents queries stages connections messages outputs",
    }
)
