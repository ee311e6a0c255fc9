package interpreter

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandtrail/sandtrail/libs/fault"
	"github.com/sandtrail/sandtrail/libs/transcript"
)

func TestWhatACellLeavesIsThereForTheNext(t *testing.T) {
	k := newKernel(t)
	a := k.good("import math\nx = 20\ndef double(n):\n    return 2 * n\nclass Point: pass\nx + 1")
	require.Equal(t, "21", *a.Text)
	require.Equal(t, "40.0", k.value("double(math.floor(x) + 0.0)"))
	require.Equal(t, "40.0", k.value("_"), "the value before")
	require.Equal(t, "'__main__'", k.value("__name__"))
	require.Equal(t, "True", k.value("import pickle\nisinstance(pickle.loads(pickle.dumps(Point())), Point)"))
	k.good("from __future__ import annotations")
	require.Equal(t, "'Unknown'", k.value("def f(a: Unknown): pass\nf.__annotations__['a']"))
	for _, code := range []string{"", "x = 1", "None", "x;", "# nothing"} {
		require.Nil(t, k.good(code+"\n").Text, code)
	}
	a, err := k.ask(Request{Do: Hello})
	require.NoError(t, err)
	require.Regexp(t, `^3\.\d+\.\d+`, a.Python)
}

// Whatever way a cell writes, it is its output, on the stream on which it was written, and never an answer.
func TestOutputOfACell(t *testing.T) {
	k := newKernel(t)
	a := k.good(`import os, subprocess, sys
print("printed")
print("complained", file=sys.stderr)
os.write(1, b"raw\n")
os.system("echo shell; echo shell complained >&2")
subprocess.run(["echo", "child"])
print('{"id": "x", "state": ""}')
sys.__stdout__.write("original\n")
os.write(2, b"\xff\n");`)
	require.Equal(t, "printed\nraw\nshell\nchild\n{\"id\": \"x\", \"state\": \"\"}\noriginal\n", a.Stdout)
	require.Equal(t, "complained\nshell complained\n\uFFFD\n", a.Stderr)
	require.False(t, a.Truncated)
	require.Equal(t, "EOFError", k.run("input()").Error.Name, "nobody types to it")
	// What is written while no cell runs is not lost.
	k.good("import threading\ngo = threading.Event()\nlate = threading.Thread(target=lambda: (go.wait(), print('late')))\nlate.start()")
	require.Equal(t, "late\n", k.good("go.set()\nlate.join()").Stdout)
	// What goes on being written does not hold a cell up.
	k.good("noise = subprocess.Popen(['sh', '-c', 'while :; do echo noise; done'])")
	require.Equal(t, "2", k.value("1 + 1"))
	k.good("noise.kill()\nnoise.wait();")
}

func TestResultsOfACell(t *testing.T) {
	k := newKernel(t)
	require.NoError(t, os.MkdirAll(filepath.Join(k.dir(), "matplotlib"), 0o750))
	for name, code := range map[string]string{
		"__init__": "", "pyplot": `open_ones = [1, 2]
class Figure:
    def __init__(self, n): self.n = n
    def savefig(self, to, **_): to.write(b"figure %d" % self.n)
def get_fignums(): return list(open_ones)
def figure(n): return Figure(n)
def close(which): open_ones.clear()
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(k.dir(), "matplotlib", name+".py"), []byte(code), 0o600))
	}
	shown := func(code string) []string {
		all := []string{}
		for _, r := range k.good(code).Results {
			all = append(all, fmt.Sprintf("%s %s %v", r.Type, r.Data, r.Main))
		}
		return all
	}
	require.Equal(t, []string{`text/plain "{'a': [1]}" true`, `application/json {"a": [1]} true`}, shown("{'a': [1]}"))
	require.Equal(t, []string{`text/plain "{1}" true`}, shown("{1}"))
	require.Equal(t, []string{`text/plain "it" true`, `text/html "<b>" true`, `image/png "cG5n" true`, `application/json [1] true`}, shown(`class Rich:
    def __repr__(self): return "it"
    def _repr_html_(self): return "<b>"
    def _repr_png_(self): return b"png", {"width": 1}
    def _repr_json_(self): return [1]
    def _repr_svg_(self): raise ValueError
Rich()`))
	require.Equal(t, []string{`text/plain "1" false`, `text/plain "2" true`}, shown("display(1)\n2"))
	require.Equal(t, []string{`image/png "ZmlndXJlIDE=" false`, `image/png "ZmlndXJlIDI=" false`}, shown("import matplotlib.pyplot"))
	require.Empty(t, shown("pass"), "a figure is shown once")
	require.Equal(t, "ValueError", k.run("class Bad:\n    def __repr__(self): raise ValueError('no')\nBad()").Error.Name)
}

// dir is where the program runs, and finds modules.
func (k *kernel) dir() string {
	k.t.Helper()
	text := k.value("import os\nos.getcwd()")
	return strings.Trim(text, "'")
}

// An error shows the caller's lines, and none of the program's.
func TestErrorsOfACell(t *testing.T) {
	k := newKernel(t)
	k.good("def f(n):\n    return 1 / n")
	for code, want := range map[string][]string{
		"f(0)": {"ZeroDivisionError", "division by zero", `File "<cell `, "return 1 / n", "f(0)"},
		"try:\n    f(0)\nexcept Exception as e:\n    raise KeyError('k') from e": {"KeyError", "'k'", "return 1 / n", "direct cause", "raise KeyError"},
		"1 +":                          {"SyntaxError", "invalid syntax", "1 +"},
		"import json\njson.loads('{')": {"JSONDecodeError", "Expecting", "json.loads('{')", "decoder.py"},
		"async def g():\n    await h()\nasync def h():\n    f(0)\nawait g()": {"ZeroDivisionError", "division", "await g()", "await h()", "return 1 / n"},
		"raise SystemExit('no')":  {"SystemExit", "no"},
		"raise KeyboardInterrupt": {"KeyboardInterrupt", ""},
		"class E(Exception):\n    def __str__(self): raise ValueError\nraise E": {"E", "(its text cannot be made)"},
	} {
		a := k.run(code)
		require.NotNil(t, a.Error, code)
		require.Equal(t, want[0], a.Error.Name, code)
		require.Contains(t, a.Error.Value, want[1], code)
		for _, part := range want[2:] {
			require.Contains(t, a.Error.Traceback, part, code)
		}
		require.NotContains(t, a.Error.Traceback, "<context>", code)
		require.NotContains(t, a.Error.Traceback, "ast.py", code)
		require.NotContains(t, a.Error.Traceback, "asyncio", code)
		require.False(t, a.TimedOut || a.Restarted)
	}
	require.Nil(t, k.run("exit()").Error)
	require.Equal(t, "ZeroDivisionError", k.run("f(0)").Error.Name, "the variables are still there")
}

