// Drives the codespace binary with the official TypeScript SDK, over stdio and Streamable HTTP.
//
// usage: node loop.mjs PATH-TO-CODESPACE
//
// Ends with "N passed, M failed"; the exit code is 1 when a check failed.

import { execFileSync, spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const BINARY = resolve(process.argv[2] ?? "target/debug/codespace");
const FILES = 1000;
let passed = 0;
let failed = 0;
let label = "";

// The SDK's validator warns of every `format` it does not know, once per schema; they are counted, not printed.
let unknownFormats = 0;
const { warn } = console;
console.warn = (...words) => {
  if (String(words[0]).startsWith("unknown format")) unknownFormats += 1;
  else warn(...words);
};

function check(name, condition, seen) {
  if (condition) {
    passed += 1;
  } else {
    failed += 1;
    console.log(`FAIL ${label}: ${name}\n     saw: ${JSON.stringify(seen)}`);
  }
}

const add = (path, text) => `*** Begin Patch\n*** Add File: ${path}\n+${text}\n*** End Patch\n`;
const update = (path, from, to) => `*** Begin Patch\n*** Update File: ${path}\n@@\n-${from}\n+${to}\n*** End Patch\n`;

function repository(folder) {
  for (let n = 0; n < FILES - 1; n += 1) {
    const place = join(folder, "src", `m${n % 40}`);
    mkdirSync(place, { recursive: true });
    writeFileSync(join(place, `file${n}.txt`), `file ${n}\nsecond line\n`);
  }
  writeFileSync(join(folder, "README.md"), "# demo\n\nhello\n");
  const git = (...rest) => execFileSync("git", ["-C", folder, "-c", "user.name=t", "-c", "user.email=t@example.com", ...rest]);
  git("init", "-q");
  git("add", ".");
  git("commit", "-qm", "start");
}

async function ok(client, name, args) {
  const result = await client.callTool({ name, arguments: args });
  if (result.isError || !result.structuredContent) throw new Error(`${name} answered ${JSON.stringify(result)}`);
  return result.structuredContent;
}

async function refused(client, name, code, tool, args) {
  try {
    const result = await client.callTool({ name: tool, arguments: args });
    let body = result.structuredContent;
    if (!body) {
      try {
        body = JSON.parse(result.content[0].text);
      } catch {
        body = {};
      }
    }
    check(name, result.isError === true && body.code === code, result);
    return body;
  } catch (error) {
    check(name, false, String(error));
    return {};
  }
}

async function protocolError(client, name, words, tool, args) {
  try {
    check(name, false, await client.callTool({ name: tool, arguments: args }));
  } catch (error) {
    const seen = `${error.code} ${error.message} ${JSON.stringify(error.data)}`;
    check(name, error.code < 0 && seen.includes(words), seen);
  }
}

async function output(client, process_id) {
  let text = "";
  let cursor = 0;
  const ends = Date.now() + 30_000;
  while (Date.now() < ends) {
    const part = await ok(client, "read_process", { process_id, cursor, wait_ms: 2000 });
    text += part.chunk;
    cursor = part.cursor;
    if (part.eof) return text;
  }
  throw new Error(`no eof; read ${JSON.stringify(text)}`);
}

async function exited(client, process_id) {
  const ends = Date.now() + 30_000;
  for (;;) {
    const status = await ok(client, "process_status", { process_id, wait_ms: 2000 });
    if (status.state === "exited" || Date.now() > ends) return status;
  }
}

async function wholeLoop(client, folder) {
  const workspace_id = "demo";
  // Listing also makes the SDK validate every later result against the tool's output schema.
  const { tools } = await client.listTools();
  check("the tools are listed", tools.some((tool) => tool.name === "apply_patch"), tools.map((tool) => tool.name));
  const info = await ok(client, "workspace_info", { workspace_id });
  check("workspace_info answers", info.internal_model_calls === false, info);
  const found = await ok(client, "find", { workspace_id, glob: "**/*.txt" });
  check("find sees every text file", found.paths.length === FILES - 1 && found.truncated === false, found.paths.length);
  const readme = await ok(client, "read", { workspace_id, path: "README.md" });
  check("read gives the content", readme.content === "# demo\n\nhello\n", readme);

  const patch = update("README.md", "hello", "goodbye");
  const preview = await ok(client, "apply_patch", { workspace_id, patch, check_only: true });
  check("check_only is checked", preview.status === "checked", preview);
  check("check_only writes nothing", readFileSync(join(folder, "README.md"), "utf8").includes("hello"));
  const call = { workspace_id, patch, operation_key: "key-1", expected_versions: { "README.md": readme.version } };
  const applied = await ok(client, "apply_patch", call);
  check("the patch is applied", applied.status === "applied" && applied.replayed === false, applied);
  const back = await ok(client, "read", { workspace_id, path: "README.md" });
  check("read back", back.content === "# demo\n\ngoodbye\n" && back.version === applied.changes[0].after_version, back);
  const again = await ok(client, "apply_patch", call);
  check("the same key replays", again.replayed === true && again.operation_id === applied.operation_id, again);
  await refused(client, "other arguments conflict", "OPERATION_KEY_CONFLICT", "apply_patch", { ...call, patch: add("other.txt", "x") });
  const status = await ok(client, "operation_status", { operation_key: "key-1" });
  check("operation_status by key", status.status === "applied" && status.operation_id === applied.operation_id, status);

  const echo = await ok(client, "exec_command", { workspace_id, command: ["sh", "-c", "echo hi; exit 3"] });
  const text = await output(client, echo.process_id);
  check("the output until eof", text === "hi\n", text);
  const end = await exited(client, echo.process_id);
  check("the exit code is 3", end.termination === "exited" && end.exit_code === 3, end);
  const cat = await ok(client, "exec_command", { workspace_id, command: ["cat"] });
  const wrote = await ok(client, "write_stdin", { process_id: cat.process_id, data: "to cat\n", close: true });
  check("stdin is taken", wrote.ok === true && wrote.written === 7, wrote);
  const echoed = await output(client, cat.process_id);
  check("cat gives it back", echoed === "to cat\n", echoed);
  await exited(client, cat.process_id);
  const sleep = await ok(client, "exec_command", { workspace_id, command: ["sleep", "600"] });
  await refused(client, "a patch during a command is busy", "WORKSPACE_BUSY", "apply_patch", { workspace_id, patch: add("busy.txt", "x") });
  const ended = await ok(client, "terminate_process", { process_id: sleep.process_id });
  check("terminate_process", ended.ok === true, ended);
  const gone = await exited(client, sleep.process_id);
  check("it was terminated", gone.termination === "terminated", gone);

  await refused(client, "..", "PATH_ESCAPE", "read", { workspace_id, path: "../x" });
  await refused(client, "a missing file", "FILE_NOT_FOUND", "read", { workspace_id, path: "no/such.txt" });
  await protocolError(client, "an unknown tool is a JSON-RPC error", "tool", "no_such_tool", {});
  await protocolError(client, "a missing argument is named", "path", "read", { workspace_id });
}

function environment(home) {
  const kept = Object.entries(process.env).filter(([name]) => !name.startsWith("CODESPACE_"));
  return { ...Object.fromEntries(kept), XDG_STATE_HOME: home, CODESPACE_ADMIN__LISTEN: "" };
}

async function serve(folder, home) {
  const args = ["serve", "--listen", "127.0.0.1:0", "--workspace", `demo=${folder}`];
  const server = spawn(BINARY, args, { stdio: ["ignore", "ignore", "pipe"], env: environment(home) });
  const url = await new Promise((done, fail) => {
    const lines = [];
    setTimeout(() => fail(new Error(`no listening line within 20 s: ${lines.join("\n")}`)), 20_000).unref();
    server.on("error", fail);
    server.on("exit", (code) => fail(new Error(`the server ended with ${code}: ${lines.join("\n")}`)));
    createInterface({ input: server.stderr }).on("line", (line) => {
      lines.push(line);
      const found = /listening\s+(http:\/\/\S+)/.exec(line);
      if (found) done(found[1]);
    });
  });
  return { server, url: new URL(url) };
}

async function overTransport(kind, folder, home) {
  let server;
  let transport;
  if (kind === "stdio") {
    const args = ["stdio", "--workspace", `demo=${folder}`];
    transport = new StdioClientTransport({ command: BINARY, args, env: environment(home), stderr: "ignore" });
  } else {
    const started = await serve(folder, home);
    server = started.server;
    transport = new StreamableHTTPClientTransport(started.url);
  }
  const client = new Client({ name: "codespace-ts-test", version: "1.0.0" });
  try {
    await client.connect(transport);
    await wholeLoop(client, folder);
  } finally {
    await client.close().catch(() => {});
    server?.kill("SIGKILL");
  }
}

for (const kind of ["stdio", "http"]) {
  label = `ts ${kind}`;
  const before = passed;
  const place = mkdtempSync(join(tmpdir(), "codespace-ts-"));
  const [folder, home] = [join(place, "demo"), join(place, "state")];
  mkdirSync(folder);
  mkdirSync(home);
  repository(folder);
  try {
    await overTransport(kind, folder, home);
  } catch (error) {
    check("the loop ran to its end", false, error.stack ?? String(error));
  } finally {
    rmSync(place, { recursive: true, force: true });
  }
  console.log(`${label}: ${passed - before} checks passed`);
}
if (unknownFormats) console.log(`note: the SDK warned ${unknownFormats} times of a "format" it does not know in the tools' schemas`);
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
