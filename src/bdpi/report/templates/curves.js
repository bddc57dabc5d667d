// Draws rows of panels, each with curves, from JSON: for the page of a report and for the live page. Plain SVG: nothing is loaded.
"use strict";
const { html, svg, Row } = (() => {
  const said = document.getElementById("said");
  let panels = 0; // gives every clip path a name of its own

  const html = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  // The style sheet chooses between the two colours, so that changing the theme needs no redrawing.
  function coloured(element, series) {
    element.classList.add("coloured");
    element.style.setProperty("--light", series.light);
    element.style.setProperty("--dark", series.dark);
    return element;
  }

  const number = (value) => {
    if (value === null) return "–";
    const text = value.toFixed(Math.abs(value) < 10 ? 2 : 1);
    return text.replace("-", "−");
  };

  function ticks(low, high, count) {
    const rough = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const result = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) {
      result.push({ value: index * step, text: (index * step).toFixed(digits).replace(/^-(?=.*[1-9])/, "−").replace(/^-/, "") });
    }
    return result;
  }

  // Index of the point that is nearest to x.
  function nearest(xs, x) {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < x) low = middle + 1; else high = middle;
    }
    return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
  }

  class Panel {
    constructor(panel, row) {
      this.row = row;
      this.zoom = null;
      this.cursor = null;
      this.drag = null;
      this.show(panel);
      this.clip = `clip${panels++}`;
      this.svg = svg("svg", {
        role: "group", tabindex: "0",
        "aria-label": `${row.title}, ${panel.title}: ${panel.y} per ${panel.x}. Arrow keys read values, plus and minus zoom, 0 shows everything.`,
      });
      this.tip = html("div", { class: "tip", hidden: "" });
      this.reset = html("button", { type: "button", hidden: "" }, "show everything");
      this.wide = html("button", { type: "button", "aria-pressed": "false" }, "enlarge");
      this.figure = html("figure", { class: "panel", "data-panel": panel.environment },
        html("figcaption", {}, html("span", { class: "title" }, html("strong", {}, panel.title), ` ${panel.y}`), this.reset, this.wide), this.svg, this.tip);
      this.reset.addEventListener("click", () => this.zoomTo(null));
      this.wide.addEventListener("click", () => {
        this.wide.setAttribute("aria-pressed", String(this.figure.classList.toggle("wide")));
      });
      this.svg.addEventListener("pointerdown", (event) => this.press(event));
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerup", () => this.release());
      this.svg.addEventListener("pointercancel", () => { this.drag = null; this.point(null); });
      this.svg.addEventListener("pointerleave", () => { if (!this.drag) this.point(null); });
      this.svg.addEventListener("dblclick", () => this.zoomTo(null));
      this.svg.addEventListener("blur", () => this.point(null));
      this.svg.addEventListener("keydown", (event) => this.key(event));
      new ResizeObserver(() => this.draw()).observe(this.figure);
    }

    show(panel) {
      for (const curve of panel.curves) curve.x = panel.shared[curve.x];
      this.panel = panel;
      const ours = panel.curves.filter((curve) => !curve.paper && curve.x.length);
      const limits = (ours.length ? ours : panel.curves).map((curve) => curve.x[curve.x.length - 1] ?? 1);
      const from = panel.from ?? 0;
      this.all = [from, Math.max(from + 2, ...limits)];
    }

    visible() {
      return this.panel.curves.filter((curve) =>
        curve.x.length && !this.row.hidden.has(curve.series) && !(curve.paper && this.row.hidden.has("/paper")));
    }

    // The range of returns between two episodes, with some room; the last one when no series is shown.
    range([first, last]) {
      let low = Infinity, high = -Infinity;
      const bands = !this.row.hidden.has("/bands");
      for (const curve of this.visible()) {
        curve.x.forEach((x, index) => {
          if (x < first || x > last) return;
          for (const values of bands && curve.low ? [curve.y, curve.low, curve.high] : [curve.y]) {
            const value = values[index];
            if (value === null || value === undefined) continue;
            low = Math.min(low, value);
            high = Math.max(high, value);
          }
        });
      }
      if (low > high) return this.y ?? [0, 1];
      const room = (high - low || Math.abs(high) || 1) * 0.05;
      return [low - room, high + room];
    }

    draw() {
      const width = Math.round(this.svg.clientWidth);
      if (width < 60) return; // not laid out yet
      const height = Math.round(Math.min(460, Math.max(210, width * 0.6)));
      this.x = this.zoom ?? this.all;
      this.y = this.range(this.x);
      const yTicks = ticks(...this.y, height / 42), xTicks = ticks(...this.x, width / 90);
      const left = 14 + 6.6 * Math.max(...yTicks.map((tick) => tick.text.length), 1);
      const box = this.box = { left, right: width - 10, top: 8, bottom: height - 34 };
      this.toX = (value) => box.left + ((value - this.x[0]) / (this.x[1] - this.x[0])) * (box.right - box.left);
      this.toY = (value) => box.bottom - ((value - this.y[0]) / (this.y[1] - this.y[0])) * (box.bottom - box.top);
      this.toValue = (pixel) => {
        const share = Math.min(1, Math.max(0, (pixel - box.left) / (box.right - box.left)));
        return this.x[0] + share * (this.x[1] - this.x[0]);
      };
      this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
      this.svg.setAttribute("height", height);
      this.svg.dataset.from = this.x[0];
      this.svg.dataset.to = this.x[1];

      const grid = svg("g", { "aria-hidden": "true" });
      for (const tick of yTicks) {
        const y = this.toY(tick.value);
        grid.append(svg("line", { class: "grid", x1: left, x2: box.right, y1: y, y2: y }),
          svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, tick.text));
      }
      for (const tick of xTicks) {
        if (tick.value % 1) continue; // there are no half episodes
        const x = this.toX(tick.value), anchor = x > box.right - 12 ? "end" : "middle";
        grid.append(svg("text", { x: anchor === "end" ? box.right + 8 : x, y: box.bottom + 15, "text-anchor": anchor }, tick.text));
      }
      grid.append(svg("line", { class: "axis", x1: left, x2: box.right, y1: box.bottom, y2: box.bottom }),
        svg("text", { x: (left + box.right) / 2, y: height - 4, "text-anchor": "middle" }, this.panel.x));

      const curves = svg("g", { "clip-path": `url(#${this.clip})`, "aria-hidden": "true" });
      const shown = this.visible();
      const layers = [
        shown.filter((curve) => curve.paper).map((curve) => this.line(curve, "line paper")),
        this.row.hidden.has("/bands") ? [] : shown.filter((curve) => curve.low).map((curve) => this.band(curve)),
        // The last one drawn is on top, and the first series is the one that matters most.
        shown.filter((curve) => !curve.paper).reverse().map((curve) => this.line(curve, "line ours")),
      ];
      for (const layer of layers) curves.append(...layer);
      const area = { x: left, y: box.top - 4, width: Math.max(0, box.right - left + 2), height: box.bottom - box.top + 5 };
      this.over = svg("g", { "aria-hidden": "true" });
      this.svg.replaceChildren(svg("clipPath", { id: this.clip }, svg("rect", area)), grid, curves, this.over);
      this.reset.hidden = !this.zoom;
      this.point(this.cursor);
    }

    line(curve, kind) {
      let path = "", open = false;
      curve.x.forEach((x, index) => {
        const value = curve.y[index];
        if (value !== null) path += `${open ? "L" : "M"}${this.toX(x).toFixed(1)} ${this.toY(value).toFixed(1)}`;
        open = value !== null;
      });
      // A curve of one point would be invisible.
      if (curve.x.length === 1) path += "h4";
      return coloured(svg("path", { class: kind, d: path, "data-series": curve.series }), this.row.colours[curve.series]);
    }

    band(curve) {
      const points = (values) => curve.x
        .map((x, index) => [x, values[index]])
        .filter(([, value]) => value !== null)
        .map(([x, value]) => `${this.toX(x).toFixed(1)} ${this.toY(value).toFixed(1)}`);
      const path = `M${[...points(curve.high), ...points(curve.low).reverse()].join("L")}Z`;
      return coloured(svg("path", { class: "band", d: path, "data-series": curve.series }), this.row.colours[curve.series]);
    }

    // Shows the values at an episode: a line, dots, and the numbers beside it.
    point(value) {
      this.cursor = value;
      if (!this.over) return;
      this.over.replaceChildren();
      const ours = this.visible().filter((curve) => !curve.paper);
      if (value === null || !ours.length) {
        this.tip.hidden = true;
        return;
      }
      const longest = ours.reduce((a, b) => (b.x[b.x.length - 1] > a.x[a.x.length - 1] ? b : a));
      const at = longest.x[nearest(longest.x, value)];
      const x = this.toX(at);
      this.over.append(svg("line", { class: "cursor", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom }));
      const found = [];
      for (const curve of ours) {
        if (at > curve.x[curve.x.length - 1]) continue;
        const index = nearest(curve.x, at);
        if (curve.y[index] !== null) found.push({ curve, index, value: curve.y[index], paper: this.inPaper(curve.series, at) });
      }
      found.sort((a, b) => b.value - a.value);
      this.tip.replaceChildren(html("div", {}, html("strong", {}, `${this.panel.x} ${at}`)));
      for (const { curve, index, value: y, paper } of found) {
        this.over.append(coloured(svg("circle", { class: "dot", cx: this.toX(curve.x[index]), cy: this.toY(y), r: 4 }),
          this.row.colours[curve.series]));
        const band = curve.low && curve.low[index] !== null
          ? ` [${number(curve.low[index])}, ${number(curve.high[index])}]` : "";
        this.tip.append(html("div", {},
          coloured(html("span", { class: "swatch" }), this.row.colours[curve.series]),
          html("span", { class: "name" }, `${curve.series} `, html("span", { class: "soft" }, curve.runs ? `${curve.runs} runs` : "")),
          html("span", {}, html("b", {}, number(y)), html("span", { class: "soft" }, band)),
          html("span", { class: "soft" }, paper === null ? "" : `paper ${number(paper)}`)));
      }
      this.tip.hidden = false;
      this.place(x);
    }

    // The numbers go below the panel, or above it where the window ends: never over the curves.
    place(x) {
      const outer = this.figure.getBoundingClientRect(), inner = this.svg.getBoundingClientRect();
      const width = this.tip.offsetWidth, height = this.tip.offsetHeight, page = document.documentElement.clientWidth;
      const left = Math.max(8, Math.min(inner.left + x - width / 2, page - width - 8));
      const below = outer.bottom + 4 + height < innerHeight || outer.top - 4 - height < 0;
      this.tip.style.left = `${left - outer.left}px`;
      this.tip.style.top = `${below ? outer.height + 4 : -height - 4}px`;
    }

    inPaper(series, at) {
      const curve = this.visible().find((other) => other.paper && other.series === series);
      if (!curve || at < curve.x[0] - 8 || at > curve.x[curve.x.length - 1] + 8) return null;
      return curve.y[nearest(curve.x, at)];
    }

    press(event) {
      if (event.button !== 0) return;
      this.drag = { from: event.offsetX, to: event.offsetX };
      this.svg.setPointerCapture(event.pointerId);
    }

    move(event) {
      if (!this.box) return;
      this.point(this.toValue(event.offsetX));
      if (!this.drag) return;
      this.drag.to = event.offsetX;
      const inside = (pixel) => Math.min(this.box.right, Math.max(this.box.left, pixel));
      const [first, last] = [inside(this.drag.from), inside(event.offsetX)].sort((a, b) => a - b);
      this.over.prepend(svg("rect", {
        class: "chosen", x: first, y: this.box.top, width: last - first, height: this.box.bottom - this.box.top,
      }));
    }

    release() {
      const drag = this.drag;
      this.drag = null;
      if (drag && Math.abs(drag.to - drag.from) >= 8) {
        this.zoomTo([drag.from, drag.to].sort((a, b) => a - b).map((pixel) => this.toValue(pixel)));
      }
    }

    zoomTo(range) {
      // Fewer than four episodes are no curve any more.
      if (range && range[1] - range[0] < 4) return;
      this.zoom = range;
      this.draw();
    }

    key(event) {
      const [first, last] = this.x;
      const centre = this.cursor ?? (first + last) / 2;
      const limited = (value) => Math.min(last, Math.max(first, value));
      const scaled = (factor) => {
        const half = ((last - first) * factor) / 2;
        const range = [Math.max(this.all[0], centre - half), Math.min(this.all[1], centre + half)];
        this.zoomTo(range[0] <= this.all[0] && range[1] >= this.all[1] ? null : range);
      };
      const actions = {
        ArrowLeft: () => this.point(limited(centre - (last - first) / 40)),
        ArrowRight: () => this.point(limited(centre + (last - first) / 40)),
        Home: () => this.point(first),
        End: () => this.point(last),
        "+": () => scaled(0.5),
        "=": () => scaled(0.5),
        "-": () => scaled(2),
        0: () => this.zoomTo(null),
        Escape: () => this.zoomTo(null),
      };
      if (!actions[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[event.key]();
      said.textContent = this.tip.hidden ? "" : [...this.tip.children].map((line) => line.innerText).join("; ");
    }
  }

  // Panels that share a legend.
  class Row {
    constructor(row, place) {
      row.hidden = new Set();
      row.colours = Object.fromEntries(row.series.map((series) => [series.name, series]));
      this.panels = row.panels.map((panel) => new Panel(panel, row));
      place.replaceChildren(this.legend(row), html("div", { class: "panels" }, ...this.panels.map((panel) => panel.figure)));
      this.draw();
    }

    draw() {
      for (const panel of this.panels) panel.draw();
    }

    // The same panels with other values.
    update(row) {
      row.panels.forEach((panel, index) => this.panels[index].show(panel));
      this.draw();
    }

    legend(row) {
      const group = html("div", { class: "legend", role: "group", "aria-label": `Curves of ${row.title}` });
      const buttons = new Map();
      const update = () => {
        for (const [key, button] of buttons) button.setAttribute("aria-pressed", String(!row.hidden.has(key)));
        this.draw();
      };
      const add = (key, text, swatch, title) => {
        const button = html("button", { type: "button", "data-series": key, title }, swatch, html("span", {}, text));
        buttons.set(key, button);
        group.append(button);
        button.addEventListener("click", (event) => {
          if (event.shiftKey && !key.startsWith("/")) {
            for (const series of row.series) row.hidden.add(series.name);
            row.hidden.delete(key);
          } else if (!row.hidden.delete(key)) {
            row.hidden.add(key);
          }
          update();
        });
      };
      for (const series of row.series) {
        add(series.name, series.name, coloured(html("span", { class: "swatch" }), series), "Show or hide; with Shift: only this one");
      }
      const curves = row.panels.flatMap((panel) => panel.curves);
      group.append(html("span", { class: "gap" }));
      if (curves.some((curve) => curve.paper)) {
        add("/paper", "the paper's curves", html("span", { class: "swatch thin" }), "Show or hide the paper's curves");
      }
      if (curves.some((curve) => curve.low)) {
        add("/bands", row.bands, html("span", { class: "swatch band" }), "Show or hide the bands");
      }
      update();
      return group;
    }
  }

  return { html, svg, Row };
})();
