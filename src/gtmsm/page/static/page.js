// The page: what was heard, what is shown, and what keys, touches and drops ask for.

import { Line } from "./wire.js";
import { drawBand, drawLine, drawMap, drawView, frameCanvas } from "./draw.js";

const $ = (id) => document.getElementById(id);
const FLAT = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", w: "up", s: "down", a: "left", d: "right", ".": "stay" };
const TURNING = {
  ArrowUp: "forward", ArrowDown: "backward", ArrowLeft: "turn left", ArrowRight: "turn right",
  w: "forward", s: "backward", a: "strafe left", d: "strafe right", ".": "idle",
};
const PADS = {
  flat: [["up", "↑", "up"], ["left", "←", "left"], ["down", "↓", "down"], ["right", "→", "right"]],
  turning: [
    ["strafe left", "⇠", "step-left"], ["forward", "↑", "up"], ["strafe right", "⇢", "step-right"],
    ["turn left", "↶", "left"], ["backward", "↓", "down"], ["turn right", "↷", "right"],
  ],
};
const PACE = { flat: 110, turning: 60 };
const MOST_BYTES = 4 << 20;

const state = {
  place: null, moments: [], cursor: 0, truth: true, lit: null, way: null, found: null,
  tool: "imagine", auto: null, busy: false, next: null, worlds: [],
};
const held = new Set();
// Milliseconds from a key to the frame drawn on the canvas, for whoever measures.
const latency = { real: [], imagined: [] };
let asked = null, colours = {}, waiting = 0, retries = 0, drawing = false;
window.gtmsm = { state, latency };

const line = new Line(hear, lost);

// ---- messages

function hear(message) {
  const { t, at } = message;
  if (t === "hello") {
    retries = 0;
    sessionStorage.setItem("session", message.session);
    offer(message.worlds, message.missing);
    notice("");
    state.fresh = true;
  } else if (t === "place") {
    Object.assign(state, { place: message, moments: [], cursor: 0, way: null, found: null, lit: null, fresh: false });
    answer("");
    createImageBitmap(new Blob([message.pictures[0]], { type: "image/png" })).then((picture) => {
      message.picture = picture;
      redraw();
    });
    settle();
  } else if (t === "truth") {
    state.moments.length = at;  // what came later has been forgotten
    state.moments[at] = {
      dream: message.dream, action: message.action, true: message.true,
      real: message.pictures.length ? frameCanvas(message.pictures[0], state.place.frame) : null,
    };
    state.cursor = at;
    views();
    clocked("real");
  } else if (t === "expected") {
    state.moments[at].imagined = frameCanvas(message.pictures[0], state.place.frame);
    views();
    clocked("imagined");
  } else if (t === "imagined") {
    const moment = state.moments[at];
    for (const name of ["here", "off", "turned", "psnr", "recalled", "memorised"]) moment[name] = message[name];
    moment.imagined = frameCanvas(message.pictures[0], state.place.frame);
    if (message.left === null || message.left === 0) {
      if (state.auto === "follow") stop();
      if (message.left === null) state.way = null;
    }
    views();
    clocked("imagined");
    redraw();
  } else if (t === "forget") {
    state.moments.splice(0, message.count);
    for (const moment of state.moments) moment.recalled = (moment.recalled || []).map((n) => n - message.count).filter((n) => n >= 0);
    Object.assign(state, { cursor: state.moments.length - 1, found: null, lit: null });
  } else if (t === "way") {
    state.way = message;
    state.auto = "follow";
    redraw();
  } else if (t === "found") {
    told(message);
  } else if (t === "error") {
    stop();
    notice(message.why);
    done();
  } else if (t === "done") {
    if (state.fresh && !state.place) begin();
    else done();
  }
}

function lost(code) {
  state.busy = true;
  stop();
  if (code === 4001) notice("This walk was opened in another tab.", "Use it here", () => line.open());
  else if (code === 4002) notice("This walk has ended, since nothing was heard for a while.", "Begin anew", () => line.open());
  else if (code === 4000) notice("Everybody's seat is taken.", "Try again", () => line.open());
  else {
    notice("The server does not answer; trying again.");
    setTimeout(() => line.open(), Math.min(5000, 300 * 2 ** retries++));
  }
}

// A request at a time: held keys ask again when the last one is done.
function ask(said, content, from = true) {
  if (state.busy) return false;
  state.busy = true;
  line.say(from && state.moments.length ? { ...said, from: state.cursor } : said, content);
  return true;
}

function done() {
  state.busy = false;
  redraw();
  if (state.next) {
    const next = state.next;
    state.next = null;
    next();
    return;
  }
  clearTimeout(waiting);
  waiting = setTimeout(go, state.place?.heading ? PACE.turning : PACE.flat);
}

