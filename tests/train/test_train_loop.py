"""The loop: what a run leaves behind, how it stops, and how it goes on."""

import json
import signal
import threading

import jax
import numpy as np
import pytest
import train_cases as cases
from test_train_checkpoint import full_disk

import gpo
from gpo import train
from gpo.tasks import text
from gpo.train import log


def fit(folder, step=None, state=None, **settings):
    """`train.fit` of the fake step; returns the state and what was shown."""
    console = cases.screen(settings.pop("terminal", False))
    defaults = {"steps": 6, "task": cases.TASK, "about": cases.about(), "save_every": 3}
    state = train.fit(
        step or cases.fake_step(),
        state or cases.fake_state(),
        folder=folder,
        console=console,
        **defaults | settings,
    )
    return state, console.file.getvalue()


def steps_of(folder, name="metrics"):
    return [row["step"] for row in log.read(folder / f"{name}.jsonl")]


def test_a_run_leaves_its_folder(tmp_path):
    folder = tmp_path / "deep" / "run"
    state, shown = fit(folder, show_every=4)
    assert state.step == 6
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "checkpoints", "config.json", "curves.png", "metrics.jsonl", "samples.jsonl",
        "samples.md",
    }  # fmt: skip
    assert steps_of(folder) == [1, 2, 3, 4, 5, 6]
    assert steps_of(folder, "samples") == [1, 4]
    row = log.read(folder / "metrics.jsonl")[-1]
    assert row["reward"] == 0.5
    assert row["tokens_per_second"] > 0
    kept = log.read(folder / "samples.jsonl")[0]["rollouts"]
    assert kept[0] == {
        "prompt": cases.text(cases.TASK.prompts[1][: cases.TASK.length[1]]),
        "completion": "456",
        "reward": 0.0,
        "advantage": -0.5,
        "logp": -1.0,
        "length": 3,
    }
    assert "| `456` | 0.000 | -0.500 |" in (folder / "samples.md").read_text()
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    config = json.loads((folder / "config.json").read_text())
    assert config["recipe"]["weight"] == "weight.sequence_mean()"
    assert train.Checkpoints(folder / "checkpoints", cases.about()).steps == [3, 6]
    assert "compiling the training step" in shown
    assert "step 6/6  reward 0.500  no signal 25%  entropy 1.000" in shown
    assert "rollouts of step 4" in shown


def test_a_terminal_gets_a_bar(tmp_path):
    _, shown = fit(tmp_path, terminal=True)
    assert "━" in shown
    assert "6/6" in shown
    assert "tok/s" in shown
    assert "left" in shown


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    fit(tmp_path)
    with pytest.raises(ValueError, match="already holds a run: pass resume=True"):
        fit(tmp_path)
    with pytest.raises(ValueError, match="recipe.weight"):
        fit(tmp_path, resume=True, about=cases.about(gpo.recipes.dapo()))
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_killed_run_goes_on_without_a_step_twice(tmp_path):
    class Killed(BaseException):
        pass

    def kill(step):
        if step == 6:
            raise Killed

    with pytest.raises(Killed):
        fit(tmp_path, cases.fake_step(kill), steps=8, show_every=1)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5]
    for name in ("metrics", "samples"):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write('{"step": 6, "rewa')  # the kill fell into a write
    state, shown = fit(tmp_path, steps=8, show_every=1, resume=True)
    assert state.step == 8
    np.testing.assert_array_equal(state.params["w"], np.arange(4) + 8.0)
    assert "going on from step 3" in shown
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert steps_of(tmp_path, "samples") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_resume_begins_where_there_is_no_checkpoint(tmp_path):
    state, shown = fit(tmp_path, resume=True)
    assert state.step == 6
    assert "no complete checkpoint" in shown
    state, shown = fit(tmp_path, resume=True)  # nothing is left to do
    assert state.step == 6
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_finishes_the_step_and_says_how_to_go_on(tmp_path, number):
    def interrupt(step):
        if step == 2:
            signal.raise_signal(number)

    before = signal.getsignal(number)
    state, shown = fit(
        tmp_path, cases.fake_step(interrupt), again="python -m x --resume"
    )
    assert state.step == 2
    assert "stopping after this step" in shown
    assert "stopped at step 2, saved. Go on with:\n  python -m x --resume" in shown
    assert signal.getsignal(number) is before
    assert train.Checkpoints(tmp_path / "checkpoints", cases.about()).latest == 2
    state, _ = fit(tmp_path, resume=True)
    assert state.step == 6
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_a_second_interrupt_stops_at_once(tmp_path):
    def interrupt(step):
        if step == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path, cases.fake_step(interrupt))
    assert fit(tmp_path, resume=True)[0].step == 6


