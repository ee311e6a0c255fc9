# A program in a sandbox whose port is looked at: what it was asked, a lot, a stream, a WebSocket, cookies and a redirect.
import base64, hashlib, http.server, json, struct, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, body, code=200, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/big":
            self.send(b"0123456789abcdef" * (20 * 1024 * 1024 // 16))
        elif path == "/events":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for i in range(3):
                self.wfile.write(b"data: %d\n\n" % i)
                self.wfile.flush()
                time.sleep(0.5)
        elif path == "/ws":
            self.websocket()
        elif path == "/set":
            self.send(b"", 302, Set_Cookie="session=1; Path=/; HttpOnly", Location="/asked?next=1", Service_Worker_Allowed="/",
                      Clear_Site_Data='"*"', Access_Control_Allow_Origin="http://evil.example")
        else:
            self.send(json.dumps({"path": self.path, "headers": {k.lower(): v for k, v in self.headers.items()}}).encode(),
                      Content_Type="application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send(hashlib.sha256(body).hexdigest().encode())

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            head = self.rfile.read(2)
            if len(head) < 2 or head[0] & 15 == 8:
                return
            size = head[1] & 127
            if size == 126:
                size = struct.unpack(">H", self.rfile.read(2))[0]
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(size)))
            self.wfile.write(bytes([0x80 | head[0] & 15]) + (bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)) + data)
            self.wfile.flush()

class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
