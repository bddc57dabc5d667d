"""The paper's curves, under our names."""

import numpy as np
import pytest

from bdpi.report.paper import paper_curve, paper_curves, thresholds_of

ALGORITHMS = ("BDPI", "ABCDQN", "ActorMimic", "BootstrappedDQN", "PPO", "ACKTR")
CRITICS = ("1x1", "8x8", "16x8", "16x16", "32x16", "32x32")
ENVIRONMENTS = ("TableLong-v0", "LunarLander-v3", "FrozenLake8x8-v1", "Hallway-v0")
OURS = [
    *(("algorithms", environment, name) for environment in ENVIRONMENTS for name in ALGORITHMS),
    *(("critics", environment, name) for environment in ENVIRONMENTS for name in CRITICS),
    *(("noise", environment, name) for environment in ENVIRONMENTS for name in ("BDPI", "BDPI+noise")),
    *(("pendulum", "Pendulum-v1", name) for name in ("BDPI+binary", "SAC", "TD3")),
]


def test_every_curve_of_the_paper_has_one_name_here() -> None:
    found = [paper_curve(*place) for place in OURS]
    assert {id(curve) for curve in found} == {id(curve) for curve in paper_curves()}
    assert len(found) == len(paper_curves()) == 59


# Computed from the figure's points when they were recovered.
@pytest.mark.parametrize(
    ("place", "all_episodes", "last_tenth"),
    [
        (("algorithms", "FrozenLake8x8-v1", "BDPI"), 0.5431, 0.5995),
        (("algorithms", "FrozenLake8x8-v1", "BootstrappedDQN"), 0.3297, 0.5034),
        (("algorithms", "LunarLander-v3", "ActorMimic"), -132.25, -178.18),
        (("critics", "TableLong-v0", "32x16"), 73.40, 99.9952),
        (("noise", "LunarLander-v3", "BDPI+noise"), 129.65, 208.18),
        (("pendulum", "Pendulum-v1", "SAC"), -678.49, -161.78),
    ],
)
def test_curves_are_the_papers(place: tuple[str, str, str], all_episodes: float, last_tenth: float) -> None:
    curve = paper_curve(*place)
    assert curve is not None
    span = np.ptp(curve.returns)
    assert curve.returns.mean() == pytest.approx(all_episodes, abs=1e-3 * span)
    assert curve.mean(0.9 * curve.episodes[-1], curve.episodes[-1]) == pytest.approx(last_tenth, abs=0.01 * span)


def test_other_spellings_are_found_and_other_environments_are_not() -> None:
    assert paper_curve("Noise", "LunarLander-v2", "noise") is paper_curve("noise", "LunarLander-v3", "BDPI+noise")
    assert paper_curve("pendulum", "Pendulum-v1", "BDPI") is paper_curve("pendulum", "Pendulum-v1", "BDPI+binary")
    assert paper_curve("algorithms", "some_package:FrozenLake8x8-v1", "bdpi") is not None
    for place in [
        ("algorithms", "Table-v0", "BDPI"),  # its episodes are shorter than those of the figure
        ("algorithms", "FrozenLake-v1", "BDPI"),
        ("algorithms", "CartPole-v1", "BDPI"),
        ("algorithms", "Hallway-v0", "DQN"),
        ("trust region", "Hallway-v0", "BDPI"),
    ]:
        assert paper_curve(*place) is None


def test_a_mean_ends_where_the_curve_does() -> None:
    curve = paper_curve("critics", "LunarLander-v3", "16x16")
    assert curve is not None
    assert curve.episodes[0] == 64  # the figure cuts its beginning off
    assert curve.mean(0, 64) == curve.returns[0]
    assert np.isnan(curve.mean(0, 63))
    assert np.isnan(curve.mean(2000, 3000))


def test_thresholds_belong_to_environments() -> None:
    assert thresholds_of("LunarLander-v3") == (100.0, 200.0)
    assert thresholds_of("Table-v0") == thresholds_of("TableLong-v0") == (90.0,)
    assert thresholds_of("FrozenLake8x8-v1") == (0.5,)
    assert thresholds_of("Hallway-v0") == (0.8,)
    assert thresholds_of("Pendulum-v1") == (-300.0,)
    assert thresholds_of("CartPole-v1") == ()
