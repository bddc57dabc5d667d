// Shows what the server sends and sends what a person does. Names come from a task file: they are text, never HTML.
"use strict";
(async () => {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const by = (id) => document.getElementById(id);
  const link = by("link");
  let socket = null, state = null, held = null;

  const html = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };
  const short = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : Number(value.toPrecision(4)).toString()).replace("-", "−");
  const tell = (message) => {
    if (socket && socket.readyState === 1) socket.send(JSON.stringify({ type: "person", ...message }));
  };

  const answer = await fetch("/v1/task", { headers });
  if (!answer.ok) { link.textContent = (await answer.json()).error; return; }
  const task = await answer.json();
  document.title = by("title").textContent = task.name;

  // -- controls ------------------------------------------------------------------------------------------------

  by("stop").addEventListener("click", () => tell({ command: state && state.stopped ? "clear" : "stop" }));
  by("pause").addEventListener("click", () => tell({ command: state.paused ? "resume" : "pause" }));
  by("learning").addEventListener("click", () => tell({ command: state.learns ? "pause_learning" : "resume_learning" }));

  // A held button or key is repeated: the server lets go of what is not.
  function hold(robot, action) { held = { robot, action }; tell({ command: "drive", robot, action }); }
  function release() {
    if (held) tell({ command: "release", robot: held.robot });
    held = null;
  }
  setInterval(() => { if (held) tell({ command: "drive", ...held }); }, 250);
  for (const event of ["pointerup", "pointercancel", "blur"]) addEventListener(event, release);
  document.addEventListener("visibilitychange", () => { if (document.hidden) release(); });
  addEventListener("keydown", (event) => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || !state || !state.robots.length) return;
    if (event.key === "Escape") { tell({ command: "stop" }); return; }
    const action = "123456789".indexOf(event.key);
    if (action >= 0 && action < task.actions.length) hold(chosen(), action);
  });
  addEventListener("keyup", (event) => { if (/^[1-9]$/.test(event.key)) release(); });

  // -- robots --------------------------------------------------------------------------------------------------

  const cards = new Map();
  let driver = null; // the robot that keys drive
  const chosen = () => (cards.has(driver) ? driver : state.robots[0].name);

  function card(name) {
    const status = html("p", { class: "status" });
    const buttons = task.actions.map((action, index) => {
      const share = html("span", { class: "share" });
      const button = html("button", { type: "button", "data-action": index }, html("span", {}, index < 9 ? `${index + 1}  ${action}` : action), share);
      button.addEventListener("pointerdown", (event) => { if (event.button === 0) { driver = name; hold(name, index); } });
      return { button, share };
    });
    const rows = task.observations.map((each) => {
      const value = html("td", {}), meter = html("meter", { min: each.low, max: each.high });
      return { value, meter, row: html("tr", {}, html("th", { class: "word" }, each.name), value, html("td", { class: "word" }, each.unit), html("td", {}, meter)) };
    });
    const marks = [["success", "Success"], ["failure", "Failure"], ["end", "End episode"]].map(([command, text]) => {
      const button = html("button", { type: "button", "data-mark": command }, text);
      button.addEventListener("click", () => tell({ command, robot: name }));
      return button;
    });
    const element = html("section", { class: "robot", "data-robot": name }, html("h3", {}, name), status,
      html("div", { class: "columns" },
        html("div", { class: "actions", role: "group", "aria-label": `Drive ${name}: hold a button or a key` }, ...buttons.map((each) => each.button)),
        html("div", { class: "scroll" }, html("table", { class: "seen" }, html("tbody", {}, ...rows.map((each) => each.row))))),
      html("div", { class: "row" }, ...marks));
    element.addEventListener("pointerdown", () => { driver = name; });
    by("robots").append(element);
    return { element, status, buttons, rows, marks };
  }

  function draw(robot) {
    if (!cards.has(robot.name)) cards.set(robot.name, card(robot.name));
    const { element, status, buttons, rows, marks } = cards.get(robot.name), told = robot.told;
    element.classList.toggle("asks", robot.asks);
    const what = told ? `${told.status}${told.name ? `: ${told.name}` : ""}, uncertainty ${told.uncertainty ?? "–"}` : "waiting";
    status.textContent = `${robot.asks ? "Asks for help. " : ""}${what}; return ${short(robot.return)} after ${robot.length} steps`;
    buttons.forEach(({ button, share }, index) => {
      const probability = told && told.probabilities.length ? told.probabilities[index] : 0;
      share.textContent = `${(100 * probability).toFixed(0)} %`;
      button.style.setProperty("--share", `${100 * probability}%`);
      button.classList.toggle("taken", Boolean(told) && told.action === index);
      button.classList.toggle("held", robot.driven === index);
      button.disabled = Boolean(robot.mask) && !robot.mask[index];
    });
    rows.forEach(({ value, meter }, index) => {
      if (!robot.observation) return;
      value.textContent = short(robot.observation[index]);
      meter.value = robot.observation[index];
    });
    for (const button of marks) button.setAttribute("aria-pressed", String(button.dataset.mark === robot.mark));
  }

  // -- totals and curves -----------------------------------------------------------------------------------------

  const TOTALS = {
    steps: "steps", episodes: "episodes", steps_per_second: "steps per second", policy_version: "epochs learned",
    epochs_due: "epochs due", journal_bytes: "journal, kB",
  };
  const totals = Object.entries(TOTALS).map(([key, text]) => {
    const value = html("dd", { "data-total": key });
    by("totals").append(html("div", {}, html("dt", {}, text), value));
    return [key, value];
  });
  const CURVES = { returns: "Return per episode", rewards: "Reward per step", entropy: "Entropy, bits", disagreement: "Disagreement of the critics" };
  const curves = Object.entries(CURVES).map(([key, text]) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path"), range = html("span", {});
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 300 90");
    svg.setAttribute("preserveAspectRatio", "none");
    path.setAttribute("class", "line");
    path.setAttribute("vector-effect", "non-scaling-stroke");
    svg.append(path);
    by("curves").append(html("figure", { class: "panel", "data-curve": key }, html("figcaption", {}, html("span", { class: "title" }, html("strong", {}, text), " ", range)), svg));
    return [key, path, range];
  });

  function show() {
    for (const [key, element] of totals) {
      element.textContent = key === "journal_bytes" ? Math.round(state[key] / 1000) : state[key];
    }
    by("stop").setAttribute("aria-pressed", String(state.stopped));
    by("stop").textContent = state.stopped ? "Stopped: let robots act again" : "Emergency stop";
    by("pause").setAttribute("aria-pressed", String(state.paused));
    by("learning").setAttribute("aria-pressed", String(!state.learns));
    state.robots.forEach(draw);
    for (const [key, path, range] of curves) {
      const values = state.curves[key];
      if (!values.length) continue;
      const low = Math.min(...values), high = Math.max(...values), width = Math.max(1, values.length - 1);
      const points = values.map((value, index) => `${(300 * index / width).toFixed(1)} ${(85 - 80 * (high > low ? (value - low) / (high - low) : 0.5)).toFixed(1)}`);
      path.setAttribute("d", `M${points.join("L")}${values.length === 1 ? "h4" : ""}`);
      range.textContent = `${short(low)} … ${short(high)}, now ${short(values[values.length - 1])}`;
    }
  }

  function connect() {
    socket = new WebSocket(`ws${location.protocol === "https:" ? "s" : ""}://${location.host}/v1/live`, token ? ["bdpi", `token.${token}`] : ["bdpi"]);
    socket.addEventListener("open", () => { link.textContent = "connected"; });
    socket.addEventListener("message", (event) => {
      const message = JSON.parse(event.data);
      if (message.error) link.textContent = message.error;
      if (message.type === "state") { state = message; show(); }
    });
    socket.addEventListener("close", () => { link.textContent = "the server is away; trying again …"; setTimeout(connect, 1000); });
  }
  connect();
})();
