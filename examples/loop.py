"""An agent's working loop on CodeSpace, without the agent: look, preview, patch, run, stop, look up.

    pip install mcp
    codespace serve --workspace demo=DIR
    python examples/loop.py http://127.0.0.1:8787/mcp demo

It adds a file codespace-loop.txt to the workspace and deletes it at the end.
"""

import asyncio
import sys
import uuid

from mcp import Client

ADD = "*** Begin Patch\n*** Add File: codespace-loop.txt\n+one\n+two\n*** End Patch\n"
UPDATE = (
    "*** Begin Patch\n*** Update File: codespace-loop.txt\n@@\n one\n-two\n+2\n*** End Patch\n"
)
DELETE = "*** Begin Patch\n*** Delete File: codespace-loop.txt\n*** End Patch\n"


async def main(url: str, workspace: str) -> None:
    async with Client(url) as client:

        async def call(tool: str, **arguments):
            result = await client.call_tool(tool, arguments)
            if result.is_error:
                sys.exit(f"{tool}: {result.structured_content}")
            return result.structured_content

        async def run(*command: str) -> str:
            """A command's whole output; the handle would outlive this connection."""
            process = (await call("exec_command", workspace_id=workspace, command=[*command]))["process_id"]
            text, cursor, eof = "", 0, False
            while not eof:
                part = await call("read_process", process_id=process, cursor=cursor, wait_ms=10_000)
                text, cursor, eof = text + part["chunk"], part["cursor"], part["eof"]
            status = await call("process_status", process_id=process, wait_ms=10_000)
            return f"{text.strip()!r}, exit code {status.get('exit_code')}"

        info = await call("workspace_info", workspace_id=workspace)
        print("sandbox:", info["workspaces"][0]["execution"]["isolation"]["command_sandbox"])
        found = await call("find", workspace_id=workspace, glob="*.md")
        print("found:", found["paths"][:5], "and more" if found["truncated"] or len(found["paths"]) > 5 else "")

        await call("apply_patch", workspace_id=workspace, patch=ADD)
        file = await call("read", workspace_id=workspace, path="codespace-loop.txt")
        preview = await call("apply_patch", workspace_id=workspace, patch=UPDATE, check_only=True)
        print("preview:", preview["status"], [change["path"] for change in preview["changes"]])

        # The key makes it safe to send again after a lost connection; the version refuses the
        # patch if somebody changed the file since it was read.
        key = str(uuid.uuid4())
        patch = {
            "workspace_id": workspace,
            "patch": UPDATE,
            "operation_key": key,
            "expected_versions": {"codespace-loop.txt": file["version"]},
        }
        print("applied:", (await call("apply_patch", **patch))["status"])
        print("sent again:", "replayed" if (await call("apply_patch", **patch))["replayed"] else "applied twice!")
        print("looked up by key:", (await call("operation_status", operation_key=key))["status"])

        print("cat:", await run("cat", "codespace-loop.txt"))
        runaway = (await call("exec_command", workspace_id=workspace, command=["sleep", "600"]))["process_id"]
        await call("terminate_process", process_id=runaway)
        print("runaway:", (await call("process_status", process_id=runaway))["termination"])

        await call("apply_patch", workspace_id=workspace, patch=DELETE)
        print("done")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1], sys.argv[2]))
