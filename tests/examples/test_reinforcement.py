"""The reinforcement example: what it is told, that it learns, and with one model."""

import numpy as np
import pytest

import dynbatch as db
from dynbatch import optim
from dynbatch.kernels.c.runtime.library import reason
from examples.reinforcement.brackets import END, TOKENS, answer, prompt, reward
from examples.reinforcement.train import Settings, Writer, learn, main, sampled, update

pytestmark = pytest.mark.usefixtures("same_threads")


def ids(text):
    return np.array([TOKENS.index(one) for one in text])


@pytest.mark.parametrize(
    ("opened", "written", "part"),
    [
        ("([", "]).", 1),
        ("([", "])", 2 / 3),
        ("([", ")].", 0),
        ("(", ")(.", 1 / 2),
        ("[[[", ".", 0),
        ("[", "].]", 1),
    ],
)
def test_the_reward_is_the_part_before_the_first_mistake(opened, written, part):
    assert reward(ids(opened), ids(written)) == pytest.approx(part)


def test_prompts_are_open_brackets_of_any_number():
    rng = np.random.default_rng(0)
    found = [prompt(rng, 3) for _ in range(200)]
    assert {one.size for one in found} == {1, 2, 3}
    assert {TOKENS[k] for one in found for k in one} == {"(", "["}
    assert all(reward(one, answer(one)) == 1 for one in found)


def differences_are_none(updates):
    """Equality, exact where C runs; NumPy's last bits may depend on the rows beside one."""
    return max(one.difference for one in updates) <= (1e-5 if reason() else 0)


def test_what_is_sampled_is_scored_with_the_same_bits_update_for_update():
    updates = learn(Settings(updates=4, prompts=5, samples=3, width=12, lr=0.05, quiet=True))
    assert [len(one.rewards) for one in updates] == [15] * 4
    assert differences_are_none(updates)


def test_a_step_makes_the_better_answer_more_probable():
    model, opened = Writer(10, seed=3), ids("([")
    config = db.GenerationConfig(
        do_sample=True, num_return_sequences=6, max_new_tokens=3, eos_token_id=(END,)
    )
    engine = db.Engine(model, config)
    for seed in range(100):
        (answers,) = sampled(engine, [opened], seed)
        rewards = [reward(opened, one.tokens) for one in answers]
        if 0 < sum(rewards) < len(rewards):
            break

    def log_prob(tokens):
        with db.Graph(grad=False) as graph:
            return float(db.log_prob(graph, model, opened, tokens).value)

    best = answers[int(np.argmax(rewards))].tokens
    before = log_prob(best)
    update(model, optim.SGD(model, lr=0.1), [opened], [answers])
    assert log_prob(best) > before


def test_the_command_draws_the_reward_and_tells_the_difference(capsys):
    options = ["--updates", "3", "--prompts", "2", "--samples", "2", "--width", "4", "--quiet"]
    assert main([*options, "--threads", "1"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("reward ") and first.endswith(" at last")
    assert second.startswith("sampled and scored log-probabilities of ")
    with pytest.raises(SystemExit):
        main(["--samples", "1"])
    assert "1 is below 2" in capsys.readouterr().err


@pytest.mark.exhaustive
def test_the_reward_rises():
    updates = learn(Settings(updates=150, quiet=True))
    first, last = [np.mean([one.rewards for one in part]) for part in (updates[:10], updates[-10:])]
    assert first < 0.3 and last > 0.75
    assert differences_are_none(updates)
