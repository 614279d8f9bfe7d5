"""Two web servers over one folder, plain and TLS, for the proxy's tests.

Prints the two ports. GET serves the folder; /echo answers with what arrived, as JSON.
Ends when its standard input does, so that it cannot outlive a test.
"""

import http.server
import json
import ssl
import sys
import threading

root, certificate, key = sys.argv[1:]


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args):
        super().__init__(*args, directory=root)

    def log_message(self, *args):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def echo(self):
        arrived = {
            "request": self.requestline,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "length": len(self.body()),
            "port": self.client_address[1],
        }
        answer = json.dumps(arrived).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.send_header("Connection", "X-Hop")
        self.send_header("X-Hop", "1")
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self):
        self.echo() if self.path.startswith("/echo") else super().do_GET()

    do_POST = do_PUT = echo


def serve(context=None):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context:
        # The handshake in the connection's own thread, or one client could stop all.
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
print(serve(), serve(context), flush=True)
sys.stdin.read()
