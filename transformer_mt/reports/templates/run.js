"use strict";

// ---- Figures over steps or over time

for (const button of document.querySelectorAll("[data-axis]")) {
  button.addEventListener("click", () => {
    document.body.dataset.axis = button.dataset.axis;
    for (const other of document.querySelectorAll("[data-axis]:is(button)")) {
      other.setAttribute("aria-pressed", other === button);
    }
  });
}

// ---- Sentences: searched, ordered, and shown some at a time

const AT_ONCE = 20;
const ORDERS = {
  worst: (one, other) => one.score - other.score,
  best: (one, other) => other.score - one.score,
  line: (one, other) => one.line - other.line,
  length: (one, other) => other.length - one.length,
  spread: (one, other) => other.spread - one.spread,
};

for (const part of document.querySelectorAll(".sentences")) {
  const [search, order] = part.querySelectorAll("input, select");
  const status = part.querySelector("[role=status]");
  const more = part.querySelector(".more");
  const sentences = [...part.querySelectorAll(".pair")].map(element => {
    const text = [...element.querySelectorAll("dd")].map(dd => dd.textContent).join("\n");
    const {line, score, spread} = element.dataset;
    return {element, text: text.toLowerCase(), length: text.length,
      line: Number(line), score: Number(score), spread: Number(spread)};
  });
  let room = AT_ONCE;

  const show = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = sentences.filter(({text}) => text.includes(wanted));
    sentences.forEach(({element}) => element.hidden = true);
    found.slice(0, room).forEach(({element}) => element.hidden = false);
    const shown = Math.min(room, found.length);
    status.textContent = `${shown} of ${found.length} sentence${found.length === 1 ? "" : "s"}`;
    more.hidden = shown === found.length;
  };
  const reorder = () => {
    sentences.sort(ORDERS[order.value]);
    more.before(...sentences.map(({element}) => element));
    show();
  };

  search.addEventListener("input", () => { room = AT_ONCE; show(); });
  order.addEventListener("change", () => { room = AT_ONCE; reorder(); });
  more.addEventListener("click", () => { room += 5 * AT_ONCE; show(); });
  part.querySelector(".tools").hidden = false;
  reorder();
}

// ---- Attention: each page is loaded when it is opened, into a frame of its height

for (const details of document.querySelectorAll("details.attention")) {
  const frame = details.querySelector("iframe");
  const load = () => {
    if (details.open && !frame.srcdoc) frame.srcdoc = frame.dataset.page;
  };
  details.addEventListener("toggle", load);
  load();
}
addEventListener("message", event => {
  for (const frame of document.querySelectorAll("iframe")) {
    const height = Number(event.data?.height);
    if (frame.contentWindow === event.source && height > 0) {
      frame.style.height = `${Math.min(height, 4000) + 4}px`;
    }
  }
});
