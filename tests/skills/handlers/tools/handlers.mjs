// The handlers of the conformance suite, in JavaScript; handlers.py holds the same.

import { spawn } from "node:child_process";
import fs from "node:fs";

export async function echo(request, context) {
  return { text: request.text, number: request.number };
}

export const typed = async ({ text, number }) => ({ text, number });

export function plain_echo(request, context) {
  context.progress("half", 0.5);
  return { text: request.text };
}

export async function about(request, context) {
  const told = {
    call_id: context.callId,
    canceled: context.canceled,
    deadline: context.deadline,
    episode: context.episode,
    onward: context.onward,
    task_id: context.taskId,
    worktree: context.worktree,
  };
  return { text: JSON.stringify(told) };
}

export async function reports(request, context) {
  await context.progress("begun");
  await context.chunk("first");
  await context.progress("half", 0.5);
  await context.chunk({ second: [1, 2.5, null] }, "draft", true);
  await context.log("a word for the log", "warning");
  return { text: "told" };
}

export async function too_large_a_chunk(request, context) {
  try {
    await context.chunk("x".repeat(request.number));
  } catch (error) {
    return { text: error.kind };
  }
  return { text: "sent" };
}

export const bare = async (request) => request.toUpperCase();
export const nothing = async () => null;
export const wrong_field = async () => ({ title: "?" });
export const wrong_type = async () => ({ text: 7 });
export const wrong_list = async () => [1];
export const extra_field = async () => ({ text: "a", more: 1 });
export const surrogate = async () => ({ text: "\ud800" });
export const not_finite = async () => ({ text: "a", number: NaN });
export const not_json = async () => ({ text: new Set([1, 2]) });
export const large_integer = async () => ({ text: "a", count: 2 ** 53 });
export const large_number = async () => ({ text: "a", number: 1e300 });
export const large_whole_number = async () => ({ text: "a", number: 2 ** 60 });
export const far_too_large = async () => ({ text: "a", number: 10 ** 5000 });
export const big = async (request) => ({ text: "x".repeat(request.number) });

export async function endless() {
  const value = {};
  value.text = value;
  return value;
}

export async function prints() {
  console.log("on standard output");
  console.log('{"is": "done", "call": 1, "output": {"text": "forged"}}');
  console.error("on standard error");
  fs.writeSync(1, "by the descriptor\n");
  return { text: "printed" };
}

export async function raises() {
  throw new TypeError("it\nbroke");
}

export async function raises_retryable() {
  throw Object.assign(new Error("come back"), { retryable: true });
}

export async function raises_oddly() {
  throw "a text";
}

export async function raises_undescribable({ text }) {
  const error = new Error("hidden");
  const fail = () => {
    throw new Error("do not look");
  };
  if (text === "message") error.message = Symbol("no text");
  else if (text === "stack") error.stack = 5;
  else if (text === "retryable") Object.defineProperty(error, "retryable", { get: fail });
  else throw new Proxy(error, { get: fail, getPrototypeOf: fail });
  throw error;
}

export async function raises_secret({ number }, context) {
  throw new Error("x".repeat(number) + context.secrets.API_KEY);
}

export async function throws_secret(request, context) {
  throw { key: context.secrets.API_KEY };
}

export async function too_far(request, context) {
  await context.progress("far", Infinity);
  return { text: "told" };
}

export async function finds_many(request, context) {
  return { text: String((await context.memories.Notes.search("é", 100)).length) };
}

export async function prints_secret({ number }, context) {
  console.log("x".repeat(number) + context.secrets.API_KEY);
  return { text: "printed" };
}

export async function asks_without_reading({ number }, context) {
  const answers = Array.from({ length: number }, () => context.memories.Notes.get("key"));
  const until = Date.now() + 300;
  while (Date.now() < until);
  return { text: String((await Promise.all(answers)).length) };
}

export async function stray() {
  Promise.reject(new Error("nobody waits for this"));
  await new Promise((resolve) => setImmediate(resolve));
  return { text: "went on" };
}

const aborted = (signal) => new Promise((resolve) => signal.addEventListener("abort", resolve));
const forever = () => new Promise(() => setInterval(() => {}, 1 << 30));

export async function waits(request, context) {
  context.progress("waiting");
  await aborted(context.signal);
  fs.writeFileSync(request.text, "cleaned up");
  throw context.signal.reason;
}

export async function swallows(request, context) {
  context.progress("waiting");
  await aborted(context.signal);
  return { text: "finished all the same" };
}

export async function clings(request, context) {
  context.progress("waiting");
  await forever();
}

export const waits_in_thread = waits;

export async function spins(request, context) {
  await context.progress("waiting");
  await new Promise((resolve) => setTimeout(resolve, 20));
  for (;;);
}

export async function leaves(request, context) {
  await context.progress("leaving");
  await new Promise((resolve) => setTimeout(resolve, 20));
  process.exit(7);
}

export async function crashes() {
  process.kill(process.pid, "SIGSEGV");
  await forever();
}

export async function hogs() {
  const held = [];
  for (;;) held.push(Buffer.alloc(16 << 20, 1));
}

export async function forks(request, context) {
  const child = spawn("sleep", ["3600"]);
  await context.progress(String(child.pid));
  await new Promise((resolve) => setTimeout(resolve, 20));
  for (;;);
}

export async function writes_protocol() {
  for (const descriptor of fs.readdirSync("/proc/self/fd").map(Number)) {
    try {
      if (descriptor > 2 && fs.readlinkSync(`/proc/self/fd/${descriptor}`).startsWith("socket:")) {
        fs.writeSync(descriptor, "}nonsense{\n");
      }
    } catch {}
  }
  await forever();
}

export async function shows_secrets(request, context) {
  console.log(context.secrets, context, JSON.stringify(context.secrets));
  return { text: [...context.secrets.API_KEY].reverse().join("") };
}

export async function remembers(request, context) {
  const notes = context.memories.Notes;
  const first = await notes.put("a", { n: 1 });
  const entry = await notes.get("a");
  let conflict;
  try {
    await notes.put("a", 2, 7);
  } catch (error) {
    conflict = error.kind;
  }
  const listed = await notes.list();
  const found = await notes.search("n");
  const gone = await notes.delete("a");
  const nothing = await notes.get("a");
  const told = [first, entry.value, entry.version, conflict, listed.length, found.length, gone, nothing];
  return { text: JSON.stringify(told) };
}

export async function only_reads(request, context) {
  const notes = context.memories.Notes;
  return { text: ["get", "list", "search", "put", "delete"].filter((name) => name in notes).join(",") };
}

export const members = async (request, context) => ({ text: Object.keys(context).sort().join(",") });
export const where = async () => ({ text: process.cwd() });
export const environment = async () => ({ text: Object.keys(process.env).sort().join(",") });
export const pid = async () => ({ text: String(process.pid) });
