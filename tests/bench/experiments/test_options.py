"""Options of a run: what they turn into, and what does not fit together; what is said of absurd work."""

import pytest

from fringe import InputError
from fringe.bench.experiments import ProcessExecutor, RunOptions, SerialExecutor
from fringe.cli._console import describe_excess


def test_names_become_an_executor_and_a_device():
    options = RunOptions(device="auto").resolve()
    assert isinstance(options.executor, SerialExecutor)
    assert options.device in ("cpu", "cuda")
    several = RunOptions(workers=2, timeout=9).resolve()
    assert isinstance(several.executor, ProcessExecutor)
    assert several.executor.workers == 2
    with pytest.MonkeyPatch.context() as patched:  # several processes would share one GPU
        patched.setattr("fringe.bench.experiments._run.resolve_device", lambda name: name)
        assert RunOptions(executor="processes", device="cuda").resolve().executor.workers == 1
        assert RunOptions(executor="processes", device="cuda", workers=3).resolve().executor.workers == 3
    executor = ProcessExecutor(1)
    assert RunOptions(executor=executor).resolve().executor is executor


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"executor": "serial", "workers": 2}, "workers"),
        ({"timeout": 5}, "timeout"),
        ({"executor": "threads"}, "executor"),
        ({"device": "tpu7"}, "device"),
        ({"workers": -1}, "workers"),
        ({"batch_size": "all"}, "batch_size"),
        ({"timeout": 0.5}, "timeout"),
    ],
)
def test_options_that_do_not_fit_name_the_argument(options, argument):
    with pytest.raises(InputError) as caught:
        RunOptions(**options).resolve()
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"save_maps": "maybe"}, "save_maps: got 'maybe', expected true or false"),
        ({"workers": "two"}, "workers: got 'two', expected a whole number"),
        ({"timeout": "long"}, "timeout: got 'long', expected a number of seconds"),
        ({"device": 3}, "device: got 3, expected text"),
    ],
)
def test_a_value_of_a_wrong_type_is_answered_with_what_the_option_takes(options, expected):
    with pytest.raises(InputError, match=expected):
        RunOptions(**options)


def test_absurd_work_is_described_and_usual_work_is_not():
    assert describe_excess([]) is None
    assert describe_excess([("a map by ig", 1e6, 1e4)]) is None
    assert describe_excess([("a map by ig", 3e6, 10.0), ("the score mas", 1e3, 1e6)]) == (
        "the settings mean about 1e+09 forward and backward passes, 3e+06 for a map by ig of one image"
    )
    assert "about 2e+10 forward" in describe_excess([("the score mas", 1e5, 2e5)])
