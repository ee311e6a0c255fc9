package keeper

import (
	"fmt"
	"os"
	"sync"
)

// maxLog bounds the log of one keeper. What a sandbox's owner does can make lines without end.
const maxLog = 1 << 20

// Log bounds what is written to a file that only this process writes to, by appending: where it would pass its bound it starts
// anew, and says so. Anything but a regular file is written to without a bound.
type Log struct {
	mu   sync.Mutex
	file *os.File
	size int64
}

// NewLog goes on behind what the file has.
func NewLog(file *os.File) *Log {
	l := &Log{file: file}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
		l.size = info.Size()
	} else {
		l.size = -1
	}
	return l
}

// Write implements io.Writer.
func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size < 0 {
		return l.file.Write(b)
	}
	if l.size+int64(len(b)) > maxLog && l.size > 0 {
		if err := l.file.Truncate(0); err != nil {
			return 0, err
		}
		n, err := fmt.Fprintf(l.file, `{"level":"WARN","msg":"the log was full","dropped_bytes":%d}`+"\n", l.size)
		l.size = int64(n)
		if err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(b[:min(len(b), maxLog/2)])
	l.size += int64(n)
	if err == nil {
		// The end of a line that is longer than half the bound is dropped.
		n = len(b)
	}
	return n, err
}
