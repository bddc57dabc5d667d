"""The learning curve and the film."""

import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

from bdpi.envs.film import Film, Filmed, no_window
from bdpi.runs.curve import draw_curve
from bdpi.runs.episodes import Episodes


def episodes_with(returns: list[float]) -> Episodes:
    episodes = Episodes()
    for number, episode_return in enumerate(returns):
        episodes.add(episode_return, 10, number)
    return episodes


@pytest.mark.parametrize("n", [1, 2, 400])
def test_a_curve_is_a_picture_however_many_episodes_there_are(tmp_path: Path, n: int) -> None:
    path = tmp_path / "curve.png"
    draw_curve(episodes_with([float(i % 2) for i in range(n)]), "BDPI on CartPole-v1", path)
    with Image.open(path) as picture:
        picture.verify()
        assert picture.format == "PNG"
        assert picture.width > 800


def test_the_average_is_drawn_over_the_returns(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    draw_curve(episodes_with(list(range(100))), "title", path)
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    strong = (np.abs(pixels - np.array([0x0B, 0x53, 0x94])).sum(axis=1) < 30).sum()
    assert strong > 1000  # a line across the picture
    before = path.read_bytes()
    draw_curve(episodes_with(list(range(100))), "title", path, "test episode")
    assert path.read_bytes() != before  # it says what it shows
    with pytest.raises(ValueError, match="no episode has ended"):
        draw_curve(Episodes(), "title", path)
    with pytest.raises(ValueError, match="nothing was drawn"):
        Film().save(tmp_path / "film.gif")


def film_of(n_steps: int, fps: float = 50.0, size: tuple[int, int] = (400, 600)) -> Film:
    film = Film(max_pictures=60)
    for step in range(n_steps + 1):
        if film.wants(step, step == n_steps, fps):
            film.add(np.full((*size, 3), step % 256, np.uint8), step, step == n_steps, f"step {step}")
    return film


@pytest.mark.parametrize("n_steps", [1, 30, 1000, 5000])
def test_films_stay_short_and_keep_the_last_picture(tmp_path: Path, n_steps: int) -> None:
    path = tmp_path / "film.gif"
    film_of(n_steps, fps=4.0).save(path)
    with Image.open(path) as gif:
        assert gif.format == "GIF"
        assert 2 <= gif.n_frames <= 60
        gif.seek(gif.n_frames - 1)
        assert gif.info["duration"] == 900  # time to see how the episode ended
        assert max(gif.size) <= 400


@pytest.mark.parametrize("size", [(10, 10), (84, 84), (400, 600), (1200, 300)])
def test_pictures_of_any_size_become_viewable(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "film.gif"
    film_of(3, size=size).save(path)
    with Image.open(path) as gif:
        assert 240 <= max(gif.size) <= 400


def test_every_step_of_an_episode_is_filmed_and_the_reset_behind_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    film = Film()
    with no_window():
        env = Filmed(gym.make("FrozenLake-v1", render_mode="rgb_array"), film)
        env.reset(seed=0)
        n_steps, over = 0, False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
            n_steps += 1
        env.reset()
        env.close()
    assert film.steps_filmed == n_steps + 1  # the start, and what each step led to
    assert "SDL_VIDEODRIVER" not in os.environ
