from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colmet.common.errors import ConfigError
from colmet.node.kernel.perfevents import (
    MAX_TEXT,
    Absent,
    EventChoice,
    find,
    parse_choice,
    parse_choices,
    split_choices,
)

DEVICES = "/sys/bus/event_source/devices"


@pytest.fixture
def intel(fake):
    """PMUs as an Intel server has them."""
    for path, text in {
        "cpu/type": "4\n",
        "cpu/events/mem-loads": "event=0xcd,umask=0x1,ldlat=3\n",
        "cpu/events/topdown-slots": "event=0x00,umask=0x4\n",
        "cpu/events/with-edge": "event=0x3c,edge,inv\n",
        "cpu/events/wants": "event=0x1,ldlat=?\n",
        "cpu/format/event": "config:0-7\n",
        "cpu/format/umask": "config:8-15\n",
        "cpu/format/edge": "config:18\n",
        "cpu/format/inv": "config:23\n",
        "cpu/format/ldlat": "config1:0-15\n",
        "cpu/format/split": "config:0-7,32-35\n",
        "cpu/format/far": "config2:0-63\n",
        "cpu/format/fourth": "config3:0-7\n",
        "cpu/format/wide": "config:60-70\n",
        "cpu/format/odd": "somewhere\n",
        "msr/type": "9\n",
        "msr/events/tsc": "event=0x00\n",
        "msr/format/event": "config:0-63\n",
        "power/type": "18\n",
        "power/cpumask": "0,28\n",
        "power/events/energy-pkg": "event=0x02\n",
        "power/events/energy-pkg.scale": "2.3283064365386962890625e-10\n",
        "power/format/event": "config:0-7\n",
        "bad/type": "many\n",
    }.items():
        fake.write(f"{DEVICES}/{path}", text)
    return fake.host


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("instructions", 0, 1),
        ("cache_misses", 0, 3),
        ("ref_cpu_cycles", 0, 9),
        ("cache_ll", 3, 2),
        ("cache_result_access", 3, 0),
        ("page_faults", 1, 2),
        ("bpf_output", 1, 10),
        ("cpu-cycles", 0, 0),
        ("cycles", 0, 0),
        ("page-faults", 1, 2),
        ("faults", 1, 2),
        ("context-switches", 1, 3),
        ("cs", 1, 3),
        ("minor-faults", 1, 5),
        ("cgroup-switches", 1, 11),
        ("stalled-cycles-backend", 0, 8),
        ("L1-dcache-loads", 3, 0),
        ("L1-dcache-load-misses", 3, 0x10000),
        ("LLC-stores", 3, 0x102),
        ("LLC-store-misses", 3, 0x10102),
        ("dTLB-load-misses", 3, 0x10003),
        ("node-prefetch-misses", 3, 0x10206),
        ("r1a8", 4, 0x1A8),
        ("rC0DE", 4, 0xC0DE),
    ],
)
def test_a_generic_name_is_what_the_kernel_numbers_it(fake, name, kind, config):
    assert find(name, fake.host)[:4] == (kind, config, 0, 0)


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("cpu/mem-loads/", (4, 0x1CD, 3, 0)),
        ("mem-loads", (4, 0x1CD, 3, 0)),
        ("cpu/mem-loads,ldlat=30/", (4, 0x1CD, 30, 0)),
        ("cpu/event=0x3c,umask=0x00/", (4, 0x3C, 0, 0)),
        ("cpu/with-edge/", (4, 0x3C | 1 << 18 | 1 << 23, 0, 0)),
        ("cpu/event=0x3c,edge/", (4, 0x3C | 1 << 18, 0, 0)),
        ("cpu/wants,ldlat=010/", (4, 1, 10, 0)),
        ("cpu/split=0xfab/", (4, 0xF000000AB, 0, 0)),
        ("cpu/far=0xffffffffffffffff/", (4, 0, 0, 2**64 - 1)),
        ("cpu/config=0x5,config1=6,config2=7/", (4, 5, 6, 7)),
        ("msr/tsc/", (9, 0, 0, 0)),
    ],
)
def test_an_event_of_a_pmu_is_put_together_from_sysfs(intel, name, event):
    assert find(name, intel)[:4] == event


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("instrutions", "did you mean instructions"),
        ("pagefaults", "did you mean page_faults"),
        ("power/energy-pkg", "did you mean power/energy-pkg/"),
        ("nothing like it", "'nothing like it' is no event. There are cpu_cycles, instructions,"),
        ("", "is no event"),
        *((text, "is no event") for text in ("r", "r12345678901234567", "../../etc/passwd", "sched:sched_switch")),
        ("cpu/mem-loads/u", "cannot be limited by 'u'"),
        ("cpu/mem-loads/\n", "cannot be limited"),
        ("power/energy-pkg/", "power counts for a whole socket or core"),
        ("cpu/event=0x1ff/", "event=0x1ff is too large for config:0-7"),
        ("cpu/event=-1/", "no number of 64 bits"),
        ("cpu/event=1_0/", "no number of 64 bits"),
        ("cpu/event=0x1ffffffffffffffff/", "no number of 64 bits"),
        ("cpu/event=/", "no number of 64 bits"),
        ("cpu/../=1/", "is no event"),
        ("cpu/.=1/", "no term"),
        ("cpu/event=1,,umask=1/", "no term"),
        ("cpu/wants/", "requires a number: add ldlat=<number>"),
    ],
)
def test_what_can_be_no_event_is_refused_in_words_that_help(intel, name, says):
    with pytest.raises(ValueError, match=says):
        find(name, intel)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("cbox_0/llc/", "there is no PMU cbox_0, only bad, cpu, msr, power"),
        ("../x/", "there is no PMU .."),
        ("cpu/mem-load/", "there is no .*/cpu/events/mem-load"),
        ("cpu/period=5/", "there is no .*/cpu/format/period, only edge, event"),
        ("cpu/fourth=1/", "cannot parse .*config3"),
        ("cpu/wide=1/", "cannot parse .*config:60-70"),
        ("cpu/odd=1/", "cannot parse .*somewhere"),
        ("bad/event=1/", "cannot parse .*/bad/type 'many'"),
    ],
)
def test_what_this_machine_lacks_is_distinguished_from_what_cannot_be(intel, name, says):
    with pytest.raises(Absent, match=says):
        find(name, intel)


