// The loop of a JavaScript host: calls come over one socket, and what comes of them goes back over it.

import { spawnSync } from "node:child_process";
import net from "node:net";
import { pathToFileURL } from "node:url";
import { inspect } from "node:util";

const [descriptor, folder, file, name, limit] = process.argv.slice(2);
const LIMIT = Number(limit);
const connection = new net.Socket({ fd: Number(descriptor), readable: true, writable: true });

class Rejected extends Error {
  constructor(kind, message) {
    super(message);
    this.name = "Rejected";
    this.kind = kind;
  }
}

class WrongOutput extends Error {}

const line = (message) => JSON.stringify(message) + "\n";

function send(text) {
  return new Promise((resolve) => {
    if (connection.write(text)) resolve();
    else connection.once("drain", resolve);
  });
}

/** The value as plain JSON; throws WrongOutput, which names the path, for what JSON.stringify would change silently. */
function plain(value, path) {
  if (value !== null && typeof value === "object" && typeof value.toJSON === "function") {
    throw new WrongOutput(`the output is wrong: ${path || "it"} is ${value.constructor?.name ?? "an object"}, which is not JSON`);
  }
  switch (typeof value) {
    case "string":
    case "boolean":
      return value;
    case "number":
      if (!Number.isFinite(value)) {
        throw new WrongOutput(`the output is wrong: ${path || "it"} is a number that is not finite`);
      }
      return value;
    case "object":
      if (value === null) return value;
      if (Array.isArray(value)) return Array.from(value, (each, index) => plain(each, `${path}[${index}]`));
      if (value instanceof Map || value instanceof Set || ArrayBuffer.isView(value) || value instanceof Promise) break;
      return Object.fromEntries(
        Object.entries(value)
          .filter(([, each]) => each !== undefined)
          .map(([key, each]) => [key, plain(each, path ? `${path}.${key}` : key)]),
      );
  }
  const kind = value === null || typeof value !== "object" ? typeof value : value.constructor.name;
  throw new WrongOutput(`the output is wrong: ${path || "it"} is ${kind}, which is not JSON`);
}

/** What an error is and where it came up. Its text is whole, as a cut could leave a part of a secret. */
function told(error) {
  try {
    if (!(error instanceof Error)) return { text: `Error: ${inspect(error, { maxStringLength: null })}`, where: "" };
    const text = `${error.constructor?.name ?? error.name}: ${error.message}`;
    const frames = typeof error.stack === "string" ? error.stack.split("\n") : [];
    const frame = frames.find((each) => each.includes("file://") && !each.includes("/guest/host.mjs"));
    const where = frame?.match(/([^/\\]+:\d+):\d+\)?\s*$/);
    return { text, where: where ? ` (${where[1]})` : "" };
  } catch {
    return { text: "Error: it can't be described", where: "" };
  }
}

function described(error) {
  const { text, where } = told(error);
  return (text + where).split(/\s+/).join(" ");
}

/** What a handler's error comes to; looking at it runs code of the handler's, which may throw again. */
function failure(error) {
  try {
    if (error instanceof WrongOutput) return { is: "failed", text: error.message, retryable: false };
    const overflow = error instanceof RangeError && /call stack/.test(error.message);
    return { is: "failed", ...told(error), retryable: !overflow && error?.retryable === true };
  } catch {
    return { is: "failed", ...told(error), retryable: false };
  }
}

const asked = new Map();
let questions = 0;

function ask(call, message) {
  const question = ++questions;
  const text = line({ ...message, is: "ask", call, question });
  const bytes = Buffer.byteLength(text);
  if (bytes > LIMIT) return Promise.reject(new Rejected("too_large", `it takes ${bytes} bytes; the limit is ${LIMIT}`));
  return new Promise((resolve, reject) => {
    asked.set(question, { call, resolve, reject });
    connection.write(text);
  });
}

function memoryOf(call, name, modes) {
  const operation = (kind, values) => ask(call, { memory: name, operation: kind, arguments: values });
  const reading = {
    get: (key) => operation("get", { key }),
    list: (prefix = "", limit = 100, after = "") => operation("list", { prefix, limit, after }),
    search: (text, limit = 10) => operation("search", { text, limit }),
  };
  const writing = {
    put: async (key, value, version = null) => operation("put", { key, value: sent(value), version }),
    delete: (key, version = null) => operation("delete", { key, version }),
  };
  return Object.freeze({ ...(modes.includes("read") && reading), ...(modes.includes("write") && writing) });
}

/** What a handler sends, as plain JSON; throws Rejected. */
function sent(value) {
  try {
    return plain(value, "");
  } catch (error) {
    throw new Rejected("invalid", `it is not JSON: ${error.message}`);
  }
}

