# The program of a context: a stateful Python that runs code cell by cell. Standard library only, Python 3.8 and later.
#
# Two processes. This one, the keeper of the context, holds the exec's stdin and stdout, on which requests and answers go as one line of JSON
# each; it runs no code of the caller. The worker is forked from it and runs the cells: its descriptors 1 and 2 are pipes that the keeper reads,
# so whatever a cell or its children write is output of the cell and never looks like an answer. A worker that dies takes the variables with
# it and not the context: the next cell gets a new one.
#
# Requests:  a CRC-32 of what follows, as eight hexadecimal digits, a space, and:
#            {"id": TEXT, "do": "run", "code": TEXT, "timeout": SECONDS}
#            {"id": TEXT, "do": "restart"}   out of turn; what runs or waits is answered as ended by it
#            {"id": TEXT, "do": "hello"}     out of turn
# Answers:   {"id": TEXT, "state": "taken"} and {"id": TEXT, "state": "begun"} of a cell that waits, and that begins to run;
#            {"id": TEXT, ...} at its end, see Answer in interpreter.go
#
# Who asks may write a request again until one of these comes: its id is taken once. What is no request is left out, so half a line of somebody
# who died, and a mixture of two who wrote at once, do no harm where the next one begins with a newline.
import ast
import base64
import binascii
import builtins
import collections
import inspect
import io
import json
import linecache
import os
import selectors
import signal
import struct
import sys
import time
import traceback
import types
import warnings

STREAM_MOST = 1 << 20       # bytes of stdout, and of stderr, of one answer
BETWEEN_MOST = 64 << 10     # bytes of each that are kept of what is written while no cell runs, for the next one
RESULTS_MOST = 4 << 20      # characters of all results of one answer, as JSON has them
TEXT_MOST = 256 << 10       # characters of a value or traceback
RESULTS_COUNT = 64          # results of one answer
LINE_MOST = 8 << 20         # bytes of a request
QUEUE_MOST = 64             # cells that wait
SEEN_MOST = 1024            # ids of requests that are remembered
REPORT_MOST = 32 << 20      # bytes that a worker reports of one cell
PIPE_MOST = 1 << 20         # bytes that a pipe can hold
AGAIN = 1.0                 # seconds between two interrupts
GRACE = 5.0                 # seconds that an interrupted cell may take to end, then its worker is killed


