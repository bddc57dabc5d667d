// Shows what the server sends and sends what a person does. Names come from a task file: they are text, never HTML.
"use strict";
(async () => {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const by = (id) => document.getElementById(id);
  const link = by("link");
  const HISTORY = 150; // pictures of the page: half a minute
  let socket = null, state = null, held = null, stops = false;

  const short = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : Number(value.toPrecision(4)).toString()).replace("-", "−");
  // A line through the latest values.
  const spark = (values) => {
    const low = Math.min(...values), span = Math.max(...values) - low || 1, last = Math.max(1, values.length - 1);
    const points = values.map((value, index) => `${(100 * index / last).toFixed(1)} ${(19 - 18 * (value - low) / span).toFixed(1)}`);
    return `M${points.join("L")}${values.length === 1 ? "h4" : ""}`;
  };
  const tell = (message) => {
    if (socket && socket.readyState === 1) socket.send(JSON.stringify({ type: "person", ...message }));
    else if (message.command === "stop") stops = true; // as soon as there is a server again
  };

  const answer = await fetch("/v1/task", { headers });
  if (!answer.ok) {
    link.textContent = answer.status === 401 ? "Open the whole address that bdpi serve printed, with #token= and what follows." : (await answer.json()).error;
    return;
  }
  const described = await answer.text(), task = JSON.parse(described);
  document.title = by("title").textContent = by("title").title = task.name;
  const drives = !task.watched; // a watched run takes no commands
  by("stop").hidden = by("all").hidden = !drives;

  // -- controls ------------------------------------------------------------------------------------------------

  by("stop").addEventListener("click", () => tell({ command: "stop" })); // also when pressed twice
  by("clear").addEventListener("click", () => tell({ command: "clear" }));
  by("pause").addEventListener("click", () => tell({ command: state.paused ? "resume" : "pause" }));
  by("learning").addEventListener("click", () => tell({ command: state.learns ? "pause_learning" : "resume_learning" }));
  by("hold").addEventListener("click", () => tell({ command: state.holds ? "go_on" : "hold" }));

  // A held button or key is repeated: the server lets go of what is not.
  function drive() { tell({ command: "drive", robot: held.robot, action: held.action }); }
  function hold(robot, action, key) { held = { robot, action, key }; drive(); }
  function release() {
    if (held) tell({ command: "release", robot: held.robot });
    held = null;
  }
  setInterval(() => { if (held) drive(); }, 250);
  for (const event of ["pointerup", "pointercancel", "blur"]) addEventListener(event, release);
  document.addEventListener("visibilitychange", () => { if (document.hidden) release(); });
  addEventListener("keydown", (event) => {
    if (!drives || event.repeat) return;
    if (event.key === "Escape") { tell({ command: "stop" }); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || !state || !state.robots.length) return;
    const action = "123456789".indexOf(event.key);
    if (action >= 0 && action < task.actions.length) hold(chosen(), action, event.key);
  });
  addEventListener("keyup", (event) => { if (held && held.key === event.key) release(); }); // not of the one before

  // -- robots --------------------------------------------------------------------------------------------------

  const cards = new Map();
  let driver = null; // the robot that keys drive
  const chosen = () => (cards.has(driver) ? driver : state.robots[0].name);

  function card(name) {
    const status = html("p", { class: "status" });
    const buttons = task.actions.map((action, index) => {
      const share = html("span", { class: "share" });
      const button = html("button", { type: "button", "data-action": index }, html("span", {}, drives && index < 9 ? `${index + 1}  ${action}` : action), share);
      button.addEventListener("pointerdown", (event) => { if (drives && event.button === 0) { driver = name; hold(name, index); } });
      button.addEventListener("keydown", (event) => { if (drives && !event.repeat && [" ", "Enter"].includes(event.key)) { driver = name; hold(name, index, event.key); } });
      return { button, share };
    });
    const rows = task.observations.map((each) => {
      const value = html("td", {}), meter = html("meter", { min: each.low ?? 0, max: each.high ?? 1 });
      meter.hidden = each.low === null || each.high === null; // without an end
      const path = svg("path", { class: "line", "vector-effect": "non-scaling-stroke" });
      const history = svg("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, path);
      const cells = [html("th", { class: "word" }, each.name), value, html("td", { class: "word" }, each.unit), html("td", {}, meter), html("td", {}, history)];
      return { value, meter, path, latest: [], row: html("tr", {}, ...cells) };
    });
    const [start, ...marks] = [["start", "Start episode"], ["success", "Success"], ["failure", "Failure"], ["end", "End episode"]].map(([command, text]) => {
      const button = html("button", { type: "button", "data-mark": command }, text);
      button.addEventListener("click", () => tell({ command, robot: name }));
      return button;
    });
    const film = html("img", { class: "film", alt: `What the camera of ${name} sees`, hidden: "" });
    const element = html("section", { class: "robot", "data-robot": name }, html("h3", {}, name), status,
      html("div", { class: "columns" }, film,
        html("div", { class: "actions", role: "group", "aria-label": drives ? `Drive ${name}: hold a button or a key` : "Actions" }, ...buttons.map((each) => each.button)),
        html("div", { class: "scroll" }, html("table", { class: "seen" }, html("tbody", {}, ...rows.map((each) => each.row))))),
      ...(drives ? [html("div", { class: "row" }, start, ...marks)] : []));
    element.addEventListener("pointerdown", () => { driver = name; });
    by("robots").append(element);
    return { element, status, buttons, rows, start, marks, film };
  }

  function draw(robot) {
    if (!cards.has(robot.name)) cards.set(robot.name, card(robot.name));
    const { element, status, buttons, rows, start, marks, film } = cards.get(robot.name), told = robot.told;
    if (robot.picture) { film.src = robot.picture; film.hidden = false; } // a new one
    element.classList.toggle("asks", robot.asks);
    element.classList.toggle("keys", drives && robot.name === chosen());
    const unsure = told && told.uncertainty !== undefined ? `, uncertainty ${told.uncertainty ?? "–"}` : "";
    const what = told ? `${told.status}${told.name ? `: ${told.name}` : ""}${unsure}` : drives ? "waiting" : "acting";
    status.textContent = `${robot.asks ? "Asks for help. " : ""}${robot.waits ? "Waits for its start. " : ""}${what}; return ${short(robot.return)} after ${robot.length} steps`;
    buttons.forEach(({ button, share }, index) => {
      const probability = told && told.probabilities.length ? told.probabilities[index] : 0;
      share.textContent = told && told.probabilities.length ? `${(100 * probability).toFixed(0)} %` : "";
      button.style.setProperty("--share", `${100 * probability}%`);
      button.classList.toggle("taken", Boolean(told) && told.action === index);
      button.classList.toggle("held", robot.driven === index);
      button.disabled = !drives || (Boolean(robot.mask) && !robot.mask[index]);
    });
    rows.forEach(({ value, meter, path, latest }, index) => {
      if (!robot.observation) return;
      const seen = robot.observation[index];
      value.textContent = seen === null ? "–" : short(seen);
      meter.value = seen ?? 0;
      latest.push(seen ?? 0);
      if (latest.length > HISTORY) latest.shift();
      path.setAttribute("d", spark(latest));
    });
    for (const button of marks) button.setAttribute("aria-pressed", String(button.dataset.mark === robot.mark));
    start.hidden = !state.holds;
    start.disabled = !robot.waits;
  }

  // -- totals and curves -----------------------------------------------------------------------------------------

  const TOTALS = {
    position: "now", time_left: "time left", average: "average return", best: "best average", steps: "steps", episodes: "episodes", steps_per_second: "steps per second", policy_version: "epochs learned",
    epochs_due: "epochs due", journal_bytes: "journal, kB",
    q_expected: "critics expect", q_followed: "what followed",
  };
  const totals = Object.entries(TOTALS).map(([key, text]) => {
    const value = html("dd", { "data-total": key });
    const box = html("div", {}, html("dt", {}, text), value);
    by("totals").append(box);
    return [key, value, box];
  });
  let curves = null;

  function show() {
    for (const [key, element, box] of totals) {
      box.hidden = !(key in state);
      element.textContent = key === "journal_bytes" ? Math.round(state[key] / 1000) : state[key];
    }
    by("stop").setAttribute("aria-pressed", String(state.stopped));
    by("stop").textContent = state.stopped ? "Stopped" : "Emergency stop";
    by("clear").disabled = !state.stopped;
    by("pause").setAttribute("aria-pressed", String(state.paused));
    by("learning").setAttribute("aria-pressed", String(!state.learns));
    by("hold").setAttribute("aria-pressed", String(state.holds));
    state.robots.forEach(draw);
    document.title = `${state.robots.some((robot) => robot.asks) ? "Asks for help: " : ""}${task.name}`;
    by("findings").replaceChildren(...(state.findings ?? []).map((each) => html("li", {}, `May not learn: ${each}`)));
    const row = state.curves;
    if (!row) return; // as they were
    if (!curves || curves.panels.length !== row.panels.length) curves = new Row(row, by("curves"));
    else curves.update(row);
  }

  // A server of another task may have come in the place of the one before: its actions have other names.
  async function check() {
    const now = await fetch("/v1/task", { headers }).catch(() => null);
    if (now && now.ok && await now.text() !== described) location.reload();
  }

  function connect() {
    socket = new WebSocket(`ws${location.protocol === "https:" ? "s" : ""}://${location.host}/v1/live`, token ? ["bdpi", `token.${token}`] : ["bdpi"]);
    socket.addEventListener("open", () => {
      link.textContent = "connected";
      if (stops) tell({ command: "stop" });
      stops = false;
      check();
    });
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (message.error) link.textContent = message.error;
      if (message.type === "state") { state = message; show(); }
    });
    socket.addEventListener("close", () => { link.textContent = "the server is away; trying again …"; setTimeout(connect, 1000); });
  }
  connect();
})();