def test_it_runs_outside_the_main_thread(tmp_path):
    found = []
    thread = threading.Thread(target=lambda: found.append(fit(tmp_path)[0].step))
    thread.start()
    thread.join()
    assert found == [6]


def test_updates_that_are_not_finite_stop_the_run_with_their_rows(tmp_path):
    logp = -np.ones((4, 3), "f4")
    logp[2, 1] = np.nan
    step = cases.fake_step(skip=(2, 4, 5, 6), logp=jax.numpy.asarray(logp))
    with pytest.raises(FloatingPointError, match="3 updates in a row") as error:
        fit(tmp_path, step, steps=10)
    assert "nonfinite/step_000006.npz" in str(error.value)
    assert steps_of(tmp_path) == [1, 2, 3, 4, 5, 6]
    assert log.read(tmp_path / "metrics.jsonl")[5]["loss"] is None
    rows = np.load(tmp_path / "nonfinite" / "step_000006.npz")
    assert rows["offending"].tolist() == [False, False, True, False]
    np.testing.assert_array_equal(rows["logp"], logp)
    np.testing.assert_array_equal(rows["plan.context"], [0, 0, 1, 1])
    first, second, *_ = (
        (tmp_path / "nonfinite" / "step_000006.txt").read_text().split("\n")
    )
    assert "1 of 4 rows have values that are not finite" in first
    assert second.startswith("row 2: not finite: logp; reward 0.0, prompt ")
    assert "completion '456'" in second
    saved = train.Checkpoints(tmp_path / "checkpoints", cases.about())
    assert saved.latest == 6
    with pytest.raises(FloatingPointError, match="1 updates in a row"):
        fit(tmp_path / "strict", step, patience=1)


def test_a_real_step_that_is_not_finite_stops(tmp_path):
    task = cases.ENDLESS
    step = cases.make_step(task=task)
    with pytest.raises(FloatingPointError):
        fit(tmp_path, step, cases.fresh(step), task=task, patience=2)
    rows = np.load(tmp_path / "nonfinite" / "step_000002.npz")
    assert rows["offending"][5]
    assert np.isinf(rows["reward"][5])


def test_a_full_disk_does_not_end_a_run_until_it_does(tmp_path):
    large = cases.fake_state(size=200_000)
    with full_disk(400_000), pytest.raises(train.SaveError) as error:
        fit(tmp_path, state=large, steps=4, save_every=1)
    assert error.value.state.step == 4
    assert "Last complete step: no complete checkpoint yet" in str(error.value)
    assert steps_of(tmp_path) == [1, 2, 3, 4]
    state, _ = fit(tmp_path / "other", state=error.value.state)
    assert state.step == 6


def test_a_disk_that_is_full_for_a_while(tmp_path):
    large, stack = cases.fake_state(size=200_000), []

    def during(step):
        if step == 2:
            stack.append(full_disk(400_000))
            stack[-1].__enter__()
        if step == 5:
            stack.pop().__exit__(None, None, None)

    state, shown = fit(tmp_path, cases.fake_step(during), large, save_every=1)
    assert state.step == 6
    assert "could not be written" in shown
    assert "Last complete step: 1" in shown
    assert "Training goes on" in shown
    assert train.Checkpoints(tmp_path / "checkpoints", cases.about()).latest == 6