// What is to be done next by itself: held keys first, then whoever walks.
function go() {
  if (state.busy || !state.place) return;
  if (held.size) ask({ do: "step", action: action() });
  else if (state.auto) ask({ do: state.auto });
}

function now(what) {
  if (state.busy) state.next = what;
  else what();
}

function clocked(kind) {
  if (asked !== null) latency[kind].push(performance.now() - asked);
  if (kind === "imagined") asked = null;
}

// ---- worlds

function offer(worlds, missing) {
  state.worlds = worlds;
  const asked = new URLSearchParams(location.hash.slice(1)), chosen = $("world").value || asked.get("world");
  if (!state.place && asked.get("seed")) $("seed").value = asked.get("seed");
  $("world").replaceChildren(
    ...worlds.map(({ name }) => new Option(name, name)),
    ...Object.entries(missing).map(([name, why]) => Object.assign(new Option(name), { disabled: true, title: why })),
  );
  $("world").value = worlds.some(({ name }) => name === chosen) ? chosen : worlds[0].name;
}

function begin(content) {
  stop();
  const seed = Math.min(2147483647, Math.max(0, Math.floor(Number($("seed").value)) || 0));
  $("seed").value = seed;
  notice("");
  now(() => ask({ do: "begin", world: $("world").value, seed }, content, false));
}

// Labels and buttons of a new place.
function settle() {
  const { world, seed, heading, own, rewinds } = state.place;
  $("world").value = world;
  $("seed").value = seed;
  history.replaceState(null, "", `#world=${world}&seed=${seed}`);
  document.title = `gtmsm: ${own ? "own picture" : `${world} ${seed}`}`;
  $("own").classList.toggle("off", !state.worlds.some(({ pictures }) => pictures));
  $("recalled").classList.toggle("many", heading);
  $("pad").replaceChildren(...PADS[heading ? "turning" : "flat"].map(([name, sign, where]) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: sign, title: name, className: where });
    button.setAttribute("aria-label", name);
    const key = `pad ${name}`;
    button.onpointerdown = (event) => { button.setPointerCapture(event.pointerId); press(key, event.timeStamp); };
    button.onpointerup = button.onpointercancel = button.onlostpointercapture = () => held.delete(key);
    button.onclick = (event) => { if (event.detail === 0) { press(key, event.timeStamp); held.delete(key); } };
    return button;
  }));
  $("map-view").title = rewinds ? "" : "Doom's engine cannot go back: dreams have no truth beside them";
}

// ---- walking

function action() {
  const names = new Set([...held].map((key) => (key.startsWith("pad ") ? key.slice(4) : (state.place.heading ? TURNING : FLAT)[key])));
  for (const side of ["left", "right"]) {
    if (names.has("forward") && names.has(`turn ${side}`)) return state.place.actions.indexOf(`forward and turn ${side}`);
  }
  return state.place.actions.indexOf([...names].at(-1));  // -1: no key
}

function press(key, when) {
  stop();
  held.add(key);
  const chosen = action();
  asked = null;
  now(() => {
    if (ask({ do: "step", action: chosen })) asked = when;
  });
}

function stop() {
  state.auto = null;
  clearTimeout(waiting);
  redraw();
}

function sleep() {
  stop();
  const dreaming = Boolean(state.moments[state.cursor]?.dream);
  now(() => ask({ do: "dream", on: !dreaming }));
}

function explore() {
  if (state.auto === "explore") stop();
  else {
    state.auto = "explore";
    redraw();
    go();
  }
}

function tool(name) {
  state.tool = name;
  redraw();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !state.place) return;
  if (event.target.matches("input:not([type=range]), select")) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key in FLAT) {
    event.preventDefault();
    if (!event.repeat) press(key, event.timeStamp);
    return;
  }
  const does = { " ": sleep, x: explore, t: toggleTruth, n: another, i: () => tool("imagine"), g: () => tool("goal"), Escape: stop }[key];
  if (!does || event.repeat || (key === " " && event.target.matches("button, .button"))) return;
  event.preventDefault();
  does();
});
addEventListener("keyup", (event) => held.delete(event.key.length === 1 ? event.key.toLowerCase() : event.key));
addEventListener("blur", () => held.clear());

function another() {
  $("seed").value = Math.floor(Math.random() * 100000);
  begin();
}

function toggleTruth() {
  state.truth = !state.truth;
  views();
  redraw();
}

