// CartPole with its physics here, and its learner in a bdpi server.
//
//   bdpi serve clients/cart_pole.yaml
//   node clients/javascript/cart_pole.mjs 8088
//
// cart_pole.mjs PORT [EPISODES [MILLISECONDS]]: at most so many episodes (1000), a step each so many milliseconds (20,
// which is real time). Prints the steps of each episode; ends when the last 20 have 195 or more on average, of at most 500.

import { Robot } from "./bdpi_robot.mjs";

const WINDOW = 20, MOST_STEPS = 500;
const [port, most = 1000, milliseconds = 20] = process.argv.slice(2).map(Number);

// Position, speed, angle and angular speed; forces push the cart, with a pole of half a metre to its middle on it.
function push([position, speed, angle, turning], right) {
  const gravity = 9.8, pole = 0.1, total = 1.1, half = 0.5, tau = 0.02;
  const force = right ? 10 : -10, sine = Math.sin(angle), cosine = Math.cos(angle);
  const pushed = (force + pole * half * turning ** 2 * sine) / total;
  const turned = (gravity * sine - cosine * pushed) / (half * (4 / 3 - (pole * cosine ** 2) / total));
  const moved = pushed - (pole * half * turned * cosine) / total;
  return [position + tau * speed, speed + tau * moved, angle + tau * turning, turning + tau * turned];
}

const fell = ([position, , angle]) => Math.abs(position) > 2.4 || Math.abs(angle) > (12 * Math.PI) / 180;

// Steps of one episode.
async function episode(robot) {
  let state = Array.from({ length: 4 }, () => 0.1 * Math.random() - 0.05), steps = 0, due = performance.now();
  await robot.begin();
  let answer = await robot.act(state);
  while (answer.status !== "ended") {
    if (answer.action === null) { // stopped, paused, or waiting for a person: nothing moves
      await new Promise((done) => setTimeout(done, 100));
      answer = await robot.act(state);
      continue;
    }
    state = push(state, answer.action);
    steps++;
    due = Math.max(due + milliseconds, performance.now());
    if (milliseconds) await new Promise((done) => setTimeout(done, due - performance.now()));
    answer = await robot.step(answer.action, 1, state, fell(state), steps === MOST_STEPS);
  }
  return steps;
}

const robot = new Robot(`http://127.0.0.1:${port}`, "javascript"), last = [];
for (let number = 0; number < most; number++) {
  last.push(await episode(robot));
  console.log(last.at(-1));
  if (last.length > WINDOW) last.shift();
  if (last.length === WINDOW && last.reduce((sum, steps) => sum + steps) >= 195 * WINDOW) process.exit(0);
}
process.exit(3); // not yet