/** The secrets as properties that neither console.log nor JSON.stringify shows. */
function hidden(values) {
  const held = {};
  for (const [handle, value] of Object.entries(values)) Object.defineProperty(held, handle, { value, enumerable: false });
  return Object.freeze(held);
}

function contextOf(call, given, signal) {
  const memories = Object.entries(given.memories).map(([each, modes]) => [each, memoryOf(call, each, modes)]);
  const context = {
    callId: given.call_id,
    episode: given.episode,
    deadline: given.deadline,
    taskId: given.task_id,
    onward: given.onward,
    worktree: given.worktree,
    secrets: hidden(given.secrets),
    memories: Object.freeze(Object.fromEntries(memories)),
    signal,
    get canceled() {
      return signal.aborted;
    },
    progress: (text = "", fraction = null) => send(line({ is: "progress", call, text: String(text), fraction })),
    chunk: async (content, artifact = "progress", last = false) =>
      ask(call, { chunk: sent(content), artifact, last }),
    log: (text, level = "info") => send(line({ is: "log", call, text: String(text), level })),
  };
  return Object.freeze(context);
}

const calls = new Map();

async function serve(handler, { call, input, context }) {
  const controller = new AbortController();
  calls.set(call, controller);
  let end;
  try {
    process.chdir(context.worktree ?? folder);
    const output = await handler(input, contextOf(call, context, controller.signal));
    end = controller.signal.aborted ? { is: "canceled" } : { is: "done", output: plain(output, "") };
  } catch (error) {
    end = controller.signal.aborted ? { is: "canceled" } : failure(error);
  }
  calls.delete(call);
  let text = line({ ...end, call });
  const bytes = Buffer.byteLength(text);
  if (bytes > LIMIT) {
    const what = end.is === "done" ? "output" : "error's text";
    text = line({ is: "failed", call, text: `the ${what} takes ${bytes} bytes; the limit is ${LIMIT}`, retryable: false });
  }
  await send(text);
}

function answered({ question, answer, rejected, text }) {
  const waiting = asked.get(question);
  asked.delete(question);
  if (waiting === undefined) return;
  if (rejected !== undefined) waiting.reject(new Rejected(rejected, text));
  else waiting.resolve(answer);
}

function cancel(call) {
  const reason = new DOMException("the call is canceled", "AbortError");
  calls.get(call)?.abort(reason);
  for (const [question, waiting] of asked) {
    if (waiting.call !== call) continue;
    asked.delete(question);
    waiting.reject(reason);
  }
}

function lastWords(message) {
  connection.write(line(message), () => process.exit(1));
}

process.on("unhandledRejection", (reason) => {
  console.error(`a promise was rejected and nobody awaits it: ${described(reason)}`);
});
process.on("uncaughtException", (error) => {
  const [call] = calls.keys();
  console.error(`uncaught: ${described(error)}`);
  if (call === undefined) process.exit(1);
  lastWords({ is: "failed", call, ...told(error), retryable: false, broken: true });
});

async function load() {
  if (Number(process.versions.node.split(".")[0]) < 20) {
    throw new Error(`Node 20 or newer is needed, this is ${process.version}`);
  }
  const module = await import(pathToFileURL(file).href);
  const handler = module[name];
  if (typeof handler !== "function") throw new Error(`it exports no function ${name}`);
  return handler;
}

/** Where a module can't be parsed: a caught error does not tell, so that Node is asked to look at the file again. */
function unparsed(error) {
  const [first] = String(error.stack).split("\n");
  const said = first.startsWith("file://")
    ? first
    : spawnSync(process.execPath, ["--check", file], { encoding: "utf8", timeout: 5000 }).stderr?.split("\n")[0];
  const where = said?.match(/([^/\\]+:\d+)$/);
  return where ? ` (${where[1]})` : "";
}

let pieces = [];

function receive(handler, chunk) {
  let rest = chunk;
  for (let at = rest.indexOf(10); at >= 0; at = rest.indexOf(10)) {
    const message = JSON.parse(Buffer.concat([...pieces, rest.subarray(0, at)]).toString("utf8"));
    pieces = [];
    rest = rest.subarray(at + 1);
    if (message.do === "call") serve(handler, message);
    else if (message.do === "cancel") cancel(message.call);
    else if (message.do === "answer") answered(message);
  }
  if (rest.length > 0) pieces.push(rest);
}

connection.on("end", () => process.exit(0));
connection.on("error", () => process.exit(1));
try {
  const handler = await load();
  connection.on("data", (chunk) => receive(handler, chunk));
  await send(line({ is: "ready" }));
} catch (error) {
  let text = described(error);
  if (error instanceof SyntaxError) text += unparsed(error);
  lastWords({ is: "unloadable", text: `${file.split("/").pop()}#${name} can't be loaded: ${text}` });
}
