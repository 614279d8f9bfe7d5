"""Drives the codespace binary with the official Python SDK, over stdio and Streamable HTTP.

usage: loop.py PATH-TO-CODESPACE

Every transport is used with the baseline handshake (2025-11-25) and with the revision the SDK
prefers by itself. Ends with "N passed, M failed"; the exit code is 1 when a check failed.
"""

import asyncio
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

BINARY = str(Path(sys.argv[1] if len(sys.argv) > 1 else "target/debug/codespace").resolve())
FILES = 1000
CALL_SECONDS = 30
TOOLS = {
    "workspace_info", "read", "find", "apply_patch", "operation_status", "exec_command",
    "read_process", "write_stdin", "process_status", "terminate_process",
}  # fmt: skip

passed = 0
failures: list[str] = []
label = ""


def check(name, condition, seen=None):
    """Counts one check, and prints what was seen when it failed."""
    global passed
    if condition:
        passed += 1
    else:
        failures.append(f"{label}: {name}")
        print(f"FAIL {label}: {name}\n     saw: {seen!r}", flush=True)
    return bool(condition)


class Session:
    """One connected client: a call is either a body, an error body, or a JSON-RPC error."""

    def __init__(self, client):
        self.client = client

    async def raw(self, tool, arguments):
        async with asyncio.timeout(CALL_SECONDS):
            return await self.client.call_tool(tool, arguments)

    async def ok(self, tool, **arguments):
        result = await self.raw(tool, arguments)
        body = result.structured_content
        if result.is_error or not isinstance(body, dict):
            raise AssertionError(f"{tool} {arguments} answered {result.model_dump(exclude_none=True)}")
        text = json.loads(result.content[0].text)
        if text != body:
            raise AssertionError(f"{tool}: the text differs from structuredContent: {text} / {body}")
        return body

    async def refused(self, name, code, tool, **arguments):
        """The call must be a tool error with this code; gives its body."""
        try:
            result = await self.raw(tool, arguments)
        except MCPError as error:
            check(name, False, error)
            return {}
        body = result.structured_content
        if not isinstance(body, dict):
            try:
                body = json.loads(result.content[0].text)
            except (ValueError, AttributeError, IndexError):
                body = {}
        check(name, result.is_error and body.get("code") == code, (result.is_error, body))
        return body

    async def protocol_error(self, name, words, tool, **arguments):
        """The call must be a JSON-RPC error whose message or data has these words."""
        try:
            result = await self.raw(tool, arguments)
        except MCPError as error:
            seen = f"{error.error.code} {error.error.message} {error.error.data}"
            check(name, words in seen and error.error.code < 0, seen)
        else:
            check(name, False, result.model_dump(exclude_none=True))


def repository(folder):
    """A git repository with FILES files."""
    for n in range(FILES - 1):
        path = folder / f"src/m{n % 40:02}/file{n:04}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"file {n}\nsecond line\nthird line\n")
    (folder / "README.md").write_text("# demo\n\nhello\n")
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "start"], check=True)


def update(path, old, new):
    return f"*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch\n"


def add(path, text):
    return f"*** Begin Patch\n*** Add File: {path}\n+{text}\n*** End Patch\n"


async def output(session, process_id):
    """Everything a process writes, read until eof."""
    text, cursor, ends = "", 0, time.monotonic() + CALL_SECONDS
    while time.monotonic() < ends:
        part = await session.ok("read_process", process_id=process_id, cursor=cursor, wait_ms=2000)
        text, cursor = text + part["chunk"], part["cursor"]
        if part["eof"]:
            return text
    raise AssertionError(f"no eof within {CALL_SECONDS} s; read {text!r}")


async def exited(session, process_id):
    ends = time.monotonic() + CALL_SECONDS
    while True:
        status = await session.ok("process_status", process_id=process_id, wait_ms=2000)
        if status["state"] == "exited" or time.monotonic() > ends:
            return status


