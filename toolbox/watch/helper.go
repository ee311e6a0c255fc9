package watch

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookEvery is how often a helper looks whether it has a reader.
const lookEvery = 15 * time.Second

// Main tells what changes in the directory that it is started in. It is the whole of a process.
func Main(args []string) int { return watch(args, nil) }

// MainOutside is Main, with a pipe for what changes from outside.
func MainOutside(args []string) int {
	return watch(args, os.NewFile(outsideFD, "outside"))
}

func watch(args []string, outside io.Reader) int {
	// The programs of the sandbox shall have the memory and the threads.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	recursive := len(args) > 0 && args[0] == Recursive
	if len(args) > 1 || len(args) == 1 && !recursive {
		fmt.Fprintf(os.Stderr, "usage: %s [%s]\n", Program, Recursive)
		return ExitDirectory
	}
	if others() >= MostWatchers {
		fmt.Fprintf(os.Stderr, "the sandbox has %d watchers\n", MostWatchers)
		return ExitWatchers
	}
	root, err := syscall.Getwd()
	if err == nil {
		err = serve(root, recursive, os.Stdin, os.Stdout, outside)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, said(err))
		return ExitDirectory
	}
	return ExitOver
}

// said is an error as a shell would tell it.
func said(err error) string {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "Permission denied"
	case errors.Is(err, fs.ErrNotExist):
		return "No such file or directory"
	default:
		return err.Error()
	}
}

// others is how many helpers run that this one can see.
func others() (n int) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is right
	us := []byte(os.Args[0] + "\x00" + os.Args[1] + "\x00")
	for _, name := range all {
		line, err := os.ReadFile(name)
		if err == nil && bytes.HasPrefix(line, us) && name != "/proc/"+strconv.Itoa(os.Getpid())+"/cmdline" {
			n++
		}
	}
	return n
}

// serve tells changes until there is nobody to tell, or nothing to tell of. It does not stay in the directory, whose removal would not show
// then.
func serve(root string, recursive bool, in io.Reader, out io.Writer, outside io.Reader) error {
	g := newGate(time.Now())
	t, err := newTree(root, recursive, g.add)
	if err != nil {
		return err
	}
	defer unix.Close(t.fd)
	_ = os.Chdir("/")
	ready := []byte(`{"name":".","type":"` + Ready + `"}` + "\n")
	g.written += uint64(len(ready))
	if _, err := out.Write(ready); err != nil {
		return nil //nolint:nilerr // nobody is there
	}
	told, heard, done := make(chan []byte), make(chan int), make(chan Event)
	go read(t.fd, told)
	go hear(in, heard)
	if outside != nil {
		go listen(outside, done)
	}
	return run(g, t, told, heard, done, out)
}

func run(g *gate, t *tree, told <-chan []byte, heard <-chan int, done <-chan Event, out io.Writer) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var flush <-chan time.Time
	for there := true; there; {
		var line []byte
		select {
		case data, ok := <-told:
			there = ok && t.handle(data)
		case e := <-done:
			t.outside(e)
		case n, ok := <-heard:
			if !ok {
				return nil
			}
			g.hear(n, time.Now())
		case <-flush:
			flush, line = nil, g.take()
		case now := <-look.C:
			var over bool
			if line, over = g.ask(now); over {
				return nil
			}
		}
		if !there {
			line = g.take()
		} else if flush == nil && (g.waits() || len(g.events) > 0) {
			flush = time.After(gather)
		}
		if len(line) == 0 {
			continue
		}
		if _, err := out.Write(line); err != nil {
			return nil //nolint:nilerr // nobody is there
		}
	}
	return nil
}

// read hands on what the kernel tells, until it tells nothing more.
func read(fd int, told chan<- []byte) {
	defer close(told)
	for {
		buf := make([]byte, 16<<10)
		n, err := unix.Read(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return
		}
		told <- buf[:n]
	}
}

// hear hands on how much came, until its end.
func hear(in io.Reader, heard chan<- int) {
	defer close(heard)
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			heard <- n
		}
		if err != nil {
			return
		}
	}
}

// listen hands on what is said to have changed from outside.
func listen(outside io.Reader, done chan<- Event) {
	lines := bufio.NewScanner(outside)
	for lines.Scan() {
		var e Event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			done <- e
		}
	}
}
