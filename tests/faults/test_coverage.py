"""What was counted: per story, added up, as a table for people."""

from journeyman_simulator.faults.call_sites import CALL_SITES, Coverage, from_json, has_effect, kinds_of, to_json
from journeyman_simulator.faults.fault_scenario import Kind

LAUNCH, LOOK = "provision: ec2 CreateFleet", "sweep: list Pod"


def counted(*fired):
    coverage = Coverage(stories=1)
    coverage.called(LAUNCH)
    coverage.called(LOOK)
    for site, kind in fired:
        coverage.fell(site, kind.value)
    return coverage


def test_counts_of_many_stories_add_up_wherever_they_were_told():
    """As those of one process do that hears of another's as JSON."""
    total = counted((LAUNCH, Kind.DIE_AFTER))
    total.lost("wake", "drop")
    total.add(from_json(to_json(counted((LAUNCH, Kind.DIE_AFTER), (LOOK, Kind.LAG)))))
    assert (total.stories, total.calls[LAUNCH]) == (2, 2)
    assert total.fired == {LAUNCH: {"die-after": 2}, LOOK: {"lag": 1}}
    assert total.messages == {"wake": {"drop": 1}}


def test_a_site_is_untouched_until_one_of_the_kinds_has_fired_there():
    """Whichever of them."""
    coverage = counted((LAUNCH, Kind.DIE_AFTER), (LOOK, Kind.LAG))
    assert coverage.untouched([LAUNCH, LOOK], Kind.DIE_BEFORE, Kind.DIE_AFTER) == (LOOK,)


def test_the_table_has_a_dot_where_something_possible_has_not_happened():
    """Step by step, calls down, kinds across; a launch is never stale."""
    coverage = counted((LAUNCH, Kind.DIE_AFTER))
    coverage.lost("wake", "drop")
    _, head, launch, _, sweep, look, _, messages = coverage.table().splitlines()
    words = head.split()[1:]
    cells = {word: launch[head.index(word) :][: len(word)].strip() for word in words}
    assert (head.split()[0], launch.split()[:2], sweep.split()[0]) == ("provision", ["ec2", "CreateFleet"], "sweep")
    assert look.startswith("  list Pod ")
    assert (cells["die-after"], cells["die-before"], cells["stale"]) == ("1", ".", "")
    assert messages == "messages to wake: 1 drop"


def test_every_site_can_be_died_at_and_is_listed_once():
    """By step; a site that changes something can lose its answer, too."""
    assert len(set(CALL_SITES)) == len(CALL_SITES)
    assert all({Kind.DIE_BEFORE, Kind.DIE_AFTER, Kind.PARK} <= {*kinds_of(site)} for site in CALL_SITES)
    effects = [site for site in CALL_SITES if has_effect(site)]
    assert "terminate: evict Pod" in effects
    assert "provision: get Lease" not in effects
