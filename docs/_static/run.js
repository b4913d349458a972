// A page whose Python a reader can run and edit, in the browser: where `<div class="run-here">`
// stands, a button fetches Python and makes the page's blocks editors. Nothing loads before.
"use strict";

(() => {
  const here = document.currentScript.src;
  const place = document.querySelector("div.run-here");
  if (!place) return;

  const make = (tag, properties, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const button = (text, act) => make("button", {type: "button", textContent: text, onclick: act});
  const status = make("span", {className: "run-status", role: "status"});
  const begin = button("Run this page here", () => { begin.hidden = true; start(); });
  status.textContent = "It fetches Python and NumPy for browsers from cdn.jsdelivr.net, 11 MB, and starts them: " +
    "7 seconds of a recent processor. Then each block can be edited and run.";
  const every = button("Run all", () => run(blocks.length - 1));
  const stop = button("Stop", () => end("Stopped: Python begins anew, without what the blocks had made."));
  place.append(begin, status, every, stop);
  every.hidden = stop.hidden = true;

  let worker, blocks = [], waiting = [], current = null;

  async function start() {
    const since = performance.now();
    const seconds = () => ((performance.now() - since) / 1000).toFixed(1);
    status.textContent = "fetching Python …";
    try {
      const runtime = await (await fetch(new URL("pyodide.json", here), {cache: "no-cache"})).json();
      worker = new Worker(new URL("run-worker.js", here));
      const wheel = `dynbatch-${DOCUMENTATION_OPTIONS.VERSION}-py3-none-any.whl`;
      // The runtime may lie beside the site, too.
      for (const name of ["core", "packages"]) runtime[name] = new URL(runtime[name], here).href;
      worker.onerror = event => fail(event.message || "the worker ended");
      worker.onmessage = ({data: {kind, value}}) => {
        if (kind === "progress") status.textContent = `${value} … (${seconds()} s)`;
        else if (kind === "ready") {
          status.textContent = `Python is ready, after ${seconds()} s.`;
          ready();
        } else if (kind === "failed") fail(value);
        else heard(kind, value);
      };
      worker.postMessage({runtime, wheel: new URL(wheel, here).href});
    } catch (error) {
      fail(error.message);
    }
  }

  function end(text) {
    if (worker) worker.terminate();
    [waiting, current] = [[], null];
    status.textContent = text;
    begin.textContent = "Start again";
    [begin.hidden, every.hidden, stop.hidden] = [false, true, true];
    for (const block of blocks) {
      block.button.disabled = true;
      block.output.classList.remove("run-busy");
    }
  }

  function fail(why) {
    end(`Python could not be loaded here: ${why}. ` + (location.protocol === "file:"
      ? "A browser needs a web server for it: python -m http.server -d build/docs"
      : "The page's code runs on a computer with dynbatch installed, too."));
    status.classList.add("run-failed");
  }

  function ready() {
    status.classList.remove("run-failed");
    if (!blocks.length) blocks = [...document.querySelectorAll("div.highlight-python")].map(editor);
    every.hidden = stop.hidden = false;
    for (const block of blocks) Object.assign(block, {ran: false}).button.disabled = false;
  }

  function editor(element, number) {
    const code = element.querySelector("pre").textContent.trimEnd();
    const text = make("textarea", {value: code, spellcheck: false, rows: code.split("\n").length});
    text.setAttribute("aria-label", `code of block ${number + 1}`);
    text.onkeydown = event => {
      if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey)) return;
      event.preventDefault();
      run(number);
    };
    const output = make("div", {className: "run-output"});
    const block = {text, output, ran: false};
    block.button = button("Run", () => run(number));
    block.button.title = "Shift+Enter; blocks above that have not run come first";
    element.replaceWith(make("div", {className: "run-block"}, text, block.button, output));
    return block;
  }

  function run(last) {
    const before = [...blocks.keys()].filter(k => k < last && !blocks[k].ran);
    for (const number of [...before, last]) if (!waiting.includes(number)) waiting.push(number);
    next();
  }

  function next() {
    if (current !== null || !waiting.length) return;
    current = waiting.shift();
    const block = blocks[current];
    block.output.replaceChildren();
    block.output.classList.add("run-busy");
    worker.postMessage({code: block.text.value, name: `block ${current + 1}`});
  }

  function heard(kind, value) {
    const {output} = blocks[current];
    if (kind === "printed") {
      if (output.lastChild?.tagName !== "PRE") output.append(make("pre"));
      output.lastChild.textContent += `${value}\n`;
    } else if (kind === "picture") {
      const image = new Blob([value.text], {type: "image/svg+xml"});
      output.append(make("img", {src: URL.createObjectURL(image), alt: value.name}));
    } else {
      output.classList.remove("run-busy");
      blocks[current].ran = value;
      if (!value) waiting = [];
      current = null;
      next();
    }
  }
})();