async def files(session, folder):
    found = await session.ok("find", workspace_id="demo", glob="src/m00/*.txt")
    expected = sorted(str(p.relative_to(folder)) for p in (folder / "src/m00").glob("*.txt"))
    check("find gives the matching files in byte order", found["paths"] == expected, found)
    check("find is not truncated", found["truncated"] is False, found["truncated"])
    everything = await session.ok("find", workspace_id="demo", glob="**")
    check("find skips .git", not any(p.startswith(".git/") for p in everything["paths"]))
    check("find sees every file", len(everything["paths"]) == FILES, len(everything["paths"]))

    readme = await session.ok("read", workspace_id="demo", path="README.md")
    check("read gives the content", readme["content"] == "# demo\n\nhello\n", readme)
    check("read gives utf-8", readme["encoding"] == "utf-8", readme)
    check("read gives a version", re.fullmatch(r"sha256:[0-9a-f]{64}", readme["version"]), readme)
    return readme["version"]


async def patches(session, folder, version):
    patch = update("README.md", "hello", "goodbye")
    preview = await session.ok("apply_patch", workspace_id="demo", patch=patch, check_only=True)
    check("check_only is checked", preview["status"] == "checked", preview)
    check("check_only writes nothing", "hello" in (folder / "README.md").read_text())

    call = {
        "workspace_id": "demo", "patch": patch, "operation_key": "key-1",
        "expected_versions": {"README.md": version},
    }  # fmt: skip
    applied = await session.ok("apply_patch", **call)
    check("the patch is applied", applied["status"] == "applied", applied)
    check("it is not a replay", applied["replayed"] is False, applied)
    check("it names the file", applied["files"] == ["README.md"], applied)
    change = (applied["changes"] or [{}])[0]
    check("the change is an update from the read version", change.get("kind") == "update" and change.get("before_version") == version, change)
    check("the file on disk is new", (folder / "README.md").read_text() == "# demo\n\ngoodbye\n")
    back = await session.ok("read", workspace_id="demo", path="README.md")
    check("read back gives the new content", back["content"] == "# demo\n\ngoodbye\n", back)
    check("read back gives after_version", back["version"] == change.get("after_version"), (back, change))

    again = await session.ok("apply_patch", **call)
    check("the same key replays", again["replayed"] is True, again)
    check("the replay is the same operation", again["operation_id"] == applied["operation_id"], again)
    other = {**call, "patch": add("other.txt", "x")}
    await session.refused("the key with other arguments conflicts", "OPERATION_KEY_CONFLICT", "apply_patch", **other)
    check("the conflicting patch wrote nothing", not (folder / "other.txt").exists())

    status = await session.ok("operation_status", operation_key="key-1")
    check("operation_status by key", (status["status"], status["operation_id"]) == ("applied", applied["operation_id"]), status)
    names = [event["name"] for event in status["events"]]
    check("it was minted and finished", names == ["minted", "finished"], names)
    status = await session.ok("operation_status", operation_id=applied["operation_id"])
    check("operation_status by id", status["status"] == "applied" and status["kind"] == "patch", status)

    stale = await session.refused(
        "a stale version conflicts", "VERSION_CONFLICT", "apply_patch", workspace_id="demo",
        patch=update("README.md", "goodbye", "x"), expected_versions={"README.md": version},
    )  # fmt: skip
    check("the conflict tells the current version", back["version"] in json.dumps(stale.get("details")), stale)
    check("the stale patch wrote nothing", (folder / "README.md").read_text() == "# demo\n\ngoodbye\n")
    await session.refused(
        "Add File does not overwrite", "ADD_FILE_EXISTS", "apply_patch",
        workspace_id="demo", patch=add("README.md", "x"),
    )  # fmt: skip