# -- texts that say which events are counted --


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("cache_ll", EventChoice("cache_ll", None, None)),
        ("cache_ll:-1:-1", EventChoice("cache_ll", None, None)),
        ("emulation_faults:2:4242", EventChoice("emulation_faults", 2.0, 4242)),
        ("r1a8:0.5:-1", EventChoice("r1a8", 0.5, None)),
        ("cpu/event=0x3c,umask=0x00/:-1:7", EventChoice("cpu/event=0x3c,umask=0x00/", None, 7)),
    ],
)
def test_a_text_is_a_choice(text, choice):
    assert parse_choice(text) == choice


@pytest.mark.parametrize(
    "text",
    [
        *("", ":1:1", "cycles:u", "cycles:1", "cycles:1:2:3", "a\nb", "cycles:0:1", "cycles:-2:1", "cycles:1e3:1"),
        *("cycles:nan:1", "cycles:86401:1", "cycles:0.001:1", "cycles:1:0", "cycles:1:-2", "cycles:1:1.5"),
        *("cycles:1:99999999999999999999", "cycles:\u0661:1", "cycles::"),
    ],
)
def test_a_text_that_is_none_is_refused(text):
    with pytest.raises(ConfigError) as error:
        parse_choice(text)
    assert "\n" not in str(error.value)


def test_a_maximum_is_taken_and_not_none():
    assert len(parse_choices(["a"] * 5, 5)) == 5
    for texts in ([], ["a"] * 6):
        with pytest.raises(ConfigError, match=f"{len(texts)} events; give 5 at most, and one at least"):
            parse_choices(texts, 5)


def test_commas_within_an_event_do_not_divide_a_list():
    assert split_choices("cache_ll,emulation_faults:2:4242") == ["cache_ll", "emulation_faults:2:4242"]
    listed = split_choices(" a , cpu/event=0x3c,umask=0x00/:1:2,b/x,y/")
    assert listed == ["a", "cpu/event=0x3c,umask=0x00/:1:2", "b/x,y/"]
    assert split_choices("") == [""] and split_choices("a,") == ["a", ""]
    with pytest.raises(ConfigError, match="4097 characters"):
        split_choices("," * (MAX_TEXT + 1))


@given(st.text(max_size=60) | st.text(alphabet="a/,:-1.0", max_size=60))
def test_whatever_the_text_it_is_choices_or_an_error(text):
    try:
        choices = parse_choices(split_choices(text), 5)
    except ConfigError:
        return
    for choice in choices:
        period = "-1" if choice.period_s is None else f"{choice.period_s:.9f}"
        assert parse_choice(f"{choice.name}:{period}:{choice.job_id or -1}") == choice
