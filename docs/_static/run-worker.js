// Python in a worker, so that the page answers while it loads and computes. Every file of another
// host has to have the digest that pyodide.json states.
"use strict";

let python, folder;
const seen = new Map(); // pictures: name -> text

const tell = (kind, value) => postMessage({kind, value});

function verified(runtime) {
  const plain = self.fetch;
  self.fetch = (address, options) => {  // Pyodide's own, too
    const integrity = runtime.integrity[String(address).split("/").pop()];
    return plain(address, integrity ? {...options, integrity} : options);
  };
  return async (address, options) => {
    const answer = await self.fetch(address, options).catch(() => ({}));
    if (!answer.ok) throw new Error(`${address} cannot be fetched, or is not the file it should be`);
    return answer;
  };
}

async function start({runtime, wheel}) {
  const get = verified(runtime);
  const script = async name => {
    const text = await (await get(runtime.core + name)).blob();
    const address = URL.createObjectURL(new Blob([text], {type: "text/javascript"}));
    importScripts(address);
    URL.revokeObjectURL(address);
  };
  const bytes = async (address, options) => (await get(address, options)).arrayBuffer();
  tell("progress", "fetching Python, NumPy and dynbatch, 11 MB");
  // All at once. The wheel is the site's own, whose name stays while it changes.
  const ours = bytes(wheel, {cache: "no-cache"});
  const wheels = Promise.all([bytes(runtime.packages + runtime.numpy), ours]);
  wheels.catch(() => {}); // told where they are awaited
  await script("pyodide.asm.js"); // pyodide.js would load it without a digest
  await script("pyodide.js");
  python = await loadPyodide({indexURL: runtime.core, env: {HOME: "/home/pyodide"}});
  for (const archive of await wheels) python.unpackArchive(archive, "whl");
  tell("progress", "importing dynbatch");
  python.setStdout({batched: line => tell("printed", line)});
  python.setStderr({batched: line => tell("printed", line)});
  await python.runPythonAsync("import dynbatch");
  folder = python.FS.cwd();
  tell("ready");
}

function pictures() {
  for (const name of python.FS.readdir(folder).filter(name => name.endsWith(".svg"))) {
    const text = python.FS.readFile(`${folder}/${name}`, {encoding: "utf8"});
    if (seen.get(name) !== text) tell("picture", {name, text});
    seen.set(name, text);
  }
}

async function run({code, name}) {
  let succeeds = true;
  try {
    await python.runPythonAsync(code, {filename: name});
  } catch (error) {
    succeeds = false;
    // Without the lines of Pyodide's, which stand above those of the block.
    const [lines, at] = [error.message.split("\n"), error.message.indexOf(`File "${name}"`)];
    const first = at < 0 ? 0 : error.message.slice(0, at).split("\n").length - 1;
    tell("printed", ["Traceback:", ...lines.slice(first)].join("\n").trimEnd());
  }
  pictures();
  tell("done", succeeds);
}

onmessage = async ({data}) => {
  try {
    await (data.code === undefined ? start(data) : run(data));
  } catch (error) {
    tell("failed", String(error.message || error));
  }
};
