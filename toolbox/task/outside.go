package task

import (
	"encoding/json"
	"os"
	"sync"
	"time"

	"github.com/sandtrail/sandtrail/toolbox/watch"
)

// outsideTime is how long a watcher may take to take a change, outsideLine the most bytes of one: a pipe takes so few whole or not at all.
const (
	outsideTime = 20 * time.Millisecond
	outsideLine = 4096
)

// Outside tells a watcher what a toolbox itself changes, which the sandbox's kernel does not see.
type Outside struct {
	// Files is descriptor 3 of the helper; Started closes it here.
	Files []*os.File

	mu sync.Mutex
	to *os.File
	// lost: something was not told.
	lost bool
}

// NewOutside makes the pipe to a helper.
func NewOutside() (*Outside, error) {
	from, to, err := pipe(0, 1)
	if err != nil {
		return nil, err
	}
	return &Outside{Files: []*os.File{from}, to: to}, nil
}

// Started gives up the helper's end of the pipe.
func (o *Outside) Started() {
	for _, f := range o.Files {
		f.Close()
	}
	o.Files = nil
}

// Tell tells a change at an absolute path of the guest. A watcher that does not take it is told later that it missed something.
func (o *Outside) Tell(path, kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := []watch.Event{{Name: path, Type: kind}}
	if o.lost {
		lines = append([]watch.Event{{Name: path, Type: watch.Overflow}}, lines...)
	}
	for _, e := range lines {
		line, err := json.Marshal(e)
		if err == nil && len(line) < outsideLine {
			_ = o.to.SetWriteDeadline(time.Now().Add(outsideTime))
			_, err = o.to.Write(append(line, '\n'))
			o.lost = err != nil
		} else {
			o.lost = true
		}
		if o.lost {
			return
		}
	}
}

// Close gives the pipe up; nil has none.
func (o *Outside) Close() {
	if o == nil {
		return
	}
	o.Started()
	o.to.Close()
}