async def processes(session):
    started = await session.ok("exec_command", workspace_id="demo", command=["sh", "-c", "echo hi; exit 3"])
    check("the spawn is confirmed", started["dispatch_status"] == "confirmed", started)
    text = await output(session, started["process_id"])
    check("the output is read until eof", text == "hi\n", text)
    status = await exited(session, started["process_id"])
    check("it exited with 3", (status["termination"], status.get("exit_code")) == ("exited", 3), status)

    cat = await session.ok("exec_command", workspace_id="demo", command=["cat"])
    wrote = await session.ok("write_stdin", process_id=cat["process_id"], data="to cat\n", close=True)
    check("stdin takes every byte", wrote["ok"] is True and wrote["written"] == 7, wrote)
    text = await output(session, cat["process_id"])
    check("cat gives it back", text == "to cat\n", text)
    status = await exited(session, cat["process_id"])
    check("cat exited with 0", status.get("exit_code") == 0, status)
    await session.refused("a closed stdin is gone", "PROCESS_NOT_FOUND", "write_stdin", process_id=cat["process_id"], data="x")

    sleep = await session.ok("exec_command", workspace_id="demo", command=["sleep", "600"])
    busy = await session.refused("a patch during a command is busy", "WORKSPACE_BUSY", "apply_patch", workspace_id="demo", patch=add("busy.txt", "x"), operation_key="busy")
    check("a busy answer has no operation_id", "operation_id" not in busy, busy)
    await session.refused("a busy call left no record", "OPERATION_NOT_FOUND", "operation_status", operation_key="busy")
    await session.refused("a second command is busy", "WORKSPACE_BUSY", "exec_command", workspace_id="demo", command=["true"])
    readme = await session.ok("read", workspace_id="demo", path="README.md")
    check("read works during a command", readme["content"].startswith("# demo"), readme)
    began = time.monotonic()
    ended = await session.ok("terminate_process", process_id=sleep["process_id"])
    check("terminate_process answers ok, soon", ended["ok"] is True and time.monotonic() - began < 5, ended)
    status = await exited(session, sleep["process_id"])
    check("it was terminated", status["termination"] == "terminated" and status.get("exit_code") is None, status)
    ended = await session.ok("terminate_process", process_id=sleep["process_id"])
    check("terminate_process is idempotent", ended["ok"] is True, ended)
    free = await session.ok("apply_patch", workspace_id="demo", patch=add("free.txt", "x"))
    check("the workspace is free again", free["status"] == "applied", free)


async def bad_inputs(session):
    demo = {"workspace_id": "demo"}
    await session.refused("..", "PATH_ESCAPE", "read", **demo, path="../x")
    await session.refused("an absolute path", "PATH_ESCAPE", "read", **demo, path="/etc/passwd")
    await session.refused("a missing file", "FILE_NOT_FOUND", "read", **demo, path="no/such.txt")
    await session.refused("a folder", "SPECIAL_FILE_REJECTED", "read", **demo, path="src")
    await session.refused("a file as a folder", "PATH_NOT_DIRECTORY", "read", **demo, path="README.md/x")
    await session.refused("an unknown workspace", "WORKSPACE_NOT_FOUND", "read", workspace_id="nope", path="x")
    await session.refused("not a patch", "INVALID_PATCH", "apply_patch", **demo, patch="nonsense")
    await session.refused("a patch leading outside", "PATH_ESCAPE", "apply_patch", **demo, patch=add("../x", "x"))
    await session.refused("a patch in .git", "UNAUTHORIZED", "apply_patch", **demo, patch=add(".git/hooks/x", "x"))
    await session.refused("an empty command", "INVALID_COMMAND", "exec_command", **demo, command=[])
    await session.refused("no such program", "PROCESS_SPAWN_FAILED", "exec_command", **demo, command=["/no/such/program"])
    await session.refused("no such process", "PROCESS_NOT_FOUND", "process_status", process_id="nope")
    await session.refused("no identifier", "OPERATION_NOT_FOUND", "operation_status")
    await session.protocol_error("an unknown tool is a JSON-RPC error", "tool", "no_such_tool")
    await session.protocol_error("a missing argument is named", "path", "read", **demo)
    await session.protocol_error("a wrong type is named", "command", "exec_command", **demo, command="ls")
    await session.refused("the server lives on", "FILE_NOT_FOUND", "read", **demo, path="no/such.txt")


