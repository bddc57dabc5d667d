"""Many agents at once, wherever they learn. tests/learner/test_together.py has what they learn on a GPU."""

import _thread
import functools
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from bdpi import ABCDQN, BDPI, Population
from bdpi.learner import fused
from small import QUICK, Walk, fingerprint

ON_CPU = {**QUICK, "device": "cpu"}
INTERRUPTED = """
import os, signal, sys, threading, time
from small import QUICK, Walk
from bdpi import BDPI, Population

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells have what they run in the background ignore it

def interrupt():
    while min(agent.num_timesteps for agent in several.agents) < 20:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

several = Population(BDPI, Walk, 3, device="cpu", **QUICK)
threading.Thread(target=interrupt).start()
asked = []
try:
    several.learn(10**9, callback=lambda variables, others: asked.append(0) or True)
except KeyboardInterrupt:
    before = [agent.num_timesteps for agent in several.agents]
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(60)
            assert not thread.is_alive(), thread
    assert len(asked) == sum(before), "the user's callback was asked at each step"
    several.learn(5, reset_num_timesteps=False)
    assert [agent.num_timesteps for agent in several.agents] == [steps + 5 for steps in before]
    print("went on")
"""


def test_ctrl_c_stops_all_agents_and_they_can_go_on():
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r})\n{INTERRUPTED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "went on\n", done.stderr


def test_an_interruption_without_a_signal_stops_all_agents():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    several = Population(BDPI, Walk, 2, **ON_CPU)

    def interrupt(variables, others) -> bool:
        if several.agents[0].num_timesteps == 20 and variables["self"] is several.agents[0]:
            _thread.interrupt_main()
        return True

    try:
        with pytest.raises(KeyboardInterrupt):
            several.learn(10**9, callback=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    steps = [agent.num_timesteps for agent in several.agents]
    several.learn(5, reset_num_timesteps=False)
    assert [agent.num_timesteps for agent in several.agents] == [count + 5 for count in steps]


def test_a_population_that_learns_is_not_begun_again():
    several, errors = Population(BDPI, Walk, 2, **ON_CPU), []

    def again(variables, others) -> bool:
        if not errors:
            with pytest.raises(RuntimeError, match="learning already") as error:
                several.learn(1)
            errors.append(error)
        return True

    several.learn(20, callback=again)
    assert errors
    assert [agent.num_timesteps for agent in several.agents] == [20, 20]
    several.learn(5, reset_num_timesteps=False)


WRONG = [
    ({"n": True}, "n must be a whole number from 1 on, got n=True"),
    ({"n": 2.0}, "n must be a whole number from 1 on, got n=2.0"),
    ({"n": -1}, "at least one agent.*got n=-1"),
    ({"seed": 1.5}, "seed must be a whole number at least 0, got 1.5"),
    ({"seed": None}, "seed must be a whole number at least 0, got None"),
    ({"configs": {"gamma": 0.9}}, r"one for each agent, got a single one; .*Population\(\.\.\., \*\*config\)"),
    ({"configs": "ab"}, "list of dictionaries, one for each agent, got 'ab'"),
    ({"configs": ({} for _ in range(2))}, "list of dictionaries, one for each agent, got <generator"),
    ({"configs": [{}, 0.9]}, r"configs\[1\] is 0.9"),
    ({"configs": [{}, {"policy": "CnnPolicy"}]}, r"configs\[1\] has 'policy'.*Population\(\.\.\., policy="),
    ({"configs": [{"env": "CartPole-v1"}, {}]}, r"configs\[0\] has 'env'"),
    ({"configs": [{}, {"gamma": 2}]}, "agent 1 cannot be made: gamma must be .*got 2"),
    ({"env": Walk()}, "a function that makes one for each agent, not an environment: .*lambda: "),
    ({"env": DummyVecEnv([Walk])}, "a function that makes one for each agent, not an environment"),
    ({"env": None}, "the id of an environment, or a function.*got None"),
    ({"env": lambda: 3}, "env must make a Gymnasium environment, for agent 0 it made 3"),
    ({"env": functools.cache(Walk)}, "env must make a new environment each time, agent 1 got that of another agent"),
    ({"agent_class": DQN}, "agent_class must be bdpi.BDPI or another agent of this package, got .*DQN"),
    ({"device": "gpu"}, 'device must be one of PyTorch, as "cuda", "cuda:1" or "cpu", got .gpu.'),
    ({"device": None}, 'device must be one of PyTorch, as "cuda", "cuda:1" or "cpu", got None'),
    ({"policy": "CnnPolicy"}, 'agent 0 cannot be made: "CnnPolicy" is for pictures.*use "MlpPolicy"'),
    ({"autosave": "a.zip"}, "agent 1 cannot be made: autosave='a.zip' is the file of another agent: give each its own"),
    ({"agent_class": "BDPI"}, "agent_class must be bdpi.BDPI or another agent of this package, got 'BDPI'"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_wrong_arguments_are_named_with_what_to_do(arguments, message):
    with pytest.raises(ValueError, match=message):
        Population(**{"agent_class": BDPI, "env": Walk, "n": 2, **ON_CPU, **arguments})


@pytest.mark.parametrize("steps", [-5, float("nan"), 1.5, "10", True, None])
def test_agents_learn_for_a_number_of_steps(steps):
    for learner in (Population(BDPI, Walk, 2, **ON_CPU), BDPI("MlpPolicy", Walk(), **QUICK)):
        with pytest.raises(
            ValueError, match=f"total_timesteps must be a whole number of steps, 0 or more, got {steps!r}"
        ):
            learner.learn(steps)
        learner.learn(3e1)


def test_each_agent_may_have_a_file_of_its_own_to_save_itself_to(tmp_path):
    files = [tmp_path / f"{number}.zip" for number in range(2)]
    Population(BDPI, Walk, 2, [{"autosave": file} for file in files], autosave_minutes=1e-6, **ON_CPU).learn(30)
    assert [BDPI.load(file).seed for file in files] == [0, 1]


def test_each_agent_has_a_folder_of_its_own_for_tensorboard(tmp_path):
    several = Population(BDPI, Walk, 4, tensorboard_log=str(tmp_path), **ON_CPU).learn(40)
    several.learn(40, reset_num_timesteps=False)
    folders = [f"BDPI-{number}_1" for number in range(4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == folders
    for agent, name in zip(several.agents, folders, strict=True):
        assert Path(agent.logger.dir) == tmp_path / name
        assert sum(file.stat().st_size for file in (tmp_path / name).iterdir()) > 1000  # more than a header
    several.learn(40, tb_log_name="again")
    assert sorted(path.name for path in tmp_path.glob("again*")) == [f"again-{number}_1" for number in range(4)]


def test_configurations_may_have_numbers_of_numpy():
    rates = np.logspace(-4, -2, 3, dtype=np.float32)
    configs = [{"learning_rate": rate, "actor_learning_rate": rate} for rate in rates]
    several = Population(BDPI, Walk, 3, configs, **ON_CPU).learn(20)
    assert [agent.learning_rate for agent in several.agents] == rates.tolist()


def test_agents_that_kernels_for_many_runs_cannot_train_say_so(monkeypatch):
    """Where there is a GPU, which is only said here."""
    monkeypatch.setattr(fused, "runs_on", lambda device: True)
    with pytest.warns(RuntimeWarning, match="falling back to separate training.*one hidden layer"):
        Population(BDPI, Walk, 2, policy_kwargs={"net_arch": [4, 4]}, **ON_CPU)


def test_an_argument_that_does_not_exist_is_named_with_its_agent():
    with pytest.raises(TypeError, match=r"agent 1 cannot be made: .*'trust'"):
        Population(BDPI, Walk, 2, [{}, {"trust": 1}], **ON_CPU)


class Counter(BaseCallback):
    """Counts the steps of its agent."""

    def _on_step(self) -> bool:
        return True


def test_each_agent_may_have_a_callback_of_its_own():
    several, own = Population(BDPI, Walk, 3, **ON_CPU), [Counter(), None, Counter()]
    several.learn(20, callback=own.__getitem__)
    assert [own[number].model is several.agents[number] for number in (0, 2)] == [True, True]
    assert [own[number].n_calls for number in (0, 2)] == [20, 20]
    asked = []
    several.learn(5, callback=lambda variables, others: asked.append(variables["self"]) or True)
    assert sorted(map(id, asked)) == sorted(5 * [id(agent) for agent in several.agents])


@pytest.mark.parametrize("callback", [Counter(), [Counter()], Counter, "Counter", lambda number: True])
def test_a_callback_of_one_agent_is_not_for_several(callback):
    with pytest.raises(ValueError, match="function from the number of an agent to a callback of its own"):
        Population(BDPI, Walk, 2, **ON_CPU).learn(5, callback=callback)


def test_a_single_agent_takes_any_callback():
    one, first, second = Population(BDPI, Walk, 1, **ON_CPU), Counter(), Counter()
    one.learn(5, callback=first)
    one.learn(5, [second])
    assert (first.n_calls, second.n_calls) == (5, 5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_once_that_agents_learn_by_themselves(tmp_path):
    with pytest.warns(RuntimeWarning, match="each agent of this population learns by itself.*bdpi doctor") as warned:
        several = Population(BDPI, Walk, 3, **QUICK)
    assert len(warned) == 1
    assert Path(warned[0].filename) == Path(__file__)
    assert {agent.device.type for agent in several.agents} == {"cpu"}
    several.save(tmp_path)
    with pytest.warns(RuntimeWarning, match="each agent of this population") as warned:
        Population.load(tmp_path, Walk)
    assert Path(warned[0].filename) == Path(__file__)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Population(BDPI, Walk, 3, device="cpu", **QUICK)


PICTURES = functools.partial(Walk, spaces.Box(0, 255, (1, 36, 36), np.uint8))


def test_agents_with_convolutions_are_where_the_population_is():
    """The first CPU, which is not the same name as any, because there need not be a GPU."""
    several = Population(BDPI, PICTURES, 2, [{}, {"device": "cpu"}], policy="CnnPolicy", device="cpu:0", **QUICK)
    assert [agent.device for agent in several.learn(20).agents] == [torch.device("cpu:0"), torch.device("cpu")]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_agents_with_convolutions_go_to_the_gpu_of_the_population_or_to_none():
    for device in ("cuda:0", "cpu"):
        several = Population(BDPI, PICTURES, 2, policy="CnnPolicy", device=device, **QUICK).learn(30)
        assert [agent.device for agent in several.agents] == [torch.device(device)] * 2
    assert {agent.device.type for agent in Population(BDPI, Walk, 2, device="cuda:0", **QUICK).agents} == {"cpu"}
    with pytest.raises(ValueError, match="device='cuda:99' does not exist: the last GPU is cuda:"):
        Population(BDPI, Walk, 2, device="cuda:99", **QUICK)


def test_a_saved_population_goes_on(tmp_path):
    several = Population(BDPI, Walk, 2, [{"trust_region": 0.1}, {}], seed=3, **ON_CPU).learn(40)
    several.save(tmp_path, include_buffer=True)
    loaded = Population.load(tmp_path, Walk, device="cpu")
    assert [type(agent) for agent in loaded.agents] == [BDPI, BDPI]
    assert [(agent.seed, agent.trust_region) for agent in loaded.agents] == [(3, 0.1), (4, 0.01)]
    assert [len(agent.replay_buffer) for agent in loaded.agents] == [40, 40]
    assert [fingerprint(agent) for agent in loaded.agents] == [fingerprint(agent) for agent in several.agents]
    alone = [BDPI.load(tmp_path / f"agent-{k}", Monitor(Walk())).learn(20, reset_num_timesteps=False) for k in (0, 1)]
    loaded.learn(20, reset_num_timesteps=False)
    assert [fingerprint(agent) for agent in loaded.agents] == [fingerprint(agent) for agent in alone]
    assert [len(returns) for returns in loaded.returns()] == [20 // 7] * 2


class Mine(ABCDQN):
    """A class that the package does not know."""


def test_populations_that_cannot_be_loaded_say_why(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no saved population in .*: no agent-0\.zip"):
        Population.load(tmp_path, Walk, device="cpu")
    Population(Mine, Walk, 3, **ON_CPU).save(tmp_path)
    with pytest.raises(ValueError, match=r"agent of class Mine, .* give load agent_class=Mine"):
        Population.load(tmp_path, Walk, device="cpu")
    assert len(Population.load(tmp_path, Walk, agent_class=Mine, device="cpu", gamma=0.5).agents) == 3
    with pytest.raises(ValueError, match=r"agent 0 cannot be made: Mine has no argument .trust.: "):
        Population.load(tmp_path, Walk, agent_class=Mine, device="cpu", trust=0.5)
    with pytest.raises(ValueError, match=r"agent-2\.zip is of a larger population: choose another folder"):
        Population(Mine, Walk, 2, **ON_CPU).save(tmp_path)
    (tmp_path / "agent-1.zip").unlink()
    with pytest.raises(FileNotFoundError, match=r"agent-1\.zip is missing: .* has agent-0\.zip, agent-2\.zip"):
        Population.load(tmp_path, Walk, agent_class=Mine, device="cpu")
