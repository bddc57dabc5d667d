"""Robots over HTTP: what is stored, what is answered again, and what survives the server."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from bdpi_robot import Refused, Robot
from serving import TASK, Server, line, running, until
from typer.testing import CliRunner
from websockets.sync.client import connect

from bdpi.agents.journal import Journal
from bdpi.cli import app
from bdpi.runs.episodes import moving_average
from bdpi.runs.folder import RunFolder
from bdpi.runs.logs import read_log


def drive(robot: Robot, steps: int, first: int = 0) -> list[float]:
    """Make steps whose rewards tell them apart; returns the rewards."""
    robot.begin()
    answer = robot.act([0, 0])
    for step in range(first, first + steps):
        answer = robot.step(answer["action"], float(step), [step % 2, answer["action"]], truncated=step % 10 == 9)
        if answer["status"] == "ended":
            robot.begin()
            answer = robot.act([0, 0])
    return [float(step) for step in range(first, first + steps)]


def stored(server: Server) -> dict[int, list[float]]:
    """Rewards in the journal, by the robots that had them."""
    found: dict[int, list[float]] = {}
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        for step in journal.steps():
            found.setdefault(step.environment, []).append(step.reward)
    return found


@pytest.mark.parametrize("n_stack", [1, 3])
def test_robots_share_a_memory_and_a_policy(n_stack: int, tmp_path: Path) -> None:
    changes = {"hyperparameters": {**TASK["hyperparameters"], **({"n_stack": n_stack} if n_stack > 1 else {})}}
    with running(tmp_path, **changes) as server:
        robots = [Robot(port=server.port, name=name) for name in ("left", "right")]
        threads = [threading.Thread(target=drive, args=(robot, 40)) for robot in robots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _, state = server.send("/v1/state")
        assert state["steps"] == 80
        assert [robot["name"] for robot in sorted(state["robots"], key=lambda each: each["name"])] == ["left", "right"]
    assert stored(server) == {0: [float(step) for step in range(40)], 1: [float(step) for step in range(40)]}
    assert (server.out / "agent.zip").exists()
    with running(tmp_path, **changes) as server:  # goes on
        assert server.send("/v1/state")[1]["steps"] == 80
        assert server.send("/v1/state")[1]["policy_version"] > 0


def test_a_run_that_was_killed_shows_its_history_again_and_in_its_report(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        robot, steps = Robot(port=server.port), 0
        while not line(server.send("/v1/state")[1]["curves"], "values"):  # what critics expect, after 100 epochs
            drive(robot, 30, first=steps)
            steps += 30
        episodes = steps // 10
        log = RunFolder(server.out).progress
        until(lambda: len(read_log(log).returns) == episodes)  # the thread that learns has written it
        before = server.send("/v1/state")[1]["curves"]
        # every episode of ten has the rewards n to n + 9
        assert line(before, "returns") == [sum(range(10 * n, 10 * n + 10)) for n in range(episodes)]
        assert 0 < line(before, "values")[-1] < 10 * steps
        server.kill()
    with running(tmp_path) as server:
        after = server.send("/v1/state")[1]["curves"]
        for panel, series in (("returns", "run"), ("values", "run"), ("values", "critics expect")):
            assert line(after, panel, series) == line(before, panel, series)
    assert CliRunner().invoke(app, ["report", str(server.out)]).exit_code == 0
    page = (server.out / "report" / "index.html").read_text("utf-8")
    row, learning = json.loads(page.split('id="data">')[1].split("</script>")[0])["rows"]
    assert line(row, "lamp", "bdpi") == pytest.approx(moving_average(line(before, "returns")), rel=1e-3)
    assert line(learning, "values") == line(before, "values")
    assert len(line(learning, "entropy")) == len(line(learning, "disagreement")) > episodes / 2


def test_robots_wait_for_a_person_before_each_episode(tmp_path: Path) -> None:
    def tell(server: Server, command: str, **more: object) -> None:
        assert server.send("/v1/person", {"command": command, "robot": "arm", **more})[0] == 200

    def waits(server: Server) -> bool:
        return bool(server.send("/v1/state")[1]["robots"][0]["waits"])

    with running(tmp_path) as server:
        robot = Robot(port=server.port, name="arm")
        robot.begin()
        assert robot.act([0, 0])["status"] == "policy"
        tell(server, "hold")
        assert robot.step(0, 1, [0, 0])["status"] == "policy"  # not in an episode
        assert robot.step(0, 1, [0, 0], terminated=True)["status"] == "ended"
        robot.begin()
        answer = robot.act([0, 0])
        assert (answer["status"], answer["action"], waits(server)) == ("paused", None, True)
        tell(server, "drive", action=1)
        assert robot.act([0, 0])["status"] == "person"  # back to where it begins, perhaps
        tell(server, "release")
        assert robot.act([0, 0])["status"] == "paused"
        server.kill()
    with running(tmp_path, port=server.port) as server:
        assert robot.act([0, 0])["status"] == "paused"
        tell(server, "end")  # too early: of no episode
        tell(server, "start")
        assert not waits(server)
        assert [robot.act([0, 0])["status"], robot.step(0, 1, [0, 0])["status"]] == ["policy", "policy"]
        robot.begin()
        assert robot.act([0, 0])["status"] == "paused"
        tell(server, "go_on")
        assert robot.act([0, 0])["status"] == "policy"


def test_a_repeated_request_is_answered_again_and_stored_once(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.send("/v1/episodes", {"robot": "arm"}) == (200, {"seq": 1})
        act = {"robot": "arm", "seq": 2, "observation": [0, 1]}
        first = server.send("/v1/act", act)
        assert first == server.send("/v1/act", act)
        step = {"robot": "arm", "seq": 3, "executed_action": 1, "reward": 1.0, "next_observation": [1, 1]}
        answers = [server.send("/v1/step", step) for _ in range(3)]
        assert answers[0][0] == 200
        assert answers[0] == answers[1] == answers[2]
        other = server.send("/v1/step", {**step, "reward": 2.0})  # the same number, another request
        assert (other[0], other[1]["field"]) == (409, "seq")
        late = server.send("/v1/act", act)
        assert (late[0], late[1]["field"]) == (409, "seq")
        server.kill()
        again = Server(tmp_path)
        try:
            assert again.send("/v1/step", step) == answers[0]
            seen = {"robot": "arm", "seq": 4, "executed_action": 0, "reward": 5, "next_observation": [0, 0]}
            status, answer = again.send("/v1/observe", seen)  # the state before it was not forgotten
            assert (status, answer["stored"]) == (200, 2)
        finally:
            again.stop()
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        steps = list(journal.steps())
    assert [(step.observation.tolist(), step.action, step.reward) for step in steps] == [([0, 1], 1, 1), ([1, 1], 0, 5)]


def test_a_client_that_was_killed_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        drive(Robot(port=server.port), 3)
        drive(Robot(port=server.port), 3, first=3)  # knows no number: begin tells it
    assert stored(server) == {0: [0, 1, 2, 3, 4, 5]}


def test_a_web_socket_takes_the_same_requests(tmp_path: Path) -> None:
    with running(tmp_path) as server, connect(f"ws://127.0.0.1:{server.port}/v1/ws") as socket:

        def ask(**message: object) -> dict[str, object]:
            socket.send(json.dumps(message))
            answer: dict[str, object] = json.loads(socket.recv(timeout=180))
            return answer

        assert ask(type="episodes") == {"seq": 1}
        assert ask(type="act", seq=2, observation=[0, 1])["status"] == "policy"
        done = ask(type="step", seq=3, executed_action=0, reward=1, next_observation=[0, 0], terminated=True)
        assert (done["status"], done["stored"]) == ("ended", 1)
        assert ask(type="act", seq=4, observation=[0])["status_code"] == 422
        assert ask(type="open")["field"] == "type"


def test_masks_and_rules_exclude_actions(tmp_path: Path) -> None:
    rules = [{"when": "lamp", "above": 0.5, "forbid": ["on"]}]
    with running(tmp_path, safety=rules) as server:
        robot = Robot(port=server.port)
        robot.begin()
        for _ in range(20):
            assert robot.act([0, 0.9])["probabilities"] == [1, 0]
            assert robot.act([0, 0.1], mask=[0, 1])["action"] == 1
        with pytest.raises(Refused, match="leave no action"):
            robot.act([0, 0.9], mask=[0, 1])


def test_the_server_asks_a_person_and_goes_on_without_one(tmp_path: Path) -> None:
    with running(tmp_path, ask_above=0.0, ask_seconds=2, ask_fallback="on", safe_action="off") as server:
        robot = Robot(port=server.port)
        robot.begin()
        for number in range(99):  # with one more, it is known what is usual
            assert robot.act([0, number / 100])["status"] == "policy"
        answer = until(lambda: (found := robot.act([0, 0.5]))["status"] != "policy" and found)
        assert (answer["status"], answer["name"]) == ("ask", "off")
        assert server.send("/v1/state")[1]["robots"][0]["asks"] is True
        server.send("/v1/person", {"command": "drive", "action": 0})
        answer = robot.act([0, 0.5])
        assert (answer["status"], answer["name"]) == ("person", "off")
        server.send("/v1/person", {"command": "release"})
        assert until(lambda: robot.act([0, 0.5])["status"] == "ask")  # another question, without an answer
        answer = until(lambda: (found := robot.act([0, 0.5]))["status"] != "ask" and found)
        assert (answer["status"], answer["name"]) == ("fallback", "on")
        assert robot.act([0, 0.5])["status"] == "policy"


@pytest.mark.parametrize(
    ("mark", "reward", "terminated", "truncated"),
    [("success", 1.5, True, False), ("failure", -2.5, True, False), ("end", 0.5, False, True)],
)
def test_a_person_ends_an_episode(mark: str, reward: float, terminated: bool, truncated: bool, tmp_path: Path) -> None:
    with running(tmp_path, failure_reward=-3) as server:
        robot = Robot(port=server.port)
        robot.begin()
        robot.act([0, 0])
        assert server.send("/v1/person", {"command": mark})[0] == 200
        assert robot.step(0, 0.5, [0, 0])["status"] == "ended"
    with Journal(server.out / "journal.sqlite", read_only=True) as journal:
        (step,) = journal.steps()
    assert (step.reward, step.terminated, step.truncated) == (reward, terminated, truncated)


def test_a_task_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    from bdpi.runs.errors import RunError
    from bdpi.serve.task import read_task

    path = tmp_path / "task.yaml"
    path.write_text("name: lamp\nobservations: [{name: night, low: 0, high: 1}]\nactions: [off, on]")
    with pytest.raises(RunError, match=r'actions.0 is False.*write "on"'):
        read_task(path)
    path.write_text('name: lamp\nobservations: [{name: night, low: 1, high: 0}]\nactions: ["off", "on"]')
    with pytest.raises(RunError, match="low is 1, which must be less than high"):
        read_task(path)
    for given, says in (
        ("hyperparameters: {ncritics: 3}", r"task.yaml: 'hyperparameters' knows no 'ncritics'"),
        ("policy_kwargs: {netarch: [8]}", r"task.yaml: 'policy_kwargs' knows no 'netarch'"),
        ('safety: [{when: noon, above: 1, forbid: ["on"]}]', r"task.yaml: 'noon' is none of the observations, night"),
    ):
        path.write_text(
            f'name: lamp\nobservations: [{{name: night, low: 0, high: 1}}]\nactions: ["off", "on"]\n{given}'
        )
        with pytest.raises(RunError, match=says):
            read_task(path)


def test_advisors_of_a_task_are_asked_where_it_is_trusted(tmp_path: Path) -> None:
    import http.server

    from bdpi.runs.errors import RunError
    from bdpi.serve.task import read_task

    asked: list[list[float]] = []

    class Advisor(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["observation"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"probabilities": [0, 1]}')

        def log_message(self, *_: object) -> None:
            pass

    advisor = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Advisor)
    threading.Thread(target=advisor.serve_forever, daemon=True).start()
    try:
        changes = {"advisors": [f"http://127.0.0.1:{advisor.server_port}/"], "advice_steps": 10**6}
        with running(tmp_path, **changes, trust=True) as server:
            with pytest.raises(RunError, match="give --trust"):
                read_task(tmp_path / "task.yaml")
            robot = Robot(port=server.port)
            robot.begin()
            answer = robot.act([0.5, 0])
            assert (answer["action"], asked) == (1, [[0.5, 0]])
            assert answer["probabilities"][1] > 0.999
            with connect(f"ws://127.0.0.1:{server.port}/v1/ws") as socket:
                step = {"executed_action": 1, "reward": 1, "next_observation": [0.25, 1]}
                socket.send(json.dumps({"type": "step", "robot": "robot", "seq": 3, **step}))
                assert json.loads(socket.recv())["action"] == 1
                socket.send(json.dumps({"type": "step", "robot": "robot", "seq": 3, **step}))  # is not asked again
                socket.recv()
                socket.send(json.dumps({"type": "step", "robot": "robot", "seq": 4, **step, "truncated": True}))
                assert json.loads(socket.recv())["status"] == "ended"
            assert asked == [[0.5, 0], [0.25, 1]]
    finally:
        advisor.shutdown()
        advisor.server_close()
    with running(tmp_path) as server:  # withdrawn
        robot = Robot(port=server.port)
        robot.begin()
        assert min(robot.act([0, 0])["probabilities"]) > 0
    assert len(asked) == 2


def test_what_a_person_has_stopped_stays_so_when_the_server_is_started_again(tmp_path: Path) -> None:
    def switches(server: Server) -> tuple[bool, bool, bool]:
        state = server.send("/v1/state")[1]
        return state["stopped"], state["paused"], state["learns"]

    with running(tmp_path) as server:
        assert switches(server) == (False, False, True)
        for command in ("stop", "pause", "pause_learning"):
            assert server.send("/v1/person", {"command": command})[0] == 200
        server.kill()
    with running(tmp_path) as server:
        assert switches(server) == (True, True, False)
        robot = Robot(port=server.port, name="arm")
        robot.begin()
        assert robot.act([0, 0])["status"] == "stopped"
        server.send("/v1/person", {"command": "clear"})
        assert robot.act([0, 0])["status"] == "paused"
        for command in ("resume", "resume_learning"):
            server.send("/v1/person", {"command": command})
        server.kill()
    with running(tmp_path) as server:
        assert switches(server) == (False, False, True)


def test_refusals_are_described_as_they_are(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        described = server.send("/v1/openapi.json")[1]
        status, refusal = server.send("/v1/act", {"robot": "arm", "seq": 0, "observation": [0, 0]})
    answers = described["paths"]["/v1/act"]["post"]["responses"]
    model = answers[str(status)]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert refusal.keys() == described["components"]["schemas"][model]["properties"].keys()
    assert {"401", "403", "408", "409", "413", "415", "422", "429", "507"} <= answers.keys()
    assert "HTTPValidationError" not in described["components"]["schemas"]
