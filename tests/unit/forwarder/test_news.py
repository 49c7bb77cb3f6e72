"""What is owed to which step, and that nothing owed is forgotten or grows."""

import json
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.forwarder.message import is_needless, message
from infra.forwarder.news import WAKES, Cause, Ledger, News, Step
from infra.forwarder.pods import Summary
from journeyman.core.plan import Step as JourneymanStep
from journeyman.events import parse_trigger
from journeyman.ports import ClusterChanged

NINE = datetime(2026, 11, 21, 9, tzinfo=timezone.utc)
STUCK, JOINED = News(Cause.POD_UNSCHEDULABLE, "p", "1"), News(Cause.NODE_JOINED, "n", "2")
GONE, LEAVING = News(Cause.NODE_GONE, "n", "3"), News(Cause.CLAIM_DELETING, "c", "4")
NEWS = st.builds(News, st.sampled_from(Cause), st.text("abc", min_size=1, max_size=3), st.text("12", min_size=1))


def test_each_step_has_a_batch_of_its_own():
    """A node that is gone wakes both; neither waits for the other's windows."""
    ledger = Ledger()
    ledger.note([STUCK, GONE], 0.0)
    ledger.note([LEAVING], 0.5)

    assert ledger.due() == 1.0
    (provision,) = ledger.take(1.0)
    (terminate,) = ledger.take(1.5)
    assert (provision.step, provision.counts) == (Step.PROVISION, {Cause.POD_UNSCHEDULABLE: 1, Cause.NODE_GONE: 1})
    assert (terminate.step, terminate.counts) == (Step.TERMINATE, {Cause.CLAIM_DELETING: 1, Cause.NODE_GONE: 1})
    assert ledger.due() is None


def test_what_could_not_be_sent_is_owed_again_with_what_came_meanwhile():
    """The next message tells of both."""
    ledger = Ledger()
    ledger.note([STUCK], 0.0)
    (parcel,) = ledger.take(1.0)
    ledger.note([JOINED], 1.2)
    ledger.failed(parcel, 2.0)

    assert ledger.take(2.9) == ()
    (again,) = ledger.take(3.0)
    assert again.counts == {Cause.POD_UNSCHEDULABLE: 1, Cause.NODE_JOINED: 1}


def test_a_sink_that_asks_for_patience_gets_it():
    """Retry-After; but never more than half a minute."""
    ledger = Ledger()
    ledger.note([STUCK], 0.0)
    ledger.failed(*ledger.take(1.0), 1.0, least_seconds=7.0, jitter=0.5)
    assert ledger.due() == 8.0
    ledger.failed(*ledger.take(8.0), 8.0, least_seconds=3600.0)
    assert ledger.due() == 38.0


def test_whoever_ends_sends_what_is_owed_at_once():
    """The windows are for those who go on."""
    ledger = Ledger()
    ledger.note([STUCK, LEAVING], 0.0)

    assert {parcel.step for parcel in ledger.take(0.1, hurry=True)} == {Step.PROVISION, Step.TERMINATE}
    assert (ledger.take(0.1, hurry=True), ledger.due()) == ((), None)


@given(st.lists(NEWS, max_size=30, unique=True), st.randoms())
def test_replicas_that_see_the_same_news_give_the_same_id(news, random):
    """In whatever order, and in however many attempts, it reaches them; so a FIFO queue takes one."""
    shuffled = list(news)
    random.shuffle(shuffled)
    one, other = Ledger(), Ledger()
    one.note(news, 0.0)
    half = len(shuffled) // 2
    other.note(shuffled[:half], 0.0)
    for parcel in other.take(1.0):
        other.failed(parcel, 1.0)
    other.note(shuffled[half:], 1.0)

    assert {p.step: (p.id, p.counts) for p in one.take(60.0)} == {p.step: (p.id, p.counts) for p in other.take(60.0)}


def test_other_news_has_another_id():
    """A pod that is unschedulable again an hour later has another version."""
    ids = set()
    for news in ([STUCK], [STUCK._replace(version="9")], [STUCK, JOINED], [JOINED]):
        ledger = Ledger()
        ledger.note(news, 0.0)
        ids.update(parcel.id for parcel in ledger.take(1.0))
    assert len(ids) == 4


@given(st.lists(st.tuples(NEWS, st.booleans()), max_size=60))
def test_every_piece_of_news_is_delivered_to_each_step_it_wakes(steps):
    """Through any run of failures."""
    ledger, now, told = Ledger(), 0.0, dict.fromkeys(Step, 0)

    def send(*, works):
        for parcel in ledger.take(now):
            if works:
                told[parcel.step] += sum(parcel.counts.values())
                ledger.delivered(parcel)
            else:
                ledger.failed(parcel, now)

    for news, works in steps:
        ledger.note([news], now)
        now += 40.0
        send(works=works)
    now += 40.0
    send(works=True)

    assert told == {step: sum(step in WAKES[news.cause] for news, _ in steps) for step in Step}
    assert ledger.due() is None


@pytest.mark.parametrize("step", list(Step))
def test_the_message_is_what_the_functions_parse(step):
    """Cluster, step, counts and age, and a reason for a person."""
    ledger = Ledger()
    ledger.note([STUCK, GONE, News(Cause.STARTED, "claims", "5")], 0.0)
    (parcel,) = (p for p in ledger.take(1.0) if p.step is step)
    trigger = parse_trigger(json.loads(message("dev", parcel, Summary(12, 10, NINE), NINE)))

    assert (trigger.cluster, trigger.step, type(trigger)) == ("dev", JourneymanStep(step.value), ClusterChanged)
    assert trigger.id == parcel.id
    assert trigger.counts.items() >= {"pending": 12, "unschedulable": 10, "nodesGone": 1}.items()
    assert trigger.oldest_pending_time == NINE
    waits = "10 pods are unschedulable, " if step is Step.PROVISION else ""
    assert trigger.reason == f"{waits}1 nodes are gone, the forwarder has started"


def test_pods_that_found_a_place_meanwhile_wake_nobody():
    """The batch window is also a chance for kube-scheduler; other causes hold whatever the pods do."""
    ledger = Ledger()
    ledger.note([STUCK], 0.0)
    (parcel,) = ledger.take(1.0)
    ledger.note([STUCK, JOINED], 2.0)
    (mixed,) = ledger.take(3.0)

    assert is_needless(parcel, Summary(3, 0, None))
    assert not is_needless(parcel, Summary(3, 1, NINE))
    assert not is_needless(mixed, Summary(0, 0, None))