$("sleep").onclick = sleep;
$("explore").onclick = explore;
$("truth").onclick = toggleTruth;
$("another").onclick = another;
$("tool-imagine").onclick = () => tool("imagine");
$("tool-goal").onclick = () => tool("goal");
$("world").onchange = () => { begin(); $("world").blur(); };
$("seed").onchange = () => begin();
$("choose").onsubmit = (event) => { event.preventDefault(); $("seed").blur(); };
$("timeline").oninput = () => {
  stop();
  state.cursor = Number($("timeline").value);
  state.found = state.way = null;
  views();
  redraw();
};

// ---- the map

function point(event) {
  const box = $("map-view").getBoundingClientRect();
  return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height].map((x) => Math.min(1, Math.max(0, x)));
}

function nearest([x, y]) {
  const side = $("map-view").clientWidth, recalled = state.moments[state.cursor]?.recalled || [];
  let best = null, least = 12;
  state.moments.slice(0, state.cursor + 1).forEach((moment, number) => {
    if (!moment.memorised || !moment.here) return;
    const away = Math.hypot(moment.here[0] - x, moment.here[1] - y) * side - (recalled.includes(number) ? 6 : 0);
    if (away < least) [best, least] = [number, away];
  });
  return best;
}

$("map-view").onpointermove = (event) => light(nearest(point(event)));
$("map-view").onpointerleave = () => light(null);
$("map-view").onclick = (event) => {
  const at = point(event);
  stop();
  state.found = null;
  now(() => ask({ do: state.tool, at }));
};

function light(number) {
  if (state.lit === number) return;
  state.lit = number;
  redraw();
}

// ---- pictures

async function bytesOf(file) {
  if (file.size > MOST_BYTES) {
    notice(`${file.name || "the picture"} has ${(file.size / 2 ** 20).toFixed(1)} MB; give one of at most 4 MB`);
    return null;
  }
  return new Uint8Array(await file.arrayBuffer());
}

async function walkOn(file) {
  const content = await bytesOf(file);
  if (!content) return;
  const worlds = state.worlds.filter(({ pictures }) => pictures).map(({ name }) => name);
  if (!worlds.length) return notice("this run walks through rooms; it has no pictures to walk on");
  if (!worlds.includes($("world").value)) $("world").value = worlds[0];
  begin(content);
}

async function where(file) {
  const content = await bytesOf(file);
  if (!content) return;
  stop();
  answer("Looking …");
  now(() => ask({ do: "where" }, content, false));
}

function told({ by, known, alike, places, pictures }) {
  state.found = places;
  const sure = (spot) => (by === "landmarks" ? `${Math.round(100 * spot.p)}%` : `${spot.psnr} dB`);
  const listed = places.map((spot, i) => `${"ABC"[i]} (step ${spot.moment}, ${sure(spot)})`).join(" or ");
  let words;
  if (by === "landmarks") words = known >= 0.5 ? `Seen at ${listed}.` : `Never seen: known with probability ${known.toFixed(2)}.`;
  else words = `${alike ? `Looks like ${listed}` : "Nothing seen looks like it"}. This model has no landmarks: views are compared by likeness.`;
  if (by === "landmarks" ? known < 0.5 : !alike) state.found = null;
  answer(words, frameCanvas(pictures[0], state.place.frame));
  redraw();
}

function answer(words, picture) {
  const box = $("answer");
  box.replaceChildren(...(picture ? [picture] : []), words || "Drop a picture here, or drag a recalled view here.");
  picture?.style.setProperty("image-rendering", "pixelated");
  box.classList.toggle("told", Boolean(words));
}

