"""Values of jobs that one backend measures and another needs: who is called after whom, and what nobody provides."""

import logging

import pytest

from colmet.common.daemon.startup import load
from colmet.common.errors import ConfigError
from colmet.node.backends import NAMES
from colmet.node.runner import connect


class Backend:
    """As much of a backend as is connected."""

    def __init__(self, name, provides=(), needs=()):
        self.name, self.provides, self.needs = name, provides, needs
        self.used = {}

    def job_value(self, name):
        return lambda job: (self.name, name, job)

    def use_value(self, name, value):
        self.used[name] = value


def names_of(backends):
    return [backend.name for backend in backends]


def test_a_backend_is_called_after_those_whose_values_it_needs_and_else_in_the_order_given():
    last = Backend("last", needs=("y", "x"))
    middle = Backend("middle", provides=("y",), needs=("x",))
    backends = [last, Backend("other"), middle, Backend("first", provides=("x",))]
    assert names_of(connect(backends)) == ["other", "first", "middle", "last"]
    assert last.used["y"](7) == ("middle", "y", 7) and last.used["x"](7) == ("first", "x", 7)
    assert middle.used["x"](7) == ("first", "x", 7)


def test_a_value_that_nobody_provides_is_logged_and_stops_nothing(caplog):
    caplog.set_level(logging.INFO)
    needy = Backend("needy", needs=("x",))
    assert connect([needy]) == [needy] and needy.used == {}
    assert "no backend provides a value that another needs backend=needy value=x" in caplog.text


@pytest.mark.parametrize(
    ("backends", "text"),
    [
        ([Backend("a", ("x",), ("y",)), Backend("b", ("y",), ("x",))], "a, b need values of each other"),
        ([Backend("a", ("x",)), Backend("b", ("x",))], "a and b both provide x"),
        ([Backend("a", ("x",), ("x",))], "a need values of each other"),
    ],
)
def test_backends_that_cannot_be_put_in_order_are_refused(backends, text):
    with pytest.raises(ConfigError, match=text):
        connect(backends)


def test_every_value_that_a_backend_of_colmet_needs_is_provided_by_another_one_in_whatever_order():
    classes = load(NAMES)
    provided = {name for cls in classes for name in cls.provides}
    assert {name for cls in classes for name in cls.needs} <= provided
    backends = [Backend(cls.name, cls.provides, cls.needs) for cls in reversed(classes)]
    found = names_of(connect(backends))
    assert found.index("taskstats") < found.index("cgroup") < found.index("jobproc")