async def whole_loop(client, folder, revision):
    session = Session(client)
    check("the revision", client.protocol_version == revision, client.protocol_version)
    listed = (await client.list_tools()).tools
    check("the tools are listed", TOOLS <= {tool.name for tool in listed}, [tool.name for tool in listed])
    check("every tool has an output schema and annotations", all(tool.output_schema and tool.annotations for tool in listed))
    info = await session.ok("workspace_info", workspace_id="demo")
    check("workspace_info names the workspace", '"demo"' in json.dumps(info), info)
    check("the server calls no model", info["internal_model_calls"] is False, info)
    version = await files(session, folder)
    await patches(session, folder, version)
    await processes(session)
    await bad_inputs(session)


def environment(home):
    # The one key of ours that passes: which runner the tests are about.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("CODESPACE_") or k == "CODESPACE_RUNNER__KIND"}
    return {**kept, "XDG_STATE_HOME": str(home), "CODESPACE_ADMIN__LISTEN": ""}


class HttpServer:
    """`codespace serve` on a port of its own."""

    def __init__(self, folder, home):
        command = [BINARY, "serve", "--listen", "127.0.0.1:0", "--workspace", f"demo={folder}"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(home))
        self.lines, ready = [], queue.Queue()

        def follow():
            for line in self.process.stderr:
                self.lines.append(line)
                if found := re.search(r"listening\s+(http://\S+)", line):
                    ready.put(found[1])
            ready.put(None)

        threading.Thread(target=follow, daemon=True).start()
        try:
            self.url = ready.get(timeout=20)
        except queue.Empty:
            self.url = None
        if self.url is None:
            self.process.kill()
            raise AssertionError("the server did not start: " + "".join(self.lines))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


async def over_stdio(folder, home, mode, revision):
    parameters = StdioServerParameters(command=BINARY, args=["stdio", "--workspace", f"demo={folder}"], env=environment(home))
    with open(home / "stderr.log", "w") as log:
        async with Client(stdio_client(parameters, errlog=log), mode=mode) as client:
            await whole_loop(client, folder, revision)


async def over_http(folder, home, mode, revision):
    server = HttpServer(folder, home)
    try:
        async with Client(server.url, mode=mode) as client:
            await whole_loop(client, folder, revision)
            before = await Session(client).ok("apply_patch", workspace_id="demo", patch=add("kept.txt", "kept"), operation_key="kept")
            server.kill()
    except* (MCPError, OSError) as group:
        # Closing a client whose server was killed may complain; only before the kill is it a fault.
        if server.process.poll() is None:
            raise group
    finally:
        server.kill()
    server = HttpServer(folder, home)
    try:
        async with Client(server.url, mode=mode) as client:
            session = Session(client)
            status = await session.ok("operation_status", operation_key="kept")
            check("the record survives kill -9", status["status"] == "applied" and status["operation_id"] == before["operation_id"], status)
            again = await session.ok("apply_patch", workspace_id="demo", patch=add("kept.txt", "kept"), operation_key="kept")
            check("the key still replays after kill -9", again["replayed"] is True, again)
            check("the file survives kill -9", (folder / "kept.txt").read_text() == "kept\n")
    finally:
        code = server.stop()
    check("SIGTERM ends the server with 0", code == 0, code)


async def main():
    global label
    runs = [("stdio", over_stdio), ("http", over_http)]
    for mode, revision in [("legacy", "2025-11-25"), ("auto", "2026-07-28")]:
        for name, run in runs:
            label = f"python {name} {mode}"
            began, so_far = time.monotonic(), passed
            with tempfile.TemporaryDirectory(prefix="codespace-py-") as place:
                folder, home = Path(place, "demo"), Path(place, "state")
                folder.mkdir()
                home.mkdir()
                repository(folder)
                try:
                    async with asyncio.timeout(120):
                        await run(folder, home, mode, revision)
                except BaseException as error:  # one broken transport must not hide the other
                    if isinstance(error, KeyboardInterrupt):
                        raise
                    traceback.print_exc()
                    check("the loop ran to its end", False, error)
            print(f"{label}: {passed - so_far} checks passed in {time.monotonic() - began:.1f} s", flush=True)
    print(f"{passed} passed, {len(failures)} failed")
    return 1 if failures else 0


sys.exit(asyncio.run(main()))