$("own-file").onchange = (event) => { if (event.target.files[0]) walkOn(event.target.files[0]); event.target.value = ""; };
$("ask-file").onchange = (event) => { if (event.target.files[0]) where(event.target.files[0]); event.target.value = ""; };
$("save").onclick = () => {
  const frame = state.moments[state.cursor]?.real;
  frame?.toBlob((blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: `view-${state.cursor}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
};

let dragged = null;  // a view of this page
addEventListener("dragover", (event) => {
  event.preventDefault();
  const target = event.target.closest?.("[data-drop], #ask");
  document.querySelectorAll(".over").forEach((other) => other.classList.toggle("over", other === target));
  target?.classList.add("over");
  if (dragged === null) $("drop").hidden = false;
});
addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("drop").hidden = true; });
addEventListener("drop", (event) => {
  event.preventDefault();
  const target = event.target.closest?.("[data-drop], #ask");
  $("drop").hidden = true;
  document.querySelectorAll(".over").forEach((other) => other.classList.remove("over"));
  const file = event.dataTransfer.files[0];
  if (dragged !== null) {
    if (target) dragged.toBlob((blob) => where(blob));
  } else if (file && target) (target.dataset.drop === "own" ? walkOn : where)(file);
});
addEventListener("dragend", () => { dragged = null; $("drop").hidden = true; });

// ---- what is shown

function notice(words, button = "", does = null) {
  $("notice").hidden = !words;
  $("notice").firstElementChild.textContent = words;
  const more = $("notice").lastElementChild;
  more.hidden = !button;
  more.textContent = button;
  more.onclick = () => { notice(""); state.busy = false; does?.(); };
}

// The two views are drawn at once; everything else with the next picture of the screen.
function views() {
  const moment = state.moments[state.cursor];
  drawView($("real-view"), state.truth ? moment?.real : null, state.truth ? "no truth in this dream" : "hidden", colours);
  drawView($("dream-view"), moment?.imagined ?? state.moments[state.cursor - 1]?.imagined, "…", colours);
}

function redraw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    draw();
  });
}

function draw() {
  const { moments, cursor, place, truth } = state, moment = moments[cursor];
  const dreaming = Boolean(moment?.dream);
  document.body.classList.toggle("dreaming", dreaming);
  $("sleep").setAttribute("aria-pressed", dreaming);
  $("sleep").firstElementChild.textContent = dreaming ? "Wake up" : "Dream";
  $("explore").setAttribute("aria-pressed", state.auto === "explore");
  $("truth").setAttribute("aria-pressed", truth);
  $("tool-imagine").setAttribute("aria-checked", state.tool === "imagine");
  $("tool-goal").setAttribute("aria-checked", state.tool === "goal");
  if (!place || !moment) return;
  $("real-note").textContent = !truth ? "" : dreaming ? "goes along in silence" : place.own ? "own picture" : "memorised as you walk";
  $("dream-note").textContent = dreaming ? "a dream: nothing is seen" : "what it expected to see";
  drawMap($("map-view"), state, colours);

  const recalled = moment.recalled || [];
  $("recalled-note").textContent = `${recalled.length} of ${moments.slice(0, cursor + 1).filter((m) => m.memorised).length} views`;
  if ($("recalled").dataset.shown !== `${recalled} ${moments.length}`) {
    $("recalled").dataset.shown = `${recalled} ${moments.length}`;
    $("recalled").replaceChildren(...recalled.filter((n) => moments[n]?.real).map((number, i) => {
      const item = document.createElement("li"), badge = document.createElement("b"), step = document.createElement("span");
      const view = document.createElement("canvas");
      [view.width, view.height] = [moments[number].real.width, moments[number].real.height];
      view.getContext("2d").drawImage(moments[number].real, 0, 0);
      view.style.imageRendering = "pixelated";
      badge.textContent = i + 1;
      step.textContent = `step ${number}`;
      item.dataset.moment = number;
      item.tabIndex = 0;
      item.draggable = true;
      item.ondragstart = () => { dragged = view; };
      item.onpointerenter = item.onfocus = item.onclick = () => light(number);
      item.onpointerleave = item.onblur = () => light(null);
      item.append(view, badge, step);
      return item;
    }));
  }
  for (const item of $("recalled").children) item.classList.toggle("lit", Number(item.dataset.moment) === state.lit);

  const known = (value, words) => (value === null || value === undefined ? "" : words);
  $("psnr").textContent = truth ? known(moment.psnr, `${moment.psnr?.toFixed(1)} dB`) : "hidden";
  const turned = known(moment.turned, `, ${moment.turned}°`);
  $("off").textContent = truth ? known(moment.off, `${moment.off?.toFixed(2)} ${place.unit}${turned}`) : "hidden";
  const series = (name) => moments.map((m) => (truth ? m[name] : null));
  drawLine($("psnr-line"), series("psnr"), cursor, 10, colours.inferred, colours);
  drawLine($("off-line"), series("off"), cursor, 0.5, colours.true, colours);

  $("timeline").max = moments.length - 1;
  $("timeline").value = cursor;
  drawBand($("band"), moments, colours);
  const back = cursor < moments.length - 1 ? "; walk on to fork" : "";
  $("when").textContent = `step ${cursor} of ${moments.length - 1}${dreaming ? ", dream" : ""}${back}`;
}

function paint() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ink", "soft", "rule", "card", "true", "inferred", "dreamt", "dot", "rim", "recalled"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  colours.halo = dark ? "rgba(10, 11, 14, .8)" : "rgba(255, 255, 255, .85)";
  colours.veil = dark ? "rgba(10, 11, 14, .35)" : "rgba(255, 255, 255, .25)";
  views();
  redraw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
addEventListener("resize", () => { views(); redraw(); });
paint();
line.open();
