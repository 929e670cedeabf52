"use strict";
// Interactive parts of a page. Text from the data is only ever set as text, never as markup.
(() => {
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const button = (text, act) => {
    const node = make("button", { type: "button", textContent: text });
    node.addEventListener("click", act);
    return node;
  };

  // Tables: sort by a click on a column's title, filter by words. A row of sums stays last.
  const key = (cell) => {
    const text = cell ? cell.innerText.trim() : "";
    const number = /[-−+]?\d[\d,]*\.?\d*(e[-+]?\d+)?/.exec(text);
    return [number ? parseFloat(number[0].replace(/,/g, "").replace("−", "-")) : NaN, text.toLowerCase()];
  };
  const compare = (numeric) => ([n, a], [m, b]) => (numeric ? n - m : a < b ? -1 : a > b ? 1 : 0);
  const sort = (table, column, title) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].filter((row) => !row.classList.contains("total"));
    const numeric = title.classList.contains("num");
    const was = title.getAttribute("aria-sort");
    const down = was ? was === "ascending" : numeric;
    const order = compare(numeric);
    const keyed = rows.map((row) => [key(row.cells[column]), row]);
    const absent = ([[n, text]]) => (numeric ? isNaN(n) : text === "");
    keyed.sort((a, b) => absent(a) - absent(b) || (absent(a) ? 0 : (down ? -1 : 1) * order(a[0], b[0])));
    for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.prepend(...keyed.map(([, row]) => row));
  };
  const filters = new Map();
  let time = null; // selected in the chart, as [from, to] in seconds; it holds for the slowest requests
  const filter = (table) => {
    const field = filters.get(table);
    const wanted = field ? field.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
    for (const row of table.tBodies[0].rows) {
      const text = row.innerText.toLowerCase() || row.textContent.toLowerCase();
      const at = row.dataset.at;
      const outside = time !== null && at !== undefined && (at < time[0] || at > time[1]);
      row.hidden = !row.classList.contains("total") && (outside || !wanted.every((word) => text.includes(word)));
    }
  };
  for (const table of all("table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    [...table.tHead.rows[0].cells].forEach((title, column) => {
      title.classList.add("sorts");
      title.tabIndex = 0;
      title.title = [title.title, "click to sort"].filter(Boolean).join(" – ");
      title.addEventListener("click", () => sort(table, column, title));
      title.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") {
          event.preventDefault();
          sort(table, column, title);
        }
      });
    });
    if (table.tBodies[0].rows.length < 8 || table.matches(".narrow, .causes")) continue;
    const field = make("input", { type: "search", placeholder: "filter rows", className: "filter" });
    field.setAttribute("aria-label", `Filter: ${table.caption ? table.caption.innerText : "table"}`);
    field.addEventListener("input", () => filter(table));
    table.parentElement.before(field);
    filters.set(table, field);
  }

  // A link to a story unfolds it in browsers that do not.
  for (const link of all("a[href^='#story-']")) {
    link.addEventListener("click", () => (document.getElementById(link.hash.slice(1)).closest("details").open = true));
  }

  // A button next to a cause selects the requests that it affects: in the table of the slowest, and in the chart.
  const requests = document.querySelector("table.slowest");
  const marks = []; // causes and their buttons
  let marked = ""; // the selected cause
  let redraw = () => {};
  const select = (cause) => {
    marked = cause;
    for (const [name, lead] of marks) lead.setAttribute("aria-pressed", String(name === cause));
    const field = filters.get(requests);
    if (field) {
      field.value = cause;
      filter(requests);
    }
    redraw();
  };

  // Commands can be copied, even from a local file, where a page may have no clipboard access.
  const copied = async (node) => {
    try {
      await navigator.clipboard.writeText(node.textContent);
      return true;
    } catch {
      getSelection().selectAllChildren(node);
      return document.execCommand("copy");
    }
  };
  for (const code of all("pre > code, dd.command > code")) {
    const copy = button("copy", async () => {
      copy.textContent = (await copied(code)) ? "copied" : "press Ctrl-C";
      setTimeout(() => (copy.textContent = "copy"), 2000);
    });
    copy.classList.add("copy");
    code.after(copy);
  }

  // Latency over time: hover shows a request, a drag selects a time, a double click resets.
  const source = document.getElementById("points");
  const arms = source && typeof uPlot !== "undefined" ? JSON.parse(source.textContent) : null;
  const affected = new Set(arms ? arms.arms.flatMap((arm) => arm.causes) : []);
  const explained = document.getElementById("remaining") || document.getElementById("causes");
  for (const name of requests && explained ? all(".causes tbody th > code", explained.parentElement) : []) {
    const cause = name.textContent;
    if (!affected.has(cause) && !requests.tBodies[0].textContent.includes(cause)) continue;
    const lead = button("requests", () => {
      select(marked === cause ? "" : cause);
      if (marked) requests.parentElement.scrollIntoView({ block: "center" });
    });
    lead.setAttribute("aria-pressed", "false");
    lead.classList.add("marks");
    marks.push([cause, lead]);
    name.after(" ", lead);
  }
  if (!arms) return;
  const figure = document.getElementById(arms.figure);
  const picture = figure.querySelector("svg");
  const stories = new Map(all("details[data-request]").map((node) => [node.dataset.request, node]));
  const color = (role) => getComputedStyle(document.documentElement).getPropertyValue(`--${role}`).trim();
  const points = arms.arms
    .flatMap((arm, k) => arm.at_s.map((at, i) => ({ at, ms: arm.ms[i], id: arm.ids[i], words: arm.words[i], of: arm.of[i].map((c) => arm.causes[c]), arm: k, failed: arm.failed[i] })))
    .sort((a, b) => a.at - b.at);
  const series = arms.arms.flatMap((arm, k) => [
    { name: arm.label, role: arm.role, of: (point) => point.arm === k && !point.failed },
    { name: `${arm.label}, not ok`, role: "bad", of: (point) => point.arm === k && point.failed },
  ]).filter((each) => points.some(each.of));
  for (const point of points) point.series = series.findIndex((each) => each.of(point));
  const seen = (point, k) => point.series === k && (!log || point.ms > 0);
  const columns = () => [points.map((p) => p.at), ...series.map((_, k) => points.map((p) => (seen(p, k) ? p.ms : null)))];
  const hidden = new Set();
  const box = make("div", { className: "chart" });
  const tip = make("div", { className: "tip", hidden: true });
  tip.setAttribute("role", "status");
  const digits = (value, n) => value.toLocaleString("en", { maximumSignificantDigits: n });
  let chart = null;
  let log = arms.log;
  let near = null;
  const last = arms.arms.length - 1; // the arm whose requests are explained
  const storyOf = (point) => (point.arm === last ? stories.get(point.id) : undefined);

  const nearest = (u) => {
    const { left, top } = u.cursor;
    let best = null;
    let least = 24 * 24;
    points.forEach((point, i) => {
      if (hidden.has(point.series) || (log && point.ms <= 0)) return;
      const dx = u.valToPos(point.at, "x") - left;
      const dy = u.valToPos(point.ms, "y") - top;
      if (dx * dx + dy * dy < least) {
        least = dx * dx + dy * dy;
        best = i;
      }
    });
    return best;
  };
  const showTip = (u) => {
    near = u.cursor.left < 0 ? null : nearest(u);
    tip.hidden = near === null;
    if (near === null) return;
    const point = points[near];
    const more = storyOf(point) ? "\nclick for its story" : "";
    const arm = arms.arms.length > 1 ? `, ${arms.arms[point.arm].label}` : "";
    tip.textContent = `${point.id}: ${digits(point.ms, 3)} ms at ${digits(point.at, 5)} s${arm}\n${point.words}${more}`;
    const x = u.valToPos(point.at, "x") + u.over.offsetLeft;
    const y = u.valToPos(point.ms, "y") + u.over.offsetTop;
    tip.style.left = `${Math.max(0, Math.min(x + 12, box.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${y + 14}px`;
  };
  const lines = (u) => {
    const context = u.ctx;
    context.save();
    context.beginPath();
    context.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    context.clip();
    arms.arms.forEach((arm, k) => {
      if (hidden.has(series.findIndex((each) => each.name === arm.label))) return;
      for (const [values, role] of [[arm.p50_ms, "muted"], [arm.p99_ms, "ink"]]) {
        context.strokeStyle = color(role);
        context.lineWidth = 1.6 * devicePixelRatio;
        context.setLineDash(k ? [6, 4] : []);
        context.beginPath();
        values.forEach((value, i) => {
          if (value === null) return;
          const y = u.valToPos(value, "y", true);
          const [from, to] = [arm.edges_s[i], arm.edges_s[i + 1]].map((edge) => u.valToPos(edge, "x", true));
          if (i && values[i - 1] !== null) context.lineTo(from, y);
          else context.moveTo(from, y);
          context.lineTo(to, y);
        });
        context.stroke();
      }
    });
    context.setLineDash([]);
    context.strokeStyle = color("ink");
    for (const point of marked ? points : []) {
      if (!point.of.includes(marked) || hidden.has(point.series) || (log && point.ms <= 0)) continue;
      context.beginPath();
      context.arc(u.valToPos(point.at, "x", true), u.valToPos(point.ms, "y", true), 4 * devicePixelRatio, 0, 7);
      context.stroke();
    }
    context.restore();
  };
  // What is selected, next to the chart and above the table of the slowest requests.
  const chosen = make("p", { className: "small", hidden: true });
  const listed = make("p", { className: "small", hidden: true });
  chosen.setAttribute("role", "status");
  const tell = () => {
    const words = [];
    if (marked) {
      const many = points.filter((point) => point.of.includes(marked)).length;
      words.push(`Marked: ${many.toLocaleString("en")} drawn requests with ${marked} among their largest causes.`);
    }
    let span = "";
    if (time && requests) {
      const rows = [...requests.tBodies[0].rows];
      const inside = rows.filter((row) => row.dataset.at >= time[0] && row.dataset.at <= time[1]).length;
      span = `Selected: ${digits(time[0], 5)} to ${digits(time[1], 5)} s. ${inside} of the ${rows.length} slowest requests arrived then and are listed; the other ${rows.length - inside} arrived at other times.`;
      words.push(span);
    }
    chosen.textContent = words.join(" ");
    chosen.hidden = !words.length;
    listed.replaceChildren(span, " ", button("all times", () => chart.setData(columns())));
    listed.hidden = !span;
  };
  const zoomed = (u, scale) => {
    if (scale !== "x") return;
    const { min, max } = u.scales.x;
    const all = min <= points[0].at && max >= points[points.length - 1].at;
    time = all ? null : [min, max];
    if (requests) filter(requests);
    tell();
  };
  const draw = () => {
    const zoom = chart && { min: chart.scales.x.min, max: chart.scales.x.max };
    if (chart) chart.destroy();
    const axis = { stroke: color("muted"), grid: { stroke: color("grid"), width: 1 }, ticks: { show: false } };
    const shown = (u, values) => values.map((value) => (value === null ? "" : digits(value, 6)));
    chart = new uPlot(
      {
        width: box.clientWidth,
        height: 320,
        legend: { show: false },
        cursor: { points: { show: false }, y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: log ? { distr: 3 } : { range: (u, low, high) => [0, (high || 1) * 1.08] } },
        axes: [{ ...axis, label: "scheduled arrival, s", labelSize: 22, values: shown }, { ...axis, label: "latency, ms", labelSize: 22, size: 62, values: shown }],
        series: [
          {},
          ...series.map((each, k) => ({
            show: !hidden.has(k),
            paths: () => null,
            stroke: color(each.role),
            points: { show: true, size: each.role === "bad" ? 7 : 4, width: 0, fill: `${color(each.role)}${marked ? "44" : "99"}` },
          })),
        ],
        hooks: { setCursor: [showTip], draw: [lines], setScale: [zoomed] },
      },
      columns(),
      box,
    );
    if (zoom && zoom.max > zoom.min) chart.setScale("x", zoom);
    let pressed = 0;
    chart.over.addEventListener("mousedown", (event) => (pressed = event.clientX));
    chart.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - pressed) > 4) return; // the end of a drag
      const story = near !== null && storyOf(points[near]);
      if (story) {
        story.open = true;
        story.scrollIntoView({ block: "start" });
      }
    });
  };
  const scale = button("", () => {
    log = !log;
    scale.textContent = log ? "linear" : "logarithmic";
    draw();
  });
  scale.textContent = log ? "linear" : "logarithmic";
  const whole = button("reset zoom", () => chart.setData(columns()));
  const tools = make("div", { className: "tools" }, scale, whole);
  if (series.length > 1) {
    series.forEach((each, k) => {
      const toggle = button(each.name, () => {
        if (!hidden.delete(k)) hidden.add(k);
        toggle.setAttribute("aria-pressed", String(!hidden.has(k)));
        draw();
      });
      toggle.setAttribute("aria-pressed", "true");
      toggle.style.borderColor = `var(--${each.role})`;
      tools.append(toggle);
    });
  }
  const hint = make("p", { className: "soft small", textContent: "Hover over a request for details, drag to select a time, double-click to reset. Lines: p50 and p99 of each window." });
  picture.before(tools, box, chosen, hint);
  if (requests) (filters.get(requests) || requests.parentElement).before(listed);
  redraw = () => {
    draw();
    tell();
  };
  picture.classList.add("still");
  box.append(tip);
  draw();
  new ResizeObserver(() => chart.setSize({ width: box.clientWidth, height: 320 })).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
