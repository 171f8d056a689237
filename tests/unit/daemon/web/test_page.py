"""Web view without a browser: contents, limits, and escaping."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from html.parser import HTMLParser

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from rechannel.daemon.control.leadership import Role
from rechannel.daemon.jobs.job import JobStatus
from rechannel.daemon.view.status import (
    ControllerView,
    DecisionView,
    DrainState,
    ExecutorStatus,
    LeaderStatus,
    MoveStatus,
    PartitionStatus,
    ScheduledPlanStatus,
)
from rechannel.daemon.web import limits, rendering
from rechannel.daemon.web.page import routes
from rechannel.daemon.web.view_model import VERSION, build_document
from rechannel.wire.messages import Refusal
from unit.daemon.web import sample

NOW = 1_800_000_000.0
SCRIPT = "<script>alert('x')</script>\"'&\u202e\x1b[2J"


class _Parsed(HTMLParser):
    """Collects tags, attributes and text, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += " ".join(data.split()) + " "


def shown(view: ControllerView, now: float = NOW) -> _Parsed:
    return _Parsed(rendering.page(build_document(view, now), 3.0))


def hostile(value):
    """Every text in a view replaced by one that breaks out wherever it is not escaped; our own codes stay."""
    if isinstance(value, str) and not isinstance(value, Role | DrainState):
        return f"{value}{SCRIPT}"
    if isinstance(value, (tuple, list)):
        return type(value)(hostile(item) for item in value)
    if isinstance(value, dict):
        return {hostile(key): hostile(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(
            value, **{f.name: hostile(getattr(value, f.name)) for f in dataclasses.fields(value)}
        )
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value, **{name: hostile(getattr(value, name)) for name in value.__struct_fields__}
        )
    return value


def large(executors: int, partitions: int, name: str = "clicks") -> ControllerView:
    """A view of one application with so many executors and partitions, all busy, all moving."""
    view = sample.sample(NOW)
    (application,) = view.applications
    query = dataclasses.replace(application.queries[0], name=name)
    application = dataclasses.replace(
        application,
        queries=(query,),
        executors=tuple(
            ExecutorStatus(f"{name}{n}", f"{name}-{n // 4}", 4, partitions // executors, utilization=n / executors)
            for n in range(executors)
        ),
        partitions=tuple(
            PartitionStatus(query.query, name, 0, n, f"{name}{n % executors}", busy_seconds=n / partitions)
            for n in range(partitions)
        ),
        moves=tuple(
            MoveStatus(
                move=str(n),
                query=query.query,
                name=name,
                stage=0,
                partition=n,
                source=name,
                target=name,
                step=n,
                state=name,
            )
            for n in range(partitions)
        ),
        problems=(name * 200,) * 1000,
    )
    (first, *_) = view.decisions
    decision = msgspec.structs.replace(
        first.decision,
        executors=first.decision.executors * executors,
        refusals=[Refusal(law=name, scope=name, detail=name * 200)] * executors,
        notes=[name * 200] * 1000,
        names={str(n): name for n in range(1000)},
        batch_time_before={str(n): 1.0 for n in range(1000)},
    )
    return dataclasses.replace(
        view, applications=(application,), decisions=(DecisionView(name, decision),) * 1000, drains=view.drains * 1000
    )


def test_the_placement_shows_every_partition_by_node_and_executor():
    view = sample.sample(NOW)
    page = shown(view)
    cells = [attrs for tag, attrs in page.tags if tag == "li" and (attrs.get("class") or "")[:2] in ("c0", "c1", "c2")]
    assert cells
    assert sum(tag == "li" and "title" in attrs for tag, attrs in page.tags) == 52
    for sentence in (
        "node-1",
        "executor 1",
        "orders-join",
        "over the limit",
        "drained",
        "slow: its tasks take 1.4 times",
    ):
        assert sentence in page.text
    assert "Shown are" not in page.text


def test_moves_decisions_refusals_and_drains_have_their_numbers():
    text = shown(sample.sample(NOW, 2)).text
    for sentence in (
        "2 of 6 moves have landed; step 2 of 3; 2 planned; 1 prepared; 1 steered",
        "4% gain, below gate.min_gain (10%)",
        "executor 3 would be 97% busy, the limit is 95%",
        "asked by ada: clicks lags behind",
        "Hot stream: clicks 1/4 -> 2/7 (1.2 MB/s)",
        "3.2 s was predicted",
        "kernel update",
        "missed 1",
        "18.4 MB",
    ):
        assert sentence in text


def test_the_number_of_steps_stays_when_decisions_on_other_applications_follow():
    view = dataclasses.replace(sample.sample(NOW, 2), decisions=())
    assert "step 2 of 3" in shown(view).text


def test_a_migration_is_shown_however_many_applications_there_are():
    view = sample.sample(NOW, 2)
    (moving,) = view.applications
    others = tuple(
        dataclasses.replace(moving, application=f"app-{number}", partitions=(), moves=()) for number in range(40)
    )
    text = shown(dataclasses.replace(view, applications=(*others, moving))).text
    assert "10 of 41 applications" in text
    assert "2 of 6 moves have landed" in text
    document = build_document(dataclasses.replace(view, applications=(moving,) * 40), NOW)
    assert len(document["migrations"]) == limits.APPLICATIONS


def test_waiting_plans_are_shown_as_text():
    plan = ScheduledPlanStatus("plan-1", NOW, "app", NOW, NOW, "", 1, "", "", False, "of <b>ada</b> at 02:00")
    view = dataclasses.replace(sample.sample(NOW), drains=(), scheduled_plans=(plan,) * 30)
    text = shown(view).text
    assert text.count("Scheduled plan plan-1: of <b>ada</b> at 02:00") == 20
    assert "No node is drained." in text


def test_a_moving_partition_has_its_target():
    (application,) = build_document(sample.sample(NOW), NOW)["applications"]
    cells = [c for n in application["nodes"] for e in n["executors"] for g in e["groups"] for c in g["cells"]]
    assert sum("to" in cell for cell in cells) == 6


def test_hostile_text_is_escaped_everywhere():
    honest, attacked = sample.sample(NOW, 2), hostile(sample.sample(NOW, 2))
    page = shown(attacked)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "alert('x')" in page.text
    tags = {tag for tag, _ in shown(honest).tags}
    assert {tag for tag, _ in page.tags} <= tags
    allowed = {name for _, attributes in shown(honest).tags for name in attributes}
    assert {name for _, attributes in page.tags for name in attributes} <= allowed
    raw = rendering.page(build_document(attacked, NOW), 3.0)
    assert "&lt;script&gt;" in raw
    assert "\u202e" not in raw
    assert "\x1b" not in raw


def test_a_large_cluster_gives_a_bounded_page():
    view = large(1000, 10_000)
    document = build_document(view, NOW)
    page = rendering.page(document, 3.0)
    assert len(page) < 600_000
    assert len(msgspec.json.encode(document)) < 500_000
    text = _Parsed(page).text
    assert "200 of 1,000 executors, the busiest" in text
    assert "2,000 of 10,000 partitions" in text
    assert "Shown are 150 of 10,000 moves" in text
    assert "Shown are 20 of 1,000 refusals" in text
    assert "Shown are 50 of 1,000 drains" in text


def test_a_large_cluster_with_hostile_names_gives_a_bounded_page():
    attacked = large(1000, 10_000, name='"' * 100)
    assert len(rendering.page(build_document(attacked, NOW), 3.0)) < 3_000_000


def test_a_full_executor_shows_its_busiest_partitions():
    (application,) = build_document(large(1, 10_000), NOW)["applications"]
    (group,) = application["nodes"][0]["executors"][0]["groups"]
    assert len(group["cells"]) == limits.CELLS
    assert group["left_out"] == 10_000 - limits.CELLS
    assert min(cell["partition"] for cell in group["cells"]) == 10_000 - limits.CELLS


def test_empty_parts_have_a_sentence():
    view = sample.sample(NOW)
    application = dataclasses.replace(view.applications[0], executors=(), queries=(), partitions=(), moves=())
    text = shown(sample.empty(NOW)).text + shown(dataclasses.replace(view, applications=(application,))).text
    for sentence in (
        "No application reports: does a driver run rechannel.attach(spark) ?",
        "Nothing is being moved.",
        "Nothing has been decided yet.",
        "No stream is hot",
        "No node is drained.",
        "No streaming query runs in this application.",
        "No executor is known.",
    ):
        assert sentence in text


def _banners(view: ControllerView, now: float = NOW) -> tuple[bool, str]:
    document = build_document(view, now)
    return document["stale"], " ".join(banner["text"] for banner in document["banners"])


def test_current_figures_have_no_banner():
    assert _banners(sample.sample(NOW)) == (False, "")
    rarely = dataclasses.replace(sample.sample(NOW), jobs=(JobStatus("view", 60.0),))
    assert _banners(rarely, NOW + 100) == (False, ""), "four intervals are no delay"


@pytest.mark.parametrize(
    ("view", "now", "phrase"),
    [
        pytest.param(sample.away(NOW), NOW, "Stale: Redis is away (redis.internal:6379", id="Redis is away"),
        pytest.param(sample.away(NOW), NOW, "no leader is known", id="no leader"),
        pytest.param(
            dataclasses.replace(sample.away(NOW), role=Role.STARTING), NOW, "Figures from Redis are of", id="lease over"
        ),
        pytest.param(sample.sample(NOW), NOW + 30, "Stale: these figures are of", id="the view is not renewed"),
        pytest.param(
            ControllerView(at=NOW, redis_problem="refused"), NOW, "has no answer from Redis yet", id="starting"
        ),
    ],
)
def test_old_figures_have_a_banner(view, now, phrase):
    stale, sentences = _banners(view, now)
    assert stale
    assert phrase in sentences
    assert phrase in shown(view, now).text


def test_stand_by_and_pause_have_banners_that_are_not_stale():
    leader = LeaderStatus("other/1", paused=True)
    view = dataclasses.replace(sample.sample(NOW), role=Role.STANDING_BY, controller=leader)
    stale, sentences = _banners(view)
    assert not stale
    assert "does not lead: other/1 leads" in sentences
    assert "paused" in sentences


def test_impossible_figures_do_not_break_the_page():
    view = sample.sample(NOW)
    odd = itertools.cycle([float("nan"), float("inf"), -1e30, 1e30, None])
    (application,) = view.applications
    application = dataclasses.replace(
        application,
        executors=tuple(dataclasses.replace(item, utilization=next(odd)) for item in application.executors),
        partitions=tuple(dataclasses.replace(item, busy_seconds=next(odd)) for item in application.partitions),
    )
    drain = msgspec.structs.replace(view.drains[0], since=-1e11, deadline=1e11)
    document = build_document(dataclasses.replace(view, applications=(application,), drains=(drain,)), NOW)
    assert rendering.page(document, 3.0)
    assert msgspec.json.encode(document)


def _get(path: str, view=lambda: sample.sample(NOW), **headers: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(Starlette(routes=routes(view, clock=lambda: NOW)))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.get(path, headers=headers)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "path", ["/", "/fragment", "/api/view", "/static/page.js", "/static/style.css", "/static/none"]
)
def test_every_answer_has_a_strict_content_policy(path):
    answer = _get(path)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_has_no_inline_code_and_no_other_host():
    page = _get("/")
    parsed = _Parsed(page.text)
    assert page.headers["cache-control"] == "no-store"
    assert all(attributes.get("src") == "static/page.js" for tag, attributes in parsed.tags if tag == "script")
    assert not [tag for tag, attributes in parsed.tags if tag == "style" or "style" in attributes]
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]
    assert "//" not in page.text.replace("<!doctype html>", "")


def test_the_document_is_served_as_json():
    answer = _get("/api/view")
    assert answer.headers["content-type"] == "application/json"
    document = json.loads(answer.text)
    assert document["version"] == VERSION == 1
    assert document["controller"]["epoch"] == 7
    assert document["decisions"][1]["refusals"][0]["law"] == "gate"


def test_static_files_are_cached_by_etag():
    tag = _get("/static/style.css").headers["etag"]
    assert _get("/static/style.css", **{"If-None-Match": tag}).status_code == 304
    assert _get("/static/none").status_code == 404


def test_templates_are_loaded_once_at_the_start(monkeypatch):
    rendering._environment.cache_clear()
    routes(lambda: sample.sample(NOW))
    environment = rendering._environment()
    assert environment.loader is not None
    monkeypatch.setattr(environment.loader, "get_source", None)  # as after an upgrade
    assert not environment.auto_reload
    for path in ("/", "/fragment"):
        assert '<div id="all">' in _get(path).text


def test_browsers_share_one_rendering():
    view = sample.sample(NOW)
    answers = []
    app = Starlette(routes=routes(lambda: view, clock=lambda: NOW))

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for answer in await asyncio.gather(*(client.get("/fragment") for _ in range(5))):
                answers.append(answer.text)

    asyncio.run(ask())
    assert len(set(answers)) == 1
