# The second half of the program of a context, behind worker.py: the keeper.


class Stream:
    """What came on one of the worker's streams since the last answer."""

    def __init__(self):
        self.data, self.dropped, self.fd = bytearray(), False, -1

    def add(self, data, most):
        room = max(most - len(self.data), 0)
        self.data += data[:room]
        self.dropped = self.dropped or len(data) > room

    def take(self):
        text, cut = self.data.decode("utf-8", "replace"), self.dropped
        self.data, self.dropped = bytearray(), False
        return text, cut


class Keeper:
    def __init__(self, requests, answers):
        self.requests, self.answers = requests, answers
        self.line, self.skip = bytearray(), False
        self.waiting = collections.deque()
        self.seen = collections.deque(maxlen=SEEN_MOST)
        self.cell = None  # the request that runs
        self.deadline = self.killed_at = None
        self.late = False
        self.report = bytearray()
        self.streams = (Stream(), Stream())
        self.pid = 0
        self.select = selectors.DefaultSelector()
        self.select.register(requests, selectors.EVENT_READ, self.on_requests)
        self.wake, wake = os.pipe()
        for fd in (self.wake, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self.select.register(self.wake, selectors.EVENT_READ, lambda: drained(self.wake))

    def serve(self):
        self.start()
        while True:
            due = [t for t in (self.deadline, self.killed_at) if t is not None]
            for key, _ in self.select.select(max(min(due) - time.monotonic(), 0) if due else None):
                key.data()
            self.look()
            self.on_time()

    # The worker.

    def start(self):
        commands, command = os.pipe()
        report, reports = os.pipe()
        out, out_w = os.pipe()
        err, err_w = os.pipe()
        try:
            self.pid = os.fork()
        except OSError:
            self.pid = 0
            for fd in (commands, command, report, reports, out, out_w, err, err_w):
                os.close(fd)
            return
        if self.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self.select.close()
                for fd in (command, report, out, err, self.requests, self.answers, self.wake):
                    os.close(fd)
                work(commands, reports, out_w, err_w)
            finally:
                os._exit(1)
        for fd in (commands, reports, out_w, err_w):
            os.close(fd)
        for fd in (report, out, err):
            os.set_blocking(fd, False)
        self.command, self.reported = command, report
        self.report = bytearray()
        self.select.register(report, selectors.EVENT_READ, self.on_report)
        for stream, fd in zip(self.streams, (out, err)):
            stream.fd = fd
            self.select.register(fd, selectors.EVENT_READ, lambda s=stream: self.on_output(s))

    def look(self):
        """Sees to a worker that has died."""
        if not self.pid:
            return
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return
        if os.WIFSIGNALED(status):
            end = "signal %d" % os.WTERMSIG(status)
            try:
                end = signal.Signals(os.WTERMSIG(status)).name
            except ValueError:
                pass
        else:
            end = "exit code %d" % os.WEXITSTATUS(status)
        self.gone()
        if self.cell is not None:
            self.finish(lost("ContextTimeout" if self.late else "ContextCrashed", "the cell did not end when it was interrupted" if self.late else
                             "the interpreter ended with %s" % end))
        self.next()

    def gone(self):
        """Ends what is left of a worker, reads its last words and forgets it."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except OSError:
            pass
        self.pid = 0
        for stream in self.streams:
            if stream.fd >= 0:
                self.last_words(stream)
                self.forget(stream)
        self.select.unregister(self.reported)
        os.close(self.reported)
        os.close(self.command)

    def forget(self, stream):
        self.select.unregister(stream.fd)
        os.close(stream.fd)
        stream.fd = -1

    def kill(self):
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except OSError:
                pass

    def on_time(self):
        now = time.monotonic()
        if self.killed_at is not None and now >= self.killed_at:
            self.killed_at = self.deadline = None
            self.kill()
        elif self.deadline is not None and now >= self.deadline and self.pid:
            # What it started is interrupted too, but not at once: a cell that ends by itself leaves its servers running.
            try:
                (os.killpg if self.late else os.kill)(self.pid, signal.SIGINT)
            except OSError:
                pass
            if not self.late:
                self.late, self.killed_at = True, now + GRACE
            self.deadline = now + AGAIN

    # What comes from it.

    def most(self):
        return STREAM_MOST if self.cell is not None else BETWEEN_MOST

    def on_output(self, stream):
        data = drained(stream.fd, 256 << 10) if stream.fd >= 0 else None
        if data:
            stream.add(data, self.most())
        elif data == b"":
            self.forget(stream)  # the worker has closed it

    def last_words(self, stream):
        """Reads what stands in a pipe, and not what goes on being written."""
        read = 0
        while read < PIPE_MOST:
            data = drained(stream.fd, 64 << 10)
            if not data:
                return
            read += len(data)
            stream.add(data, self.most())

    def on_report(self):
        data = drained(self.reported, 1 << 20) if self.pid else None
        if data is None:
            return
        if not data:
            self.kill()  # it cannot report any more
        self.report += data
        if len(self.report) < 4:
            return
        size = struct.unpack(">I", self.report[:4])[0]
        if size > REPORT_MOST:
            self.kill()
            return
        if len(self.report) < 4 + size:
            return
        body, self.report = bytes(self.report[4:4 + size]), bytearray()
        if self.cell is None:
            return
        for stream in self.streams:
            if stream.fd >= 0:
                self.last_words(stream)
        try:
            said = dict(json.loads(body.decode()))
        except (ValueError, TypeError):
            self.kill()
            return
        self.finish(said)
        self.next()

    # Requests and answers.

    def finish(self, said):
        (out, cut_out), (err, cut_err) = [s.take() for s in self.streams]
        said.update(id=self.cell["id"], stdout=out, stderr=err, timed_out=self.late, restarted=said.get("restarted", False))
        said["truncated"] = bool(said.get("truncated") or cut_out or cut_err)
        if self.late and said.get("error") and said["error"]["name"] == "KeyboardInterrupt":
            said["error"]["value"] = "the cell ran longer than %g s" % self.cell["timeout"]
        self.cell = self.deadline = self.killed_at = None
        self.late = False
        self.answer(said)

    def answer(self, said):
        write_all(self.answers, json.dumps(said).encode() + b"\n")

    def next(self):
        if self.cell is not None or not self.waiting:
            return
        if not self.pid:
            self.start()
        self.cell = self.waiting.popleft()
        self.deadline = time.monotonic() + self.cell["timeout"]
        self.answer({"id": self.cell["id"], "state": "begun"})
        if not self.pid:
            self.finish(lost("ContextCrashed", "the sandbox has no room for another process"))
            return
        try:
            write_all(self.command, frame({"code": self.cell["code"]}))
        except OSError:
            pass  # it has died, which is seen next

    def on_requests(self):
        data = os.read(self.requests, 64 << 10)
        if not data:
            self.kill()
            os._exit(0)
        for part in data.splitlines(True):
            self.line += part
            if len(self.line) > LINE_MOST:
                self.line, self.skip = bytearray(), True
            if not part.endswith(b"\n"):
                continue
            line, self.line = bytes(self.line), bytearray()
            if not self.skip:
                self.request(line)
            self.skip = False

    def request(self, line):
        try:
            if int(line[:9], 16) != binascii.crc32(line[9:].rstrip(b"\n")):
                return
            asked = json.loads(line[9:].decode())
            asked["id"] = str(asked["id"])
            do = asked["do"]
            if do == "run":
                asked = {"id": asked["id"], "code": str(asked["code"]), "timeout": float(asked["timeout"])}
        except (ValueError, KeyError, TypeError):
            return
        if asked["id"] in self.seen:
            return
        self.seen.append(asked["id"])
        if do == "hello":
            self.answer({"id": asked["id"], "python": PYTHON})
        elif do == "restart":
            self.restart(asked["id"])
        elif do == "run" and len(self.waiting) >= QUEUE_MOST:
            self.answer({"id": asked["id"], "busy": True})
        elif do == "run":
            self.waiting.append(asked)
            if self.cell is not None:
                self.answer({"id": asked["id"], "state": "taken"})
            self.next()

    def restart(self, request):
        if self.pid:
            self.kill()
            os.waitpid(self.pid, 0)
            self.gone()
        while self.cell is not None or self.waiting:
            if self.cell is None:
                self.cell = self.waiting.popleft()
            self.finish(lost("ContextRestarted", "the context was restarted"))
        for stream in self.streams:
            stream.take()
        self.start()
        self.answer({"id": request, "python": PYTHON})


PYTHON = sys.version.split()[0]


def lost(name, why):
    """The answer of a cell whose worker is gone."""
    return {"text": None, "results": [], "restarted": True, "error": {"name": name, "value": why + "; its variables are lost", "traceback": ""}}


def drained(fd, most=4096):
    """What can be read at once; None where there is nothing, b"" at the end."""
    try:
        return os.read(fd, most)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def main():
    if sys.version_info < (3, 8):
        os._exit(126)  # as for a program that cannot be run, which is told so
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(null, 2)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Keeper(requests, answers).serve()


main()