func TestAwaitInACell(t *testing.T) {
	k := newKernel(t)
	require.Equal(t, "5", k.value("import asyncio\nawait asyncio.sleep(0.001, 5)"))
	require.Equal(t, "[0, 1, 2]", k.value("async def three():\n    for i in range(3):\n        yield i\n[i async for i in three()]"))
	require.Equal(t, "7", k.value("async def seven(): return 7\nasyncio.run(seven())"))
	k.good("asyncio.get_event_loop();")
	require.Equal(t, "8", k.value("task = asyncio.create_task(asyncio.sleep(0.01, 8))\nawait task"))
	a := k.within("try:\n    await asyncio.sleep(60)\nfinally:\n    print('cleaned up')", 0.2)
	require.Equal(t, []any{true, "KeyboardInterrupt", "cleaned up\n"}, []any{a.TimedOut, a.Error.Name, a.Stdout})
	require.Equal(t, "1", k.value("await asyncio.sleep(0, 1)"))
}

// A cell that runs too long is interrupted and the variables stay; only one that will not end costs them.
func TestACellThatRunsTooLong(t *testing.T) {
	k := newKernel(t)
	k.good("import subprocess, time\nkept = 1")
	for _, code := range []string{"while True: pass", "time.sleep(60)", "subprocess.run(['sleep', '60'])"} {
		a := k.within(code, 0.3)
		require.NotNil(t, a.Error, code)
		require.Equal(t, []any{true, false, "KeyboardInterrupt", "the cell ran longer than 0.3 s"}, []any{a.TimedOut, a.Restarted, a.Error.Name, a.Error.Value}, code)
	}
	// The shell does not let its caller be interrupted, so what it runs is.
	a := k.within("import os\nos.system('sleep 60')\nprint('behind')", 0.2)
	require.Equal(t, []any{true, "behind\n"}, []any{a.TimedOut, a.Stdout})
	require.Equal(t, "1", k.value("kept"))
	a = k.within("import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)", 0.1)
	require.Equal(t, []any{true, true, "ContextTimeout"}, []any{a.TimedOut, a.Restarted, a.Error.Name})
	require.Equal(t, "NameError", k.run("kept").Error.Name)
}

// Whatever way its process dies, a cell is answered, and the next one runs.
func TestACellThatKillsItsProcess(t *testing.T) {
	k := newKernel(t)
	for code, end := range map[string]string{
		"import os\nprint('last words', flush=True)\nos._exit(3)": "exit code 3",
		"import ctypes\nctypes.string_at(0)":                      "SIGSEGV",
		"import os, signal\nos.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
		"import os\nos.abort()":                                   "SIGABRT",
		"import os\nos.closerange(3, 256)":                        "",
		"import os\nos.killpg(0, 9)":                              "SIGKILL",
	} {
		k.good("kept = 1")
		a := k.within(code, 30)
		require.NotNil(t, a.Error, code)
		require.Equal(t, []any{"ContextCrashed", true, false}, []any{a.Error.Name, a.Restarted, a.TimedOut}, code)
		require.Contains(t, a.Error.Value, end, code)
		if strings.Contains(code, "last words") {
			require.Equal(t, "last words\n", a.Stdout)
		}
		require.Equal(t, "NameError", k.run("kept").Error.Name, code)
	}
}

