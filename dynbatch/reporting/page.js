"use strict";
const bars = Array.from(document.querySelectorAll("#timeline .bar"))
  .sort((a, b) => start(a) - start(b));
const detail = document.getElementById("detail");
const heads = Array.from(document.querySelectorAll("#batches th")).map(th => th.textContent);
const lines = document.querySelector(".lines");
let kept = null, zoom = 1;

function start(bar) { return parseFloat(bar.style.left); }

function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

function rowOf(bar) { return document.getElementById("batch-" + bar.dataset.step); }

function show(bar) {
  const list = document.createElement("dl"), row = rowOf(bar);
  const entries = [["what", bar.dataset.what]];
  if (row) heads.forEach((head, i) => entries.push([head, row.cells[i].textContent]));
  for (const [name, value] of entries) {
    const entry = document.createElement("div");
    entry.append(element("dt", name), element("dd", value || "–"));
    list.append(entry);
  }
  detail.replaceChildren(list);
}

function keep(bar) {
  if (kept) {
    kept.setAttribute("aria-pressed", "false");
    rowOf(kept)?.classList.remove("chosen");
  }
  kept = bar === kept ? null : bar;
  if (kept) {
    kept.setAttribute("aria-pressed", "true");
    rowOf(kept)?.classList.add("chosen");
    show(kept);
  }
}

function go(bar) {
  if (!bar) return;
  for (const one of bars) one.tabIndex = one === bar ? 0 : -1;
  bar.focus();
  bar.scrollIntoView({block: "nearest", inline: "nearest"});
}

function inLine(bar, step) {
  let line = bar.closest(".line");
  do line = step > 0 ? line.nextElementSibling : line.previousElementSibling;
  while (line && !line.querySelector(".bar"));
  if (!line) return null;
  const distance = one => Math.abs(start(one) - start(bar));
  return Array.from(line.querySelectorAll(".bar")).reduce((a, b) => distance(b) < distance(a) ? b : a);
}

function widen(factor) {
  zoom = Math.min(1024, Math.max(1, zoom * factor));
  lines.style.setProperty("--zoom", zoom);
}

bars.forEach((bar, place) => {
  bar.tabIndex = place ? -1 : 0;
  bar.addEventListener("focus", () => show(bar));
  bar.addEventListener("pointerenter", () => show(bar));
  bar.addEventListener("pointerleave", () => { if (kept) show(kept); });
  bar.addEventListener("click", () => { go(bar); keep(bar); });
  bar.addEventListener("keydown", event => {
    const target = {
      ArrowRight: () => bars[place + 1], ArrowLeft: () => bars[place - 1],
      ArrowDown: () => inLine(bar, 1), ArrowUp: () => inLine(bar, -1),
      Home: () => bars[0], End: () => bars[bars.length - 1],
    }[event.key];
    if (target) { event.preventDefault(); go(target()); }
  });
});
document.getElementById("wider").addEventListener("click", () => widen(2));
document.getElementById("narrower").addEventListener("click", () => widen(0.5));
