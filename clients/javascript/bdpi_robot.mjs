// A robot that learns from a bdpi server, in a browser or in Node.js 18 and later. No dependencies; copy this file.
//
//   const robot = new Robot("http://127.0.0.1:8088", "arm-1");
//   await robot.begin();
//   let answer = await robot.act(observation);
//   while (answer.status !== "ended") {
//     if (answer.action === null) { await pause(); answer = await robot.act(observation); continue; } // stopped, paused: stand still
//     const { seen, reward, terminated, truncated } = move(answer.action);
//     answer = await robot.step(answer.action, reward, seen, terminated, truncated);
//   }
//
// In a page that is not the server's own: bdpi serve TASK.yaml --origin http://localhost:8000, where the page is from.

export class Robot {
  // patience: seconds that a server may be away, for instance to be started again
  constructor(address = "http://127.0.0.1:8088", name = "robot", token = "", patience = 60) {
    Object.assign(this, { address, name, patience, seq: 0 });
    this.headers = { "Content-Type": "application/json", ...(token && { Authorization: `Bearer ${token}` }) };
  }

  // Begin an episode.
  async begin() {
    this.seq = (await this.post("episodes", { robot: this.name })).seq;
  }

  // What to do now: action, status, probabilities, uncertainty, policy_version.
  // picture: of a camera, a small JPEG or PNG in base64, which the page shows
  act(observation, mask = null, picture = null) {
    return this.next("act", { observation, mask, picture });
  }

  // Tell what really happened, and ask what to do next; status is "ended" where the episode is over.
  step(executed_action, reward, next_observation, terminated = false, truncated = false, next_mask = null, picture = null) {
    return this.next("step", { executed_action, reward, next_observation, terminated, truncated, next_mask, picture });
  }

  async next(kind, body) {
    const answer = await this.post(kind, { robot: this.name, seq: this.seq + 1, ...body });
    this.seq = answer.seq;
    return answer;
  }

  // A request that gets no answer is repeated as it was: the server does not store it twice.
  async post(kind, body) {
    const text = JSON.stringify(body), deadline = Date.now() + 1000 * this.patience;
    for (;;) {
      let response, answer;
      try {
        const left = Math.min(10000, Math.max(1000, deadline - Date.now())); // for a server that is silent
        const signal = AbortSignal.timeout(left);
        response = await fetch(`${this.address}/v1/${kind}`, { method: "POST", headers: this.headers, body: text, signal });
        answer = await response.json();
      } catch (error) {
        if (Date.now() > deadline) throw error;
        await new Promise((done) => setTimeout(done, 50));
        continue;
      }
      if (!response.ok) throw new Error(`${response.status}: ${answer.error}`);
      return answer;
    }
  }
}
