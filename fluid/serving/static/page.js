"use strict";
const find = (id) => document.getElementById(id);
const token = () => sessionStorage.getItem("token");

function element(kind, text = "", attributes = {}) {
  const made = Object.assign(document.createElement(kind), attributes);
  made.textContent = text;
  return made;
}

async function ask(path, options = {}) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) find("access").hidden = false;
  return answer;
}

async function askJson(path, options) {
  const answer = await ask(path, options);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.error || `status ${answer.status}`);
  return told;
}

// Example data for an input: one row if the number of rows is open, and sequences of two steps.
function sample(input) {
  const limits = (input.parameters || {}).limits;
  const value = input.datatype === "BOOL" ? true : limits ? limits[0] : input.datatype.startsWith("FP") ? 0.5 : 0;
  const level = (input.parameters || {}).lod_level || 0;
  const make = (sizes, at) => {
    if (!sizes.length) return value;
    const count = sizes[0] >= 0 ? sizes[0] : at > 0 && at <= level ? 2 : 1;
    return Array.from({ length: count }, () => make(sizes.slice(1), at + 1));
  };
  return make(input.shape, 0);
}

function shapeOf(data) {
  return Array.isArray(data) ? [data.length, ...(data.length ? shapeOf(data[0]) : [])] : [];
}

function show(model) {
  find("trial").hidden = false;
  find("name").textContent = model.name;
  find("answer").hidden = true;
  find("took").textContent = "";
  find("inputs").replaceChildren(...fields(model).map((input) => {
    const label = element("label", `${input.name}: ${input.datatype} [${input.shape.join(", ")}]`);
    label.append(element("textarea", JSON.stringify(sample(input)), { name: input.name, spellcheck: false }));
    return label;
  }));
  find("ask").onsubmit = (event) => { event.preventDefault(); infer(model); };
}

// The inputs to fill in, without the tensors of sequence lengths: nested rows show their own lengths.
const fields = (model) => model.inputs.filter((input) => !(input.parameters || {}).of);

async function infer(model) {
  const out = find("answer");
  out.hidden = false;
  try {
    const inputs = fields(model).map((input) => {
      const data = JSON.parse(find("ask").elements[input.name].value);
      const level = (input.parameters || {}).lod_level || 0;
      const shape = shapeOf(data).map((size, at) => (at > 0 && at <= level ? -1 : size));
      return { name: input.name, datatype: input.datatype, shape, data };
    });
    const start = performance.now();
    const told = await askJson(`v2/models/${model.name}/infer`, { method: "POST", body: JSON.stringify({ inputs }) });
    find("took").textContent = `${(performance.now() - start).toFixed(1)} ms`;
    out.className = "";
    out.textContent = told.outputs.map((o) => `${o.name}: ${o.datatype} [${o.shape.join(", ")}]\n${JSON.stringify(o.data)}`).join("\n\n");
  } catch (error) {
    out.className = "bad";
    out.textContent = error.message;
  }
}

async function list() {
  const { models } = await askJson("v2/models");
  const told = await Promise.all(models.map((name) => askJson(`v2/models/${encodeURIComponent(name)}`)));
  const table = element("table");
  table.append(element("thead"), element("tbody"));
  const head = element("tr");
  head.append(...["model", "versions", "takes", "gives"].map((text) => element("th", text)));
  table.tHead.append(head);
  const described = (tensors) => tensors.map((t) => `${t.name} ${t.datatype} [${t.shape.join(", ")}]`).join("; ");
  for (const model of told) {
    const row = element("tr");
    const name = element("td");
    name.append(element("button", model.name, { type: "button", onclick: () => show(model) }));
    row.append(name, element("td", model.versions.join(", ")), element("td", described(model.inputs)), element("td", described(model.outputs)));
    table.tBodies[0].append(row);
  }
  find("models").replaceChildren(table);
  if (told.length && find("trial").hidden) show(told[0]);
}

// Parse the metrics of fluid in the text format of Prometheus: name{label="value",...} number
function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^(fluid_\w+)\{(.*)\} (\S+)$/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...match[2].matchAll(/(\w+)="([^"]*)"/g)].map((m) => [m[1], m[2]]));
    if (!labels.model) continue;
    const key = `${labels.model} ${labels.version}`;
    const row = (found[key] ||= { model: labels.model, version: labels.version, requests: 0, errors: 0 });
    const value = Number(match[3]);
    if (match[1] === "fluid_requests_total") {
      row.requests += value;
      if (labels.status !== "200") row.errors += value;
    } else row[match[1]] = value;
  }
  return found;
}

let before = { time: 0, rows: {} };

async function live() {
  const rows = readMetrics(await (await ask("metrics")).text());
  const now = performance.now();
  const number = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "");
  find("figures").tBodies[0].replaceChildren(...Object.entries(rows).map(([key, row]) => {
    const old = before.rows[key];
    const rate = old ? ((row.requests - old.requests) * 1000) / (now - before.time) : NaN;
    const mean = (row.fluid_request_seconds_sum * 1000) / row.fluid_request_seconds_count;
    const batch = row.fluid_batch_rows_sum / row.fluid_batch_rows_count;
    const cells = [row.model, row.version, row.requests, number(rate, 1), row.errors, number(mean, 2), number(batch, 1),
      row.fluid_queue_requests ?? "", row.fluid_compilations ?? ""];
    const line = element("tr");
    line.append(...cells.map((cell) => element("td", String(cell))));
    return line;
  }));
  before = { time: now, rows };
}

let listed = false;

async function refresh() {
  const state = find("state");
  try {
    const { ready } = await (await ask("v2/health/ready")).json();
    state.textContent = ready ? "ready" : "not ready";
    state.className = ready ? "good" : "bad";
    if (ready && !listed) {
      await list();
      listed = true;
      find("access").hidden = true;
    }
    if (listed) await live();
  } catch (error) {
    state.textContent = error.message;
    state.className = "bad";
  }
}

find("access").onsubmit = (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", find("token").value);
  refresh();
};
refresh();
setInterval(refresh, 2000);
