package cli

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// modes follows which modes of the terminal a program has switched, so that they can be switched back where it cannot do that itself any
// more: a terminal that reports every movement of the mouse, or shows another screen, is of no use to a shell.
type modes struct {
	mu sync.Mutex
	// set are those that are not as they are at first.
	set map[string]bool
	// part is the beginning of a sequence whose end has not come yet.
	part []byte
}

// followed are the modes by number; true: they are on at first.
var followed = map[string]bool{
	"1": false, "7": true, "25": true, "47": false, "1000": false, "1002": false, "1003": false, "1004": false, "1005": false, "1006": false,
	"1015": false, "1047": false, "1049": false, "2004": false,
}

// sequenceMost is longer than any sequence that switches modes.
const sequenceMost = 64

// see looks at output.
func (m *modes) see(data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.part) > 0 {
		data = slices.Concat(m.part, data)
		m.part = nil
	}
	for {
		i := bytes.IndexByte(data, 0x1b)
		if i < 0 {
			return
		}
		data = data[i:]
		n := bytes.IndexFunc(data[1:], func(r rune) bool { return r != '[' && r != '?' && r != ';' && (r < '0' || r > '9') })
		if n < 0 {
			if len(data) <= sequenceMost {
				m.part = bytes.Clone(data)
			}
			return
		}
		m.sequence(string(data[1:1+n]), data[1+n])
		data = data[1+n:]
	}
}

// sequence takes one with its last byte.
func (m *modes) sequence(body string, last byte) {
	numbers, ok := strings.CutPrefix(body, "[?")
	if !ok || last != 'h' && last != 'l' {
		return
	}
	for n := range strings.SplitSeq(numbers, ";") {
		first, known := followed[n]
		if !known {
			continue
		}
		if m.set == nil {
			m.set = map[string]bool{}
		}
		if m.set[n] = (last == 'h') != first; !m.set[n] {
			delete(m.set, n)
		}
	}
}

// back is what switches all of them back, colours too; switched reports whether there is one.
func (m *modes) back() (text string, switched bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []int
	for n := range m.set {
		number, _ := strconv.Atoi(n) // they are numbers
		all = append(all, number)
	}
	slices.Sort(all)
	var s strings.Builder
	for _, n := range all {
		s.WriteString("\x1b[?" + strconv.Itoa(n))
		if followed[strconv.Itoa(n)] {
			s.WriteByte('h')
		} else {
			s.WriteByte('l')
		}
	}
	return s.String() + "\x1b[0m", len(all) > 0
}