class Worker:
    """Runs cells, one after another, in one namespace."""

    def __init__(self, commands, reports):
        self.commands, self.reports = commands, reports
        self.busy = False
        self.count = 0
        self.flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        self.loop = None
        self.shown = []
        self.size = 0
        self.cut = False
        main = types.ModuleType("__main__")
        main.__dict__.update(__builtins__=builtins, display=self.display)
        sys.modules["__main__"] = main
        self.names = main.__dict__

    def serve(self):
        while True:
            code = read_report(self.commands)
            if code is None:
                os._exit(0)
            said = self.run(code["code"])
            write_all(self.reports, frame(said))

    def run(self, code):
        """Runs one cell. An interrupt that comes too late for it hits nothing."""
        self.shown, self.size, self.cut = [], 0, False
        self.count += 1
        text = error = None
        # A cell may have put its own in place, and forgotten it.
        signal.signal(signal.SIGINT, self.interrupted)
        if sys.stdin is None or sys.stdin.closed:
            sys.stdin = open(0, closefd=False)
        try:
            try:
                self.busy = True
                text = self.cell(code)
                self.figures()
            finally:
                self.busy = False
        except BaseException as e:
            self.busy = False  # an interrupt may have come before the line above
            if not isinstance(e, SystemExit) or e.code not in (None, 0):
                error = self.failure(e)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        return {"text": text, "error": error, "results": self.shown, "truncated": self.cut}

    def interrupted(self, *_):
        if self.busy:
            raise KeyboardInterrupt

    def cell(self, code):
        name = "<cell %d>" % self.count
        # Without a time of change linecache keeps the lines for tracebacks.
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        tree = ast.parse(code, name)
        if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
            # One piece with what stands before it: where one of both awaits, all of it runs in the loop.
            last = tree.body[-1]
            tree.body[-1] = ast.copy_location(ast.Assign([ast.copy_location(ast.Name(LAST, ast.Store()), last)], last.value), last)
        compiled = compile(tree, name, "exec", self.flags, True)
        # What was imported from __future__ holds for later cells.
        self.flags |= compiled.co_flags & FUTURE
        if self.loop is not None and not self.loop.is_closed():
            sys.modules["asyncio"].set_event_loop(self.loop)  # asyncio.run leaves none
        self.names.pop(LAST, None)
        ran = eval(compiled, self.names)
        if compiled.co_flags & inspect.CO_COROUTINE:
            self.awaited(ran)
        value = self.names.pop(LAST, None)
        if value is None:
            return None
        self.names["_"] = value
        text = bounded(repr(value))
        self.display(value, main=True, text=text)
        return text

    def awaited(self, coroutine):
        import asyncio
        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        task = self.loop.create_task(coroutine)
        try:
            return self.loop.run_until_complete(task)
        except BaseException:
            if not task.done():
                task.cancel()
                self.loop.run_until_complete(asyncio.wait({task}, timeout=1))
            raise

    def display(self, value, main=False, text=None):
        """Shows a value among the results of the cell."""
        forms = {"text/plain": bounded(repr(value)) if text is None else text}
        for mime, method in RICH:
            forms.setdefault(mime, called(value, method))
        many = called(value, "_repr_mimebundle_")
        if isinstance(many, tuple):
            many = many[0]
        if isinstance(many, dict):
            forms.update(many)
        if isinstance(value, (dict, list)):
            forms["application/json"] = value
        for mime, data in forms.items():
            if isinstance(data, tuple):
                data = data[0]  # the rest is about the data
            if data is not None:
                self.show(str(mime), data, main)

    def show(self, mime, data, main=False):
        if isinstance(data, (bytes, bytearray)):
            data = base64.b64encode(data).decode()
        try:
            data = json.loads(json.dumps(data, allow_nan=False))  # as it is now; a cell may change it later
            size = len(json.dumps(data))
        except (TypeError, ValueError, RecursionError, OverflowError):
            return
        if self.size + size > RESULTS_MOST or len(self.shown) >= RESULTS_COUNT:
            self.cut = True
            return
        self.size += size
        self.shown.append({"type": mime, "data": data, "main": main})

    def figures(self):
        """Shows the figures that are open and closes them, as notebooks do."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or not hasattr(pyplot, "get_fignums"):
            return
        for number in pyplot.get_fignums():
            data = io.BytesIO()
            pyplot.figure(number).savefig(data, format="png", bbox_inches="tight")
            self.show("image/png", data.getvalue())
        pyplot.close("all")

    def failure(self, e):
        try:
            value = str(e)
        except Exception:
            value = "(its text cannot be made)"
        try:
            told = traceback.TracebackException(type(e), e, e.__traceback__)
            ours_out(told, set())
            lines = "".join(told.format())
        except Exception:
            lines = "%s: %s\n" % (type(e).__name__, value)
        return {"name": type(e).__name__, "value": bounded(value), "traceback": bounded(lines)}


RICH = (
    ("text/html", "_repr_html_"), ("text/markdown", "_repr_markdown_"), ("text/latex", "_repr_latex_"), ("image/svg+xml", "_repr_svg_"),
    ("image/png", "_repr_png_"), ("image/jpeg", "_repr_jpeg_"), ("application/json", "_repr_json_"),
)

LAST = "<last>"  # no code can name it

FUTURE = 0
for _name in __import__("__future__").all_feature_names:
    FUTURE |= getattr(__import__("__future__"), _name).compiler_flag


def called(value, method):
    """What a method of a value returns; None where it has none, or it fails. Of classes it is the one of their values."""
    if isinstance(value, type):
        return None
    try:
        return getattr(value, method)()
    except Exception:
        return None


def bounded(text):
    return text if len(text) <= TEXT_MOST else text[:TEXT_MOST] + "…"


def ours_out(told, seen):
    """Takes the lines of this program out of a traceback: those above the first line of a cell, and ours where there is none."""
    if told is None or id(told) in seen:
        return
    seen.add(id(told))
    first = next((i for i, f in enumerate(told.stack) if f.filename.startswith("<cell ")), None)
    if first is None:
        # One of the program's own, and what it called, such as the parser: there is nothing of the caller's in it.
        first = len(told.stack) if any(f.filename == OURS for f in told.stack) else 0
    del told.stack[:first]
    told.stack[:] = [f for f in told.stack if f.filename != OURS]
    for other in [told.__cause__, told.__context__] + list(getattr(told, "exceptions", None) or []):
        ours_out(other, seen)


OURS = "<context>"


def frame(v):
    data = json.dumps(v).encode()
    return struct.pack(">I", len(data)) + data


def write_all(fd, data):
    data = memoryview(data)
    while data:
        data = data[os.write(fd, data):]


def read_report(fd):
    """One framed object; None at the end."""
    def exactly(n):
        data = b""
        while len(data) < n:
            more = os.read(fd, n - len(data))
            if not more:
                return None
            data += more
        return data
    head = exactly(4)
    body = head and exactly(struct.unpack(">I", head)[0])
    return body and json.loads(body.decode())


def work(commands, reports, out, err):
    """The life of a worker, from its fork on."""
    os.setsid()  # interrupts reach what the cell started, and nobody else
    os.dup2(out, 1)
    os.dup2(err, 2)
    for n, stream in ((1, "stdout"), (2, "stderr")):
        opened = io.TextIOWrapper(open(n, "wb", 0, closefd=False), "utf-8", "backslashreplace", write_through=True)
        setattr(sys, stream, opened)
        setattr(sys, "__%s__" % stream, opened)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)
    sys.argv = [""]
    os.environ.setdefault("MPLBACKEND", "agg")
    warnings.filterwarnings("ignore", ".*non-interactive.*")
    Worker(commands, reports).serve()
