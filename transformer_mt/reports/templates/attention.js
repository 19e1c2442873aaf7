"use strict";
const PRECISION = 1000;
const byId = id => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
// Which map is shown (head 0 is the mean), and which of its rows and columns is chosen, if any.
const chosen = {map: data.maps.length - 1, layer: 0, head: 0, row: 0, column: null};

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function makeToken({tokens, lang}, index, coordinate) {
  const [text, kind] = tokens[index];
  // The direction of a line is not told by special subwords: a browser passes over <bdi>.
  const element = make(kind ? "bdi" : "span", {className: `token ${kind}`, lang, title: text});
  for (const part of text.split(/(\u2581+)/).filter(part => part)) {
    element.append(part[0] === "\u2581" ? make("i", {className: "space"}, part) : part);
  }
  if (coordinate) element.dataset[coordinate] = index;
  return element;
}

// ---- Colours: even steps of the square root of a weight, for most weights are small

let stops = [];

function readColours() {
  const style = getComputedStyle(document.documentElement);
  stops = ["--low", "--middle", "--high"].map(name =>
    style.getPropertyValue(name).match(/[0-9a-f]{2}/g).map(part => parseInt(part, 16)));
}

function colour(weight) {
  const place = Math.sqrt(weight / PRECISION) * 2;
  const [from, to] = place < 1 ? stops : stops.slice(1);
  return from.map((value, i) => value + (to[i] - value) * (place < 1 ? place : place - 1));
}

function paint(canvas, rows) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((weight, i) => image.data.set([...colour(weight), 255], i * 4));
  context.putImageData(image, 0, 0);
}

function shade(element, weight) {
  const [red, green, blue] = weight === null ? [] : colour(weight);
  element.style.background = weight === null ? "" : `rgb(${red} ${green} ${blue})`;
  const isBright = .299 * red + .587 * green + .114 * blue > 125;
  element.style.color = weight === null ? "" : isBright ? "#10151c" : "#f4f7fa";
}

// ---- What is shown

function mean(heads) {
  return heads[0].map((row, i) => row.map((_, j) =>
    Math.round(heads.reduce((sum, head) => sum + head[i][j], 0) / heads.length)));
}

const map = () => data.maps[chosen.map];
const weights = () => map().weights[chosen.layer][chosen.head];
const headName = head => head ? `head ${head}` : "mean of the heads";

function showMap() {
  const {name, caption, queries, keys, weights: layers} = map();
  chosen.layer = Math.min(chosen.layer, layers.length - 1);
  chosen.head = Math.min(chosen.head, layers[chosen.layer].length - 1);
  [...byId("kinds").children].forEach((button, i) =>
    button.setAttribute("aria-pressed", i === chosen.map));
  byId("caption").textContent = caption;

  const heads = layers[0].length;
  byId("heads").style.gridTemplateColumns = `repeat(${heads + 1}, max-content)`;
  byId("heads").style.setProperty("--thumb", heads > 5 ? "56px" : "72px");
  byId("heads").replaceChildren(make("span", {}), ...layers[0].map((_, head) =>
    make("span", {className: head ? "" : "mean"}, head ? `head ${head}` : "mean")));
  layers.forEach((layer, number) => {
    byId("heads").append(make("span", {}, `layer ${number + 1}`));
    layer.forEach((rows, head) => {
      const canvas = make("canvas", {});
      // Cells are kept sharp as long as each has a pixel.
      canvas.style.imageRendering = Math.max(rows.length, rows[0].length) > 56 ? "" : "pixelated";
      paint(canvas, rows);
      byId("heads").append(make("button", {
        className: head ? "" : "mean",
        title: `layer ${number + 1}, ${headName(head)}`,
        onclick: () => { Object.assign(chosen, {layer: number, head}); showHead(); },
      }, canvas));
    });
  });

  // A map is shown whole where its cells are then large enough for its labels to be read.
  const cell = Math.max(16, Math.floor(Math.min(36, 680 / queries.tokens.length,
    (byId("scroll").clientWidth - 170) / keys.tokens.length)));
  byId("map").style.setProperty("--cell", `${cell}px`);
  byId("map").style.setProperty("--font", `${Math.min(15, cell - 3)}px`);
  byId("cells").firstElementChild.style.width = `${cell * keys.tokens.length}px`;
  byId("cells").firstElementChild.style.height = `${cell * queries.tokens.length}px`;
  for (const [id, axis, coordinate] of [["rows", queries, "row"], ["columns", keys, "column"]]) {
    byId(id).replaceChildren(...axis.tokens.map((_, i) =>
      make("div", {}, makeToken(axis, i, coordinate))));
  }
  for (const [id, axis, coordinate] of [["queries", queries, "row"], ["keys", keys, "column"]]) {
    byId(id).replaceWith(make("div", {id, dir: "auto"}, ...axis.tokens.map((_, i) =>
      makeToken(axis, i, coordinate))));
  }
  // Slanted labels need room above their columns, and to the right of the last.
  const longest = Math.max(...[...byId("columns").children].map(
    label => label.firstElementChild.offsetWidth));
  byId("columns").style.height = `${longest * .87 + cell * .6 + 4}px`;
  byId("columns").style.paddingRight = `${longest * .5}px`;
  showHead();
}

