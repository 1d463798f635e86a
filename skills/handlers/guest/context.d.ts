/** What a JavaScript handler of Skillbus is told about its call. Input and output types come from the contract. */

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** A handler: `export async function search(request, context)`. */
export type Handler<Input = Record<string, Json>, Output = Record<string, Json>> = (
  request: Input,
  context: CallContext,
) => Promise<Output> | Output;

export interface Entry {
  key: string;
  value: Json;
  version: number;
}

/** A memory that the contract `uses … read`. */
export interface ReadableMemory {
  get(key: string): Promise<Entry | null>;
  list(prefix?: string, limit?: number, after?: string): Promise<{ key: string; version: number }[]>;
  search(text: string, limit?: number): Promise<Entry[]>;
}

/** A memory that the contract `uses … write`. With `version`, only over that one; 0: only where there is none. */
export interface WritableMemory {
  put(key: string, value: Json, version?: number | null): Promise<number>;
  delete(key: string, version?: number | null): Promise<boolean>;
}

/** What was asked for was not done: `conflict`, `denied`, `too_large`, … */
export interface Rejected extends Error {
  kind: string;
}

export interface CallContext {
  readonly callId: string;
  readonly episode: string;
  /** Unix time in seconds. */
  readonly deadline: number;
  readonly taskId: string;
  /** The service parameters of calls within this one: headers over HTTP. */
  readonly onward: Readonly<Record<string, string>>;
  /** The path of the episode's worktree, where the manifest gives the tool one. */
  readonly worktree: string | null;
  /** The values of the contract's secrets, by handle; not enumerable, so that nothing prints them by accident. */
  readonly secrets: Readonly<Record<string, string>>;
  readonly memories: Readonly<Record<string, ReadableMemory & WritableMemory>>;
  /** Aborted when the call is canceled or its deadline passes. */
  readonly signal: AbortSignal;
  readonly canceled: boolean;
  /** How far the call has come: a short text, a fraction of 1, or both. */
  progress(text?: string, fraction?: number | null): Promise<void>;
  /** A part of an artifact, ahead of the result. Rejected when it is too large. */
  chunk(content: Json, artifact?: string, last?: boolean): Promise<void>;
  /** Writes into the worker's log. */
  log(text: string, level?: "debug" | "info" | "warning" | "error"): Promise<void>;
}

/** Set `retryable` on an error to say that the same call may succeed when it is sent again. */
export interface HandlerError extends Error {
  retryable?: boolean;
}