func TestBoundsOfAnAnswer(t *testing.T) {
	k := newKernel(t)
	a := k.good("import sys\nprint('\\x00' * 3_000_000)\nprint('e' * 3_000_000, file=sys.stderr)")
	require.Equal(t, []any{1 << 20, 1 << 20, true}, []any{len(a.Stdout), len(a.Stderr), a.Truncated})
	a = k.good("'x' * 3_000_000")
	require.LessOrEqual(t, len(*a.Text), 256<<10+8)
	a = k.good("for _ in range(10): display([0] * 500_000)\n1")
	require.True(t, a.Truncated)
	require.NotEmpty(t, a.Results)
	a = k.good("for i in range(1000): display(i)")
	require.Equal(t, []any{64, true}, []any{len(a.Results), a.Truncated})
	a = k.good(strings.Repeat("#", CodeMost-1) + "\n")
	require.False(t, a.Truncated)
	require.Equal(t, "RecursionError", k.run("def f(): f()\nf()").Error.Name)
}

// A restart comes out of turn: what runs and what waits is ended by it.
func TestARestartDoesNotWait(t *testing.T) {
	k := newKernel(t)
	k.good("kept = 1")
	answers := make([]Answer, 4)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			a, err := k.ask(Request{Do: Run, Code: "import time\ntime.sleep(60)", Timeout: 60})
			answers[i] = a
			if err != nil {
				t.Error(err)
			}
		})
	}
	states := func() (n int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		for _, c := range k.chunks {
			n += strings.Count(string(c.Data), `"state": "`)
		}
		return n
	}
	// One for the cell before; the first begins, the others are taken.
	require.Eventually(t, func() bool { return states() == 5 }, 20*time.Second, 5*time.Millisecond)
	_, err := k.ask(Request{Do: Restart})
	require.NoError(t, err)
	all.Wait()
	for _, a := range answers {
		require.Equal(t, "ContextRestarted", a.Error.Name)
	}
	require.Equal(t, "NameError", k.run("kept").Error.Name)
}

// Many who ask at once are each answered what they asked, once, also where a request gets lost because two wrote at the same place.
func TestManyAskAtOnce(t *testing.T) {
	k := newKernel(t)
	k.good("runs = []")
	k.lose = 3
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			a, err := k.ask(Request{Do: Run, Code: fmt.Sprintf("runs.append(%d)\nprint(%d)\n%d * 2", i, i, i), Timeout: 30})
			if err != nil || a.Text == nil {
				t.Errorf("%d: %v %v", i, a.Error, err)
				return
			}
			if *a.Text != fmt.Sprint(2*i) || a.Stdout != fmt.Sprintf("%d\n", i) {
				t.Errorf("%d was answered %s %q", i, *a.Text, a.Stdout)
			}
		})
	}
	all.Wait()
	require.Equal(t, "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]", k.value("sorted(runs)"))
}

func TestWhatIsNoAnswer(t *testing.T) {
	hear := func(memory *room, chunks ...transcript.Chunk) (*asked, error) {
		a := &asked{request: Request{ID: "mine"}, memory: memory, taken: make(chan struct{}), cancel: func(error) {}}
		for _, c := range chunks {
			c.Stream = transcript.Stdout
			if err := a.chunk(&c); err != nil {
				return a, err
			}
		}
		return a, nil
	}
	data := func(s string) transcript.Chunk { return transcript.Chunk{Data: []byte(s)} }
	good := "{\"id\":\"mine\",\"stdout\":\"o\"}\n"
	for _, chunks := range [][]transcript.Chunk{
		{data("half of another\"}\n" + good)},
		{data("{\"id\":\"other\"}\n{\"id\":1}\nnull\n\n[]\n"), data(good)},
		{data("{\"id\":\"mi"), {GapTo: 9}, data("ne\"}\n" + good)},
		{data(good[:9]), data(good[9:])},
		{data("{\"id\":\"mine\",\"state\":\"taken\"}\n"), data(good)},
	} {
		memory := &room{}
		a, err := hear(memory, chunks...)
		require.ErrorIs(t, err, errAnswered)
		require.Equal(t, "o", a.answer.Stdout)
		a.release()
		require.Zero(t, memory.held)
	}
	_, err := hear(&room{}, data("{\"id\":\"mine\",\"state\":\"taken\"}\n"), transcript.Chunk{GapTo: 9})
	require.True(t, fault.Is(err, fault.ReasonExecLost), "%v", err)
	_, err = hear(&room{}, data("{\"id\":\"mine\",\"stdout\":1}\n"))
	require.Equal(t, fault.Internal, fault.CodeOf(err))
	_, err = hear(&room{most: 10}, data(good))
	require.Equal(t, fault.Unavailable, fault.CodeOf(err))
}
