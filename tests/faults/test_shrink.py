"""Shortening: what remains of a story is what it takes."""

from journeyman_simulator.faults.call_sites import CALL_SITES
from journeyman_simulator.faults.fault_scenario import CallFault, Deploy, Kind, Pool, Scale, Setting, Story, lines
from journeyman_simulator.faults.scenario_generator import story_of
from journeyman_simulator.faults.shrinking import shortened

LONG = story_of(4)
CULPRIT = CallFault(site="provision: ec2 CreateFleet", nth=3, kind=Kind.DIE_AFTER, seconds=0)


def breaks(story):
    """As if that death broke a rule while at least three pods are wanted."""
    deaths = [f for f in story.faults if isinstance(f, CallFault) and f.site == CULPRIT.site and f.kind is CULPRIT.kind]
    return bool(deaths) and any(isinstance(act, Deploy) and act.replicas >= 3 for act in story.acts)


def test_what_is_not_needed_is_left_out():
    """Acts, faults, pools and numbers."""
    acts = (Deploy(at_seconds=0, app="a", replicas=9), *LONG.acts, Scale(at_seconds=300, app="a", replicas=0))
    setting = Setting(pools=(Pool(name="a", limit_cpus=8), Pool(name="b", weight=10)), daemons=True, zones=3)
    story = Story(seed=4, setting=setting, acts=acts, faults=(*LONG.faults, CULPRIT, *story_of(6).faults))
    short = shortened(story, breaks)
    (act,) = short.acts
    assert (act.replicas, short.faults) == (3, (CallFault(site=CULPRIT.site, nth=1, kind=CULPRIT.kind),))
    assert short.setting == Setting(pools=(Pool(name="b"),))


def test_no_more_stories_are_told_than_may_be():
    """And what was found until then is returned."""
    told = []

    def counting(story):
        told.append(story)
        return breaks(story)

    story = Story(seed=4, acts=(Deploy(at_seconds=0, app="a", replicas=9), *LONG.acts), faults=(*LONG.faults, CULPRIT))
    short = shortened(story, counting, most=5)
    assert len(told) == 5
    assert breaks(short)


def test_a_seed_is_always_the_same_story_and_every_site_is_died_at_in_its_turn():
    """Before and after its effect, by the time that twice as many pairs of seeds are through."""
    assert story_of(7) == story_of(7)
    stories = [story_of(seed) for seed in range(4 * len(CALL_SITES))]
    died = {(f.site, f.kind) for s in stories for f in s.faults if isinstance(f, CallFault) and f.nth == 1}
    swept = [s for s in stories if s.setting.sweep]
    assert len(swept) < len(stories)
    assert len({pair for pair in died if pair[1] in {Kind.DIE_BEFORE, Kind.DIE_AFTER}}) > 1.8 * len(CALL_SITES)


def test_a_story_is_told_in_lines_of_what_is_out_of_the_ordinary():
    """One for each act and fault."""
    story = Story(seed=1, acts=(Deploy(at_seconds=5, app="a", replicas=2),), faults=(CULPRIT,))
    assert lines(story) == [
        "a story of seed 1:",
        "  the usual setting",
        "  pool default: as usual",
        "     5 s  Deploy app=a replicas=2",
        "  call 3 of provision: ec2 CreateFleet: die-after",
    ]