function showHead() {
  const where = `layer ${chosen.layer + 1}, ${headName(chosen.head)}`;
  byId("name").textContent = `${map().name}: ${where}`;
  byId("cells").setAttribute("aria-label", byId("name").textContent);
  for (const button of byId("heads").querySelectorAll("button")) {
    button.setAttribute("aria-pressed", button.title === where);
  }
  paint(byId("cells").firstElementChild, weights());
  showChoice();
}

function choose(row, column) {
  if (row === chosen.row && column === chosen.column) return;
  Object.assign(chosen, {row, column});
  showChoice();
}

function showChoice() {
  const {queries, keys} = map();
  const {row, column} = chosen;
  const ofRow = row === null ? null : weights()[row];
  const ofColumn = column === null ? null : weights().map(weights => weights[column]);
  byId("row").hidden = row === null;
  byId("row").style.top = `calc(var(--cell) * ${row})`;
  byId("column").hidden = column === null;
  byId("column").style.left = `calc(var(--cell) * ${column})`;
  for (const label of document.querySelectorAll(".token")) {
    label.classList.toggle("on", label.dataset.row === String(row)
      || label.dataset.column === String(column));
  }
  [...byId("keys").children].forEach((token, i) => shade(token, ofRow && ofRow[i]));
  [...byId("queries").children].forEach((token, i) =>
    shade(token, ofRow || !ofColumn ? null : ofColumn[i]));

  const number = weight => make("b", {}, (weight / PRECISION).toFixed(3));
  const strongest = (weights, axis) => weights.map((weight, i) => [weight, i])
    .sort((one, other) => other[0] - one[0]).slice(0, 4).filter(([weight]) => weight)
    .flatMap(([weight, i], place) =>
      [place ? ", " : " ", makeToken(axis, i), " ", number(weight)]);
  byId("value").replaceChildren(...(
    ofRow && ofColumn
      ? [makeToken(queries, row), " attends to ", makeToken(keys, column), " with ",
        number(ofRow[column])]
      : ofRow ? [makeToken(queries, row), " attends most to", ...strongest(ofRow, keys)]
      : [makeToken(keys, column), " is attended to most by", ...strongest(ofColumn, queries)]));
}

// ---- The page begins

for (const {label, text, lang} of data.sentences) {
  byId("sentences").append(make("dt", {}, label), make("dd", {dir: "auto", lang}, text));
}
byId("title").textContent = data.title;
document.title = `Attention maps: ${data.sentences[0].text}`;
data.maps.forEach(({name, weights}, number) => {
  weights.forEach(heads => heads.unshift(mean(heads)));
  byId("kinds").append(make("button", {
    onclick: () => {
      Object.assign(chosen, {map: number, row: 0, column: null});
      showMap();
    },
  }, name));
});
for (const weight of [0, .05, .25, .5, 1]) {
  const mark = make("span", {}, String(weight));
  mark.style.left = `${Math.sqrt(weight) * 100}%`;
  byId("legend").lastElementChild.append(mark);
}

document.addEventListener("pointerover", ({target}) => {
  const token = target.closest("[data-row], [data-column]");
  if (token?.dataset.row) choose(Number(token.dataset.row), null);
  if (token?.dataset.column) choose(null, Number(token.dataset.column));
});
byId("cells").addEventListener("pointermove", event => {
  const {offsetWidth, offsetHeight} = byId("cells");
  const rows = weights().length, columns = weights()[0].length;
  choose(
    Math.max(0, Math.min(rows - 1, Math.floor(event.offsetY / offsetHeight * rows))),
    Math.max(0, Math.min(columns - 1, Math.floor(event.offsetX / offsetWidth * columns))));
});
byId("cells").addEventListener("keydown", event => {
  const [down, right] = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1],
    ArrowRight: [0, 1]}[event.key] ?? [0, 0];
  if (!down && !right) return;
  event.preventDefault();
  choose(
    Math.max(0, Math.min(weights().length - 1, (chosen.row ?? 0) + down)),
    Math.max(0, Math.min(weights()[0].length - 1, (chosen.column ?? 0) + right)));
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  readColours();
  showMap();
});

readColours();
// The last layer but one is the nearest to an alignment of words, of cross-attention.
chosen.layer = Math.max(map().weights.length - 2, 0);
showMap();

// ---- In a frame, such as that of a report, the page around it is told how high this one is

if (parent !== window) {
  const post = () => parent.postMessage({height: document.documentElement.offsetHeight}, "*");
  new ResizeObserver(post).observe(document.body);
  post();  // a frame that is not in view observes nothing
}
