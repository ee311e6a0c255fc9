package live

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Resident is a process's resident memory in MB (10^6 bytes); Proportional counts pages that several processes share by their share.
func Resident(pid int) (float64, error)     { return kilobytes(pid, "status", "VmRSS") }
func Proportional(pid int) (float64, error) { return kilobytes(pid, "smaps_rollup", "Pss") }

// ResetPeak starts the peak that Peak reads anew.
func ResetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// Peak is the highest resident memory in MB since ResetPeak.
func Peak(pid int) (float64, error) { return kilobytes(pid, "status", "VmHWM") }

func kilobytes(pid int, file, name string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, file)
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if v, ok := strings.CutPrefix(s.Text(), name+":"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 64)
			return kb * 1024 / 1e6, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, name)
}

// Tree is the processes below a process and it itself.
func Tree(pid int) []int {
	all := []int{pid}
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, t := range tasks {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		for _, f := range strings.Fields(string(b)) {
			if child, err := strconv.Atoi(f); err == nil {
				all = append(all, Tree(child)...)
			}
		}
	}
	return all
}
