package report

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Machine is what figures depend on.
type Machine struct {
	CPUs          int
	Model, Kernel string
	MemoryBytes   uint64
	// Load is the load of the last 1, 5 and 15 minutes.
	Load string
	Time time.Time
	// Runtimes are versions of what else took part.
	Runtimes []string
}

// Look reads the machine's facts; what cannot be read is left out.
func Look() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Time: time.Now().UTC()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		if f := strings.Fields(string(b)); len(f) >= 3 {
			m.Load = strings.Join(f[:3], " ")
		}
	}
	m.Model = field("/proc/cpuinfo", "model name")
	if kb, err := strconv.ParseUint(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64); err == nil {
		m.MemoryBytes = kb << 10
	}
	return m
}

// System is one line about the machine.
func (m Machine) System() string {
	return fmt.Sprintf("%s; %d CPUs (%s), %.0f GiB memory, Linux %s",
		m.Time.Format("2006-01-02 15:04 MST"), m.CPUs, m.Model, float64(m.MemoryBytes)/(1<<30), m.Kernel)
}

// Versions is one line about the programs.
func (m Machine) Versions() string {
	return strings.Join(append([]string{runtime.Version()}, m.Runtimes...), ", ")
}

func field(path, name string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
