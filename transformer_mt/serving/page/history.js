// The last translations: they stay in this browser. A panel shows them, opens one again and deletes.

import { button, icon } from "./elements.js";
import { direction, isEdited } from "./text.js";
import { language, languageName, word } from "./words.js";

const MOST = 50; // translations
const SHOWN = 300; // characters of a text in the panel
const STORED = "transformer_mt.history";
const OFF = "transformer_mt.history.off";

const panel = document.getElementById("history");
const list = panel.querySelector("ul");
const on = document.getElementById("history-on");
const clear = document.getElementById("history-clear");

let kept = ""; // what was kept last, so that it does not come back when it is deleted
let reopen = () => {};
let canReopen = () => true;

const isOff = () => stored(OFF) !== null;

/** Calls a function with the translation that is opened again, if another one says that it can be. */
export function onReopen(callback, test) {
  reopen = callback;
  canReopen = test;
}

/**
 * Keeps a translation: {model, source_lang, target_lang, text, translation}. It replaces the newest
 * one if that became this one while it was typed.
 */
export function keep(entry) {
  const same = JSON.stringify(entry);
  if (isOff() || same === kept) return;
  kept = same;
  const isSame = (other) => other.model === entry.model && other.text === entry.text;
  const [newest, ...older] = all();
  const isReplaced = newest?.model === entry.model && isEdited(entry.text, newest.text);
  const others = newest && !isReplaced ? [newest, ...older] : older;
  store([{ time: Date.now(), ...entry }, ...others.filter((other) => !isSame(other))]);
}

/** All translations that are kept, the newest first. */
function all() {
  try {
    const found = JSON.parse(stored(STORED));
    return Array.isArray(found) ? found.filter((entry) => typeof entry?.text === "string") : [];
  } catch {
    return [];
  }
}

function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function store(entries) {
  for (let most = MOST; most; most >>= 1) {
    try {
      localStorage.setItem(STORED, JSON.stringify(entries.slice(0, most)));
      return;
    } catch {
      // The browser has no room for so many, or stores nothing.
    }
  }
}

// ---- The panel ----

function show() {
  const entries = all();
  list.replaceChildren(...entries.map(item));
  on.checked = !isOff();
  document.getElementById("history-empty").hidden = entries.length > 0;
  clear.hidden = !entries.length;
  askFirst(false);
}

function item(entry, index) {
  const { time, model, source_lang, target_lang, text, translation } = entry;
  const pair = [languageName(source_lang), languageName(target_lang)];
  const when = new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" });
  const about = document.createElement("span");
  about.className = "quiet";
  about.textContent = canReopen(entry)
    ? `${pair.join(" → ")} · ${when.format(time)}`
    : word("no_pair", ...pair);
  const open = button("open", about, part(text, source_lang), part(translation, target_lang));
  open.disabled = !canReopen(entry);
  open.title = model;
  open.addEventListener("click", () => {
    panel.close();
    reopen(entry);
  });
  const remove = button("delete", icon("delete"));
  remove.setAttribute("aria-label", word("history_delete", text.slice(0, 50)));
  remove.addEventListener("click", () => {
    store(all().filter((other) => other.time !== time || other.text !== text));
    show();
    const rest = list.querySelectorAll(".delete");
    (rest[Math.min(index, rest.length - 1)] ?? on).focus();
  });
  const element = document.createElement("li");
  element.append(open, remove);
  return element;
}

function part(text, code) {
  const element = document.createElement("bdi");
  element.lang = code;
  element.dir = direction(code);
  element.textContent = String(text).slice(0, SHOWN);
  return element;
}

/** The button that deletes all asks first, and deletes when it is pressed again. */
function askFirst(isAsking) {
  clear.textContent = isAsking ? word("history_sure", list.children.length) : word("history_clear");
  clear.dataset.asks = isAsking;
}

clear.addEventListener("click", () => {
  if (clear.dataset.asks !== "true") return askFirst(true);
  store([]);
  show();
  on.focus();
});
clear.addEventListener("blur", () => askFirst(false));
on.addEventListener("change", () => {
  try {
    if (on.checked) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "1");
  } catch {
    // The browser stores nothing, and so no history either.
  }
});
document.getElementById("history-open").addEventListener("click", () => {
  show();
  panel.showModal();
});