def test_evaluations_and_trackers(tmp_path):
    told = []
    _, shown = fit(
        tmp_path,
        evaluate=lambda params: {"greedy": float(params["w"][0])},
        evaluate_every=4,
        trackers=[lambda step, row: told.append((step, row["reward"]))],
    )
    rows = log.read(tmp_path / "metrics.jsonl")
    found = {r["step"]: r["eval/greedy"] for r in rows if "eval/greedy" in r}
    assert found == {0: 0.0, 4: 4.0, 6: 6.0}
    assert told == [(n, 0.5) for n in range(1, 7)]
    assert "greedy 4.000" in shown
    outcome = log.outcome(rows)
    assert (outcome["before"], outcome["after"]) == ({"greedy": 0.0}, {"greedy": 6.0})
    fit(tmp_path, steps=7, resume=True, evaluate=lambda params: {"greedy": 7.0})
    assert steps_of(tmp_path) == [0, 1, 2, 3, 4, 5, 6, 7]


def verdict(completion, item):
    if completion == "12":
        raise RuntimeError("no verdict")
    return 1.0


def test_failures_of_a_verifier_are_counted_and_shown(tmp_path):
    score = text.host(verdict, ["x"], cases.text, workers=0)
    task = cases.TASK._replace(score=score)

    def during(step):
        if step in (2, 3):
            batch = cases.fake_batch(item=jax.numpy.zeros(4, jax.numpy.int32))
            jax.block_until_ready(score(batch))

    _, shown = fit(tmp_path, cases.fake_step(during), task=task)
    rows = log.read(tmp_path / "metrics.jsonl")
    assert [r.get("verifier_errors") for r in rows] == [None, 1, 1, None, None, None]
    assert "step 2: 1 rows not scored: raised: RuntimeError: no verdict" in shown
    assert "rows not scored: 2 raised" in shown


def test_settings_that_changed_are_told(tmp_path):
    fit(tmp_path, steps=2, about=cases.about(config={"rate": 1}))
    _, shown = fit(tmp_path, resume=True, about=cases.about(config={"rate": 2}))
    assert "note: config.rate: saved 1, now 2" in shown


STATEFUL = gpo.recipes.mopps()._replace(
    buffer=gpo.recipes.ar3po(0.5).buffer,
    advantage=gpo.recipes.ebpo().advantage,
    behaviour=gpo.behaviour.delay(2),
    logits=gpo.sampling.temperature(0.9),
    gradient=gpo.recipes.vcpo_ess().gradient,
)


@pytest.mark.parametrize("recipe", [gpo.recipes.grpo(), STATEFUL])
def test_three_steps_and_three_more_are_six(tmp_path, recipe):
    """Whatever the slots hold: posteriors, a buffer, running means, old parameters."""
    step = cases.make_step(recipe)
    settings = {"about": cases.about(recipe), "show_every": 0}
    make = lambda: cases.fresh(step, reference=cases.params())
    straight, _ = fit(tmp_path / "six", step, make(), **settings)
    fit(tmp_path / "three", step, make(), steps=3, **settings)
    resumed, _ = fit(tmp_path / "three", step, make(), resume=True, **settings)
    assert cases.bits(resumed) == cases.bits(straight)
    assert step.step.compilations() == 1  # the restored state runs the same program
    for name in ("six", "three"):
        assert steps_of(tmp_path / name) == [1, 2, 3, 4, 5, 6]
    timing = {"seconds", "tokens_per_second"}
    six, three = (
        [
            {k: v for k, v in row.items() if k not in timing}
            for row in log.read(tmp_path / name / "metrics.jsonl")
        ]
        for name in ("six", "three")
    )
    assert six == three
    if recipe is STATEFUL:
        assert resumed.recipe.buffer["has"].any()
        assert cases.furthest(resumed.recipe.behaviour, resumed.params) > 0
